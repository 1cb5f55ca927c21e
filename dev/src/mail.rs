//! The mail catcher: an SMTP server that stores messages, with a web page and an API to
//! read them.
//!
//! It accepts mail for every recipient and relays none. The reply `250` after DATA means that the
//! message is in the database, so that a SIGKILL loses no accepted message.

mod mailbox;
mod mime;
mod pages;
mod smtp_server;
mod web_api;

pub use self::mailbox::{MailEnvelope, Mailbox};
pub(crate) use self::smtp_server::serve;
pub(crate) use self::web_api::router;
