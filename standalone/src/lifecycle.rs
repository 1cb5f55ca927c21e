//! Listening sockets, the generated environment file, and the ordered shutdown of all parts.

mod environment_file;
mod running;
mod sockets;

pub(crate) use self::environment_file::{ENVIRONMENT_FILE_NAME, EnvironmentFile};
pub use self::running::Running;
pub(crate) use self::running::ShutdownStage;
pub use self::sockets::Addresses;
pub(crate) use self::sockets::{BoundSockets, DevelopmentSockets, ServiceSockets};
