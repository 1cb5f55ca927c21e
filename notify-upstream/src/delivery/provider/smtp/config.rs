//! The settings of a mail server.

use std::time::Duration;

use postern_core::Secret;
use postern_core::email::EmailAddress;

use crate::delivery::mail_token::MailTokens;

/// The settings of a mail server.
#[derive(Clone, Debug)]
pub(crate) struct SmtpConfig {
    pub(crate) host: String,
    /// The port: 587 for STARTTLS, 465 for implicit TLS.
    pub(crate) port: u16,
    /// The transport security. `None` is allowed only on loopback.
    pub(crate) tls: TlsMode,
    /// Trusted certificates in addition to the public ones, in PEM.
    pub(crate) ca_pem: Option<Vec<u8>>,
    pub(crate) credentials: Option<(String, Secret)>,
    /// The address and name of the sender.
    pub(crate) from: (EmailAddress, String),
    /// The envelope sender, to which mail servers send reports (RFC 5321 section 4.4). With tokens
    /// each message has a return path of its own, `local+TOKEN@domain` (VERP). `None`: the address
    /// of the sender, unchanged.
    pub(crate) return_path: Option<EmailAddress>,
    /// The keys that authenticate reports and unsubscriptions. `None`: reports are ignored, and no
    /// message offers one-click unsubscription.
    pub(crate) tokens: Option<MailTokens>,
    /// The name in `EHLO`. Default: the domain of the sender.
    pub(crate) ehlo_name: String,
    /// Maximum number of idle connections.
    pub(crate) connections: usize,
    /// The URL of one-click unsubscription (RFC 8058): `https`, to which a token is appended.
    pub(crate) unsubscribe: Option<String>,
    pub(crate) timeouts: SmtpTimeouts,
}

/// The timeouts of a mail server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmtpTimeouts {
    /// To accept a connection. Default 10 s.
    pub(crate) connect: Duration,
    /// For everything up to the message, including the connection. Default 29 s: RFC 5321 section
    /// 4.5.3.2 allows minutes per command, but with a retry queue there is no need to wait for
    /// them.
    pub(crate) prelude: Duration,
    /// To receive the message and answer the final dot. Default 60 s: the server may be checking
    /// the message.
    pub(crate) dot: Duration,
}

/// The transport security of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsMode {
    /// `STARTTLS`, required.
    StartTls,
    /// Implicit TLS.
    Tls,
    /// No encryption.
    None,
}

impl Default for SmtpTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            prelude: Duration::from_secs(29),
            dot: Duration::from_secs(60),
        }
    }
}
