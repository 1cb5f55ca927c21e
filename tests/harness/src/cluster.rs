//! A test of a complete installation under faults: three gateways behind HAProxy, three replicas of
//! each service, PostgreSQL with a synchronous standby, and a Redis Cluster of three masters and
//! three replicas.
//!
//! Clients send requests at a fixed rate while faults of a seeded schedule occur. Everything that the clients
//! and the notification provider observe is written to a history, one JSON object per line. A checker, which
//! knows nothing but the history, looks for violations of the guarantees.
//!
//! The modules, in the order of the data flow:
//!
//! 1. `options` is the command line; `faults` the schedule.
//! 2. `installation` starts all processes: `node` (those of Postern), `postgres`, `redis_cluster`, `haproxy`;
//!    `network` drops packets.
//! 3. `workload` sends requests, `accounts` signs people in, `provider` receives notifications.
//! 4. `history` is what they record, `checker` finds each `violation` in it, and `summary` counts.
//! 5. `run` connects the parts.

mod accounts;
pub mod checker;
pub mod faults;
mod haproxy;
pub mod history;
mod installation;
mod network;
mod node;
pub mod options;
mod postgres;
mod provider;
mod redis_cluster;
pub mod run;
pub mod summary;
pub mod violation;
mod workload;
