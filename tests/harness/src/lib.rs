//! The harness of the end-to-end tests: what a test starts, asks and checks.
//!
//! A test is a few lines; a step that fails panics. Every response of a gateway is checked against `conf/openapi.json`; every
//! assertion names the request that it is about.
//!
//! ```no_run
//! # async fn temporary_token_is_exchanged_once() {
//! let postern = postern_harness::Standalone::start().await;
//! let token = postern.surface().social_token("ada").await;
//! assert_eq!(postern.surface().exchange(&token).await.expect(200).string("/user/provider"), "development");
//! postern.surface().exchange(&token).await.problem(401, "invalid_temporary_token");
//! postern.stop().await;
//! # }
//! ```
//!
//! | to start | use |
//! |---|---|
//! | everything in this process, over SQLite, with a clock of the test | [`Standalone`] |
//! | the programs as processes over PostgreSQL and Redis, with replicas | [`Installation`] and [`Changes`] |
//! | one program: its exit status, signals, restarts | [`process::Program`], [`process::Process`] |
//! | a gateway of this process before an upstream of the test | [`Gateway`] |
//! | the identity pools alone | [`Pools`] |
//! | stores that can be killed, with standby, PgBouncer or Sentinel | [`stores`] |
//! | an upstream or a provider that answers as declared | [`Origin`], [`BrokenOrigin`], [`Provider`] |
//! | a mail server that holds or rejects messages | [`MailServer`] |
//! | a server that others wrote | [`peer::Peer`] |
//! | a browser, or the console in a browser | [`Browser`], [`Console`] |
//! | a whole installation under faults | [`cluster`] |
//!
//! [`Client`] asks as an application does, [`RawClient`] with any bytes, and [`Load`] without a pause while something is
//! restarted. A test waits for events ([`wait`]); time passes on the clock of [`Standalone::start_with_manual_clock`].
//! What must not be logged is recorded by [`sensitive`] and searched for after a run.

pub mod answer;
pub mod browser;
pub mod client;
pub mod cluster;
pub mod config_file;
pub mod console;
pub mod contract;
pub mod fake_clock;
pub mod gateway;
pub mod guide;
pub mod installation;
pub mod load;
pub mod mail_server;
pub mod mail_token;
pub mod mailbox;
pub mod origin;
pub mod paths;
pub mod peer;
pub mod podman;
pub mod pools;
pub mod ports;
pub mod process;
pub mod provider;
pub mod public_api;
pub mod raw_client;
pub mod sensitive;
pub mod stores;
pub mod systems;
pub mod wait;

pub use answer::Answer;
pub use browser::Browser;
pub use client::Client;
pub use console::Console;
pub use contract::Contract;
pub use fake_clock::FakeClock;
pub use gateway::Gateway;
pub use guide::Guide;
pub use installation::standalone::Standalone;
pub use installation::{Changes, Installation};
pub use load::Load;
pub use mail_server::MailServer;
pub use mailbox::Mailbox;
pub use origin::{BrokenOrigin, Origin};
pub use pools::Pools;
pub use postern_core::testing::{note, skipped};
pub use provider::Provider;
pub use public_api::{Person, PublicApi};
pub use raw_client::RawClient;
pub use serde_json::json;
