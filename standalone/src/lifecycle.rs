//! Listening sockets, the generated environment file, and the ordered shutdown of all parts.
//!
//! `startup` binds [`BoundSockets`], spawns the parts into [`ShutdownStage`]s, and returns them as
//! [`Running`].

mod environment_file;
mod running;
mod sockets;

pub(crate) use self::environment_file::{ENVIRONMENT_FILE_NAME, EnvironmentFile};
pub use self::running::Running;
pub(crate) use self::running::{Embedded, ShutdownStage};
pub(crate) use self::sockets::{BoundSockets, ServiceSockets, listeners};
