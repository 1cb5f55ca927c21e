//! What makes a program a server: sockets, HTTP, signals, logs and calls to other services.
//!
//! All programs use it. It knows neither database nor cache; what a process waits for
//! at its start, it passes in.
//!
//! 1. Start: [`signals`] are caught first, [`log`] writes one event per line, [`startup`] binds the
//!    sockets and waits for the database, [`service_manager`] reports to systemd.
//! 2. Requests: [`accept`] takes connections, [`http`] serves a router of axum with request ids,
//!    problems for all errors, limits, budgets for bodies, one log event per request and graceful
//!    shutdown.
//! 3. Calls: [`calls`] sends requests to other services with the user's token or that of the
//!    service, which it obtains and renews.
//! 4. Operators: [`admin`] serves liveness, readiness and metrics, among them those of
//!    [`process_metrics`]; [`admin_api`] protects routes that change or reveal something;
//!    [`timeline`] serves what happened to a person; [`trace`] exports spans by OTLP.

pub mod accept;
pub mod http;
pub mod log;
pub mod service_manager;
pub mod signals;
pub mod startup;
pub mod trace;

pub mod admin;
pub mod admin_api;
pub mod calls;
pub mod process_metrics;
pub mod timeline;
