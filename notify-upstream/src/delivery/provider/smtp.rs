//! E-mail over SMTP (RFC 5321).
//!
//! It is known where a session failed: before the final dot nothing was sent and the attempt can be
//! repeated; after it the server may have accepted the message until it answers. A connection whose session
//! failed is closed and never reused.

mod config;
mod connection;
mod message;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lettre::transport::smtp::commands::{Mail, Rcpt};
use lettre::transport::smtp::extension::{MailParameter, RcptParameter};
use parking_lot::Mutex;
use postern_core::email::EmailAddress;
use postern_core::trace::{ActiveSpan, KeyValue, client_span, set_server};
use tokio_rustls::TlsConnector;

pub(crate) use config::{SmtpConfig, SmtpTimeouts, TlsMode};
use connection::{BROKEN, Connection, Fault, Reply};

use super::{
    FaultScope, OutgoingMessage, ProviderRefusal, SendResult, UNSUPPORTED, classify, classify_reply,
};
use crate::address::Address;
use crate::delivery::retry::FailureClass;
use crate::templates::MessageContent;

/// A client of a mail server with its idle connections.
pub(crate) struct SmtpProvider {
    config: SmtpConfig,
    tls: Option<TlsConnector>,
    idle: IdlePool,
}

struct IdlePool(Mutex<VecDeque<(Connection, Instant)>>);

/// Maximum idle time of a reused connection: servers close theirs after some minutes.
const MAX_IDLE_TIME: Duration = Duration::from_secs(30);

/// The step at which a session failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Until the session is authenticated.
    Connect,
    /// MAIL: the server knows the sender.
    Sender,
    /// RCPT and DATA: what the server says, or its silence, may be caused by the recipient.
    Recipient,
    /// After the final dot: without a reply the server may have accepted the message.
    Message,
}

// === impl SmtpProvider ===

impl SmtpProvider {
    /// Creates a client. No connection is opened.
    pub(crate) fn new(config: SmtpConfig) -> Result<Self, String> {
        let tls = match config.tls {
            TlsMode::None => None,
            TlsMode::StartTls | TlsMode::Tls => {
                Some(connection::connector(config.ca_pem.as_deref())?)
            }
        };
        Ok(Self {
            config,
            tls,
            idle: IdlePool(Mutex::default()),
        })
    }

    /// Connects, and authenticates if there are credentials.
    pub(super) async fn probe(&self) -> Result<(), ProviderRefusal> {
        let deadline = tokio::time::Instant::now() + self.config.timeouts.prelude;
        let mut connection = self.connect(deadline).await?;
        let _closed_anyway = connection.command("QUIT\r\n").await;
        Ok(())
    }

    pub(super) async fn send(&self, message: &OutgoingMessage<'_>) -> SendResult {
        let (
            Address::Email(to),
            MessageContent::Email {
                subject,
                text,
                html,
            },
        ) = (message.to, message.content)
        else {
            return Err(ProviderRefusal::not_sent(UNSUPPORTED));
        };
        let mail = message::build(&self.config, message, to, (subject, text, html.as_deref()));
        let mail = mail.map_err(|error| {
            ProviderRefusal::not_sent("message_not_buildable").with_detail(error)
        })?;
        let describe = |span: &mut ActiveSpan| {
            span.set(KeyValue::new("network.protocol.name", "smtp"));
            set_server(span, &self.config.host, Some(self.config.port));
        };
        let sending = self.send_mail(message, to, &mail);
        client_span("SMTP send", describe, sending, |result| {
            let refusal = result.as_ref().err()?;
            Some(refusal.code.clone().into())
        })
        .await
    }

    async fn send_mail(
        &self,
        message: &OutgoingMessage<'_>,
        to: &EmailAddress,
        mail: &lettre::Message,
    ) -> SendResult {
        let bytes = mail.formatted();
        let id = message::envelope_id(&self.config, message);
        let SmtpTimeouts { prelude, dot, .. } = self.config.timeouts;
        let deadline = tokio::time::Instant::now() + prelude;
        let mut session = self.reusable(deadline).await;
        loop {
            let mut connection = match session {
                Some(connection) => connection,
                None => self.connect(deadline).await?,
            };
            match run_session(&mut connection, id.clone(), mail, &bytes, dot).await {
                Ok(reply) => {
                    self.idle.push(connection, self.config.connections);
                    return Ok(Some(reply.to_string()));
                }
                // The end of a reused connection says nothing about the server: RFC 5321 section
                // 3.8 lets it close one at any time, and many do so after some messages.
                Err((stage, fault)) if connection.is_reused && fault.ends_connection(stage) => {
                    session = None;
                }
                Err((stage, fault)) => {
                    // Any other connection is dropped, so that a late response is not taken for
                    // that of the next message.
                    if matches!(&fault, Fault::Refused(reply) if !reply.closes()) {
                        self.idle.push(connection, self.config.connections);
                    }
                    return Err(self.refusal(stage, fault, to));
                }
            }
        }
    }

    /// Returns an idle connection that still works.
    async fn reusable(&self, deadline: tokio::time::Instant) -> Option<Connection> {
        while let Some(mut connection) = self.idle.pop() {
            (connection.deadline, connection.is_reused) = (deadline, true);
            let limit = self.config.timeouts.connect;
            match tokio::time::timeout(limit, connection.command("RSET\r\n")).await {
                Ok(Ok(_)) => return Some(connection),
                Ok(Err(_)) => {}
                // Other idle connections may be dead as well: open a new one while there is time.
                Err(_) => break,
            }
        }
        None
    }

    async fn connect(&self, deadline: tokio::time::Instant) -> Result<Connection, ProviderRefusal> {
        let opened = Connection::open(&self.config, self.tls.as_ref(), deadline);
        let opened = tokio::time::timeout_at(deadline, opened).await;
        opened
            .unwrap_or_else(|elapsed| Err(elapsed.into()))
            .map_err(|fault| self.refusal(Stage::Connect, fault, &self.config.from.0))
    }

    /// Classifies a fault. A permanent refusal before the recipient command concerns the account,
    /// not the message.
    fn refusal(&self, stage: Stage, fault: Fault, to: &EmailAddress) -> ProviderRefusal {
        let judge = |code: &str| classify("smtp", code);
        match fault {
            Fault::Refused(reply) => {
                let reply = reply.to_string();
                let mut refusal = classify_reply(&reply, "");
                let early = match stage {
                    Stage::Connect => Some("turned_away"),
                    Stage::Sender => Some("sender_refused"),
                    Stage::Recipient | Stage::Message => None,
                };
                if let Some(code) = early {
                    if refusal.class == FailureClass::Permanent {
                        refusal = judge(code);
                    }
                    refusal = refusal.with_scope(FaultScope::Provider);
                }
                // Many servers repeat the address in their response; the history must not contain
                // it.
                refusal.with_detail(reply.replace(to.as_str(), "<recipient>"))
            }
            Fault::Tls(reason) => judge("tls").with_detail(format!("TLS failed: {reason}")),
            Fault::NoMechanism => {
                judge("535").with_detail("the server offers neither AUTH PLAIN nor AUTH LOGIN")
            }
            Fault::Lost(code, reason) => {
                let (code, scope) = match stage {
                    Stage::Connect | Stage::Sender => ("connect", FaultScope::Provider),
                    Stage::Recipient => ("connect", FaultScope::Recipient),
                    Stage::Message => (code, FaultScope::Recipient),
                };
                judge(code).with_scope(scope).with_detail(reason)
            }
        }
    }
}

impl Fault {
    /// Returns whether the server ended the connection without taking the message.
    fn ends_connection(&self, stage: Stage) -> bool {
        match self {
            // Limits of messages per connection are refused at MAIL, with 421 or 450 to 452.
            Self::Refused(reply) => reply.closes() || stage == Stage::Sender && reply.is_busy(),
            Self::Lost(code, _) => *code == BROKEN && stage != Stage::Message,
            Self::Tls(_) | Self::NoMechanism => false,
        }
    }
}

async fn run_session(
    session: &mut Connection,
    envelope_id: String,
    mail: &lettre::Message,
    bytes: &[u8],
    dot: Duration,
) -> Result<Reply, (Stage, Fault)> {
    let envelope = mail.envelope();
    let at = |stage| move |fault| (stage, fault);
    let dsn = session.offers("DSN");
    let about_mail = dsn.then(|| dsn_envelope_parameters(envelope_id));
    let about_mail = about_mail.unwrap_or_default();
    let sender = Mail::new(envelope.from().cloned(), about_mail);
    session.command(sender).await.map_err(at(Stage::Sender))?;
    for to in envelope.to() {
        let about_recipient = dsn.then(|| dsn_recipient_parameters(to));
        let recipient = Rcpt::new(to.clone(), about_recipient.unwrap_or_default());
        let accepted = session.command(recipient).await;
        accepted.map_err(at(Stage::Recipient))?;
    }
    let data = session.command_for(354, "DATA\r\n").await;
    data.map_err(at(Stage::Recipient))?;
    let taken = session.message(bytes, dot).await;
    taken.map_err(at(Stage::Message))
}

/// Reports name the envelope and contain the header of the message only (RFC 3461 sections 4.3 and
/// 4.4).
fn dsn_envelope_parameters(envelope_id: String) -> Vec<MailParameter> {
    let other = |keyword: &str, value: String| MailParameter::Other {
        keyword: keyword.to_owned(),
        value: Some(value),
    };
    vec![other("RET", "HDRS".to_owned()), other("ENVID", envelope_id)]
}

/// Requests reports about delayed and failed delivery, to the address of the sender (RFC 3461
/// sections 4.1 and 4.2).
fn dsn_recipient_parameters(to: &lettre::Address) -> Vec<RcptParameter> {
    let other = |keyword: &str, value: String| RcptParameter::Other {
        keyword: keyword.to_owned(),
        value: Some(value),
    };
    vec![
        other("NOTIFY", "FAILURE,DELAY".to_owned()),
        other("ORCPT", format!("rfc822;{to}")),
    ]
}

// === impl IdlePool ===

impl IdlePool {
    fn pop(&self) -> Option<Connection> {
        let mut idle = self.0.lock();
        while let Some((session, since)) = idle.pop_back() {
            if since.elapsed() < MAX_IDLE_TIME {
                return Some(session);
            }
        }
        None
    }

    fn push(&self, session: Connection, max_idle: usize) {
        let mut idle = self.0.lock();
        if idle.len() < max_idle {
            idle.push_back((session, Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests;
