//! The harness of the end-to-end tests: real sockets, a separate store for each test, components
//! that the test controls, and checks of every response against the OpenAPI contract.
//!
//! A test consists of a few lines:
//!
//! ```no_run
//! # async fn example() {
//! use postern_tests::{Postern, http_body::json};
//!
//! let postern = Postern::start().await;
//! let answer = postern.client().post_json("/auth/login", &json!({"email": "a@b.example"})).await;
//! answer.problem(400, "invalid_request").assert_pointers(&["/password"]);
//! # }
//! ```

pub mod answer;
pub mod browser;
pub mod client;
pub mod cluster;
pub mod config_file;
pub mod console;
pub mod contract;
pub mod edge;
pub mod failing_upstream;
pub mod fake_clock;
pub mod guide;
pub mod http_body;
pub mod load;
pub mod mail_server;
pub mod mail_token;
pub mod mailbox;
pub mod podman;
pub mod pools;
pub mod ports;
pub mod postern;
pub mod program;
pub mod raw;
pub mod recorder;
pub mod replicas;
pub mod sensitive;
pub mod split;
pub mod surface;
pub mod systems;

pub use answer::Answer;
pub use browser::Browser;
pub use client::Client;
pub use console::Console;
pub use contract::Contract;
pub use edge::{Edge, Gateway};
pub use failing_upstream::FailingUpstream;
pub use fake_clock::FakeClock;
pub use guide::Guide;
pub use load::Load;
pub use mail_server::MailServer;
pub use mailbox::Mailbox;
pub use pools::Pools;
pub use postern::Postern;
pub use postern_core::testing::{note, skipped};
pub use replicas::Replicas;
pub use split::Split;
pub use surface::{Person, PublicApi};
