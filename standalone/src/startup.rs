//! Startup of an installation.
//!
//! Input: command line options and a data folder, or a folder of configuration files. Output: a
//! [`Running`](crate::Running) installation whose listeners accept connections.

mod configured;
mod embedded;
mod greeting;

pub use self::configured::start_configured;
pub use self::embedded::{Options, start};
pub use self::greeting::greeting;
