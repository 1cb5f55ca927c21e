//! The harness of the end-to-end tests: real sockets, a store of its own for each test, parts that the test
//! drives itself, and answers that are held against the contract whenever one is read.
//!
//! A test is a few lines of intent:
//!
//! ```no_run
//! # async fn example() {
//! use postern_tests::{Postern, http_body::json};
//!
//! let postern = Postern::start().await;
//! let answer = postern.client().post("/auth/login").json(&json!({"email": "a@b.example"})).send().await;
//! answer.problem(400, "invalid_request").points_at(&["/password"]);
//! # }
//! ```

pub mod answer;
pub mod client;
pub mod contract;
pub mod http_body;
pub mod program;
pub mod raw;
pub mod recorder;

pub use answer::Answer;
pub use client::Client;
pub use contract::Contract;
