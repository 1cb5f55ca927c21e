//! E-mail over SMTP (RFC 5321), on connections of lettre.
//!
//! The commands are sent here and not by lettre, so that it is known where a session failed: before
//! the final dot nothing was sent and the attempt can be repeated; after it the result is ambiguous
//! until the server answers. A connection whose session failed is closed and never reused.

mod config;
mod message;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, Certificate, TlsParameters};
use lettre::transport::smtp::commands::{Data, Ehlo, Mail, Rcpt};
use lettre::transport::smtp::extension::{ClientId, MailParameter, RcptParameter};
use lettre::transport::smtp::response::Response;
use parking_lot::Mutex;
use postern_common::dependency::root_cause;
use postern_common::email::EmailAddress;
use postern_common::trace;

pub(crate) use config::{SmtpConfig, SmtpTimeouts, TlsMode};

use super::{ErrorCodeTable, FaultScope, OutgoingMessage, ProviderAck, ProviderRefusal};
use crate::address::Address;
use crate::delivery::retry::FailureClass;
use crate::templates::MessageContent;

/// A client of a mail server with its idle connections.
pub(crate) struct SmtpProvider {
    config: SmtpConfig,
    tls: Option<TlsParameters>,
    codes: ErrorCodeTable,
    idle: IdlePool,
}

/// An open session and the extensions of the server.
struct SmtpConnection {
    connection: AsyncSmtpConnection,
    /// Whether the server supports delivery status notifications (RFC 3461).
    dsn: bool,
    /// The deadline of everything up to the message.
    deadline: tokio::time::Instant,
}

struct IdlePool(Mutex<VecDeque<(SmtpConnection, Instant)>>);

/// Maximum idle time of a reused connection: servers close theirs after some minutes.
const MAX_IDLE_TIME: Duration = Duration::from_secs(30);

/// The point at which a session failed.
enum SessionError {
    /// Before the final dot: nothing was sent.
    Before(FaultScope),
    /// The server refused the sender, before it knew the recipient; the session can continue.
    SenderRefused(lettre::transport::smtp::Error),
    /// The server refused the recipient or the message; the session can continue.
    Refused(lettre::transport::smtp::Error),
    /// After the final dot: the server may have accepted the message.
    After(&'static str),
}

// === impl SmtpProvider ===

impl SmtpProvider {
    /// Creates a client. No connection is opened.
    ///
    /// # Errors
    /// The certificates cannot be parsed.
    pub(crate) fn new(config: SmtpConfig, codes: ErrorCodeTable) -> Result<Self, String> {
        let tls = match config.tls {
            TlsMode::None => None,
            TlsMode::StartTls | TlsMode::Tls => {
                let mut builder = TlsParameters::builder(config.host.clone());
                if let Some(pem) = &config.ca_pem {
                    let certificate =
                        Certificate::from_pem(pem).map_err(|error| error.to_string())?;
                    builder = builder.add_root_certificate(certificate);
                }
                Some(builder.build().map_err(|error| error.to_string())?)
            }
        };
        Ok(Self {
            config,
            tls,
            codes,
            idle: IdlePool(Mutex::default()),
        })
    }

    pub(super) async fn send(
        &self,
        message: &OutgoingMessage<'_>,
    ) -> Result<ProviderAck, ProviderRefusal> {
        let (
            Address::Email(to),
            MessageContent::Email {
                subject,
                text,
                html,
            },
        ) = (message.to, message.content)
        else {
            return Err(ProviderRefusal::unsupported_message());
        };
        let rendered = message::RenderedMail {
            subject,
            text,
            html: html.as_deref(),
        };
        let mail = message::build(&self.config, message, to, &rendered).map_err(|error| {
            ProviderRefusal {
                code: "message_not_buildable".to_owned(),
                ..ProviderRefusal::unsupported_message()
            }
            .with_detail(error)
        })?;
        let call = trace::Scope::current()
            .and_then(|scope| scope.child("SMTP send", trace::SpanKind::Client));
        let mut span = call.map(|(_, span)| span);
        if let Some(span) = &mut span {
            span.extend([
                trace::KeyValue::new("network.protocol.name", "smtp"),
                trace::KeyValue::new("server.address", self.config.host.clone()),
                trace::KeyValue::new("server.port", i64::from(self.config.port)),
            ]);
        }
        let result = self.send_mail(message, to, &mail).await;
        if let (Err(refusal), Some(span)) = (&result, &mut span) {
            span.fail(refusal.code.clone());
        }
        result
    }

    async fn send_mail(
        &self,
        message: &OutgoingMessage<'_>,
        to: &EmailAddress,
        mail: &lettre::Message,
    ) -> Result<ProviderAck, ProviderRefusal> {
        let bytes = mail.formatted();
        let SmtpTimeouts { prelude, dot, .. } = self.config.timeouts;
        let mut session = self.session(tokio::time::Instant::now() + prelude).await?;
        match run_session(
            &mut session,
            message::envelope_id(&self.config, message),
            mail,
            &bytes,
            dot,
        )
        .await
        {
            Ok(response) => {
                self.reuse(session);
                Ok(ProviderAck {
                    detail: Some(response_text(&response)),
                })
            }
            Err(SessionError::SenderRefused(error)) => {
                self.reuse(session);
                Err(self.refused_before_recipient(&error, "sender_refused"))
            }
            // From the recipient command on, the response or the silence of the server may be
            // caused by the recipient.
            Err(SessionError::Refused(error)) => {
                self.reuse(session);
                Err(self.refused(&error, to).with_scope(FaultScope::Recipient))
            }
            // The connection is dropped, so that a late response is not taken for that of the next
            // message.
            Err(SessionError::Before(scope)) => {
                let refusal = self.codes.classify("smtp", "connect").with_scope(scope);
                Err(refusal.with_detail("broken off before the message"))
            }
            Err(SessionError::After(code)) => {
                let refusal = self
                    .codes
                    .classify("smtp", code)
                    .with_scope(FaultScope::Recipient);
                Err(refusal.with_detail("no answer after the message"))
            }
        }
    }

    async fn session(
        &self,
        deadline: tokio::time::Instant,
    ) -> Result<SmtpConnection, ProviderRefusal> {
        while let Some(session) = self.idle.pop() {
            let mut session = SmtpConnection {
                deadline,
                ..session
            };
            match tokio::time::timeout(self.config.timeouts.connect, session.command("RSET\r\n"))
                .await
            {
                Ok(Ok(Ok(_))) => return Ok(session),
                Ok(_) => {}
                // Other idle connections may be dead as well: open a new one while there is time.
                Err(_) => break,
            }
        }
        match tokio::time::timeout_at(deadline, self.connect(deadline)).await {
            Ok(connected) => connected,
            Err(_) => Err(self
                .codes
                .classify("smtp", "connect")
                .with_detail("no connection in time")),
        }
    }

    async fn connect(
        &self,
        deadline: tokio::time::Instant,
    ) -> Result<SmtpConnection, ProviderRefusal> {
        let timeouts = self.config.timeouts;
        let ehlo_name = ClientId::Domain(self.config.ehlo_name.clone());
        let server = (self.config.host.as_str(), self.config.port);
        let implicit = self.tls.clone().filter(|_| self.config.tls == TlsMode::Tls);
        let refused = |error: &lettre::transport::smtp::Error| self.unreachable(error);
        let mut connection = AsyncSmtpConnection::connect_tokio1(
            server,
            Some(timeouts.connect),
            &ehlo_name,
            implicit,
            None,
        )
        .await
        .map_err(|error| refused(&error))?;
        if let Some(tls) = self
            .tls
            .clone()
            .filter(|_| self.config.tls == TlsMode::StartTls)
        {
            if !connection.can_starttls() {
                return Err(self
                    .codes
                    .classify("smtp", "tls")
                    .with_detail("the server does not offer STARTTLS"));
            }
            connection
                .starttls(tls, &ehlo_name)
                .await
                .map_err(|error| refused(&error))?;
        }
        if let Some((user, password)) = &self.config.credentials {
            let credentials = Credentials::new(user.clone(), password.expose().to_owned());
            connection
                .auth(DEFAULT_MECHANISMS, &credentials)
                .await
                .map_err(|error| refused(&error))?;
        }
        // lettre parses the extensions of the server and keeps those that it knows. DSN is not
        // among them, so EHLO is sent again.
        let mut session = SmtpConnection {
            connection,
            dsn: false,
            deadline,
        };
        let extensions = session.command(Ehlo::new(ehlo_name)).await;
        let offers = |response: &Response| {
            response
                .message()
                .any(|session| session.eq_ignore_ascii_case("DSN"))
        };
        session.dsn = extensions
            .ok()
            .and_then(Result::ok)
            .is_some_and(|response| offers(&response));
        Ok(session)
    }

    fn reuse(&self, session: SmtpConnection) {
        if !session.connection.has_broken() {
            self.idle.push(session, self.config.connections);
        }
    }

    /// Classifies a refusal before the recipient command: a permanent one concerns the account, not
    /// the message.
    fn refused_before_recipient(
        &self,
        error: &lettre::transport::smtp::Error,
        code: &str,
    ) -> ProviderRefusal {
        let mut refusal = self.codes.classify("smtp", &code_of(error));
        if refusal.class == FailureClass::Permanent {
            refusal = self.codes.classify("smtp", code);
        }
        refusal
            .with_scope(FaultScope::Provider)
            .with_detail(text_of(error))
    }

    fn unreachable(&self, error: &lettre::transport::smtp::Error) -> ProviderRefusal {
        match error.status() {
            Some(_) => self.refused_before_recipient(error, "turned_away"),
            None if error.is_tls() || is_tls_error(error) => self
                .codes
                .classify("smtp", "tls")
                .with_detail(format!("TLS failed: {}", root_cause(error))),
            None if error.is_client() => self
                .codes
                .classify("smtp", "tls")
                .with_detail("the server lacks what the configuration requires"),
            None => self
                .codes
                .classify("smtp", "connect")
                .with_detail(format!("cannot connect: {}", root_cause(error))),
        }
    }

    fn refused(
        &self,
        error: &lettre::transport::smtp::Error,
        to: &EmailAddress,
    ) -> ProviderRefusal {
        if error.status().is_none() {
            return self
                .codes
                .classify("smtp", "broken")
                .with_detail("the answer is not SMTP");
        }
        // Many servers repeat the address in their response; the history must not contain it.
        let detail = text_of(error).replace(to.as_str(), "<recipient>");
        self.codes
            .classify("smtp", &code_of(error))
            .with_detail(detail)
    }
}

async fn run_session(
    session: &mut SmtpConnection,
    envelope_id: String,
    mail: &lettre::Message,
    bytes: &[u8],
    dot: Duration,
) -> Result<Response, SessionError> {
    let envelope = mail.envelope();
    let sender = envelope.from().cloned();
    let about_mail = if session.dsn {
        dsn_envelope_parameters(envelope_id)
    } else {
        Vec::new()
    };
    check_reply(session.command(Mail::new(sender, about_mail)).await).map_err(
        |broken| match broken {
            SessionError::Refused(error) => SessionError::SenderRefused(error),
            SessionError::Before(_) => SessionError::Before(FaultScope::Provider),
            SessionError::SenderRefused(_) | SessionError::After(_) => broken,
        },
    )?;
    for to in envelope.to() {
        let about_recipient = if session.dsn {
            dsn_recipient_parameters(to)
        } else {
            Vec::new()
        };
        check_reply(
            session
                .command(Rcpt::new(to.clone(), about_recipient))
                .await,
        )?;
    }
    check_reply(session.command(Data).await)?;
    match tokio::time::timeout(dot, session.connection.message(bytes)).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) if error.status().is_some() => Err(SessionError::Refused(error)),
        Ok(Err(_)) => Err(SessionError::After("broken")),
        Err(_) => Err(SessionError::After("timeout")),
    }
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

type CommandResult =
    Result<Result<Response, lettre::transport::smtp::Error>, tokio::time::error::Elapsed>;

fn check_reply(answer: CommandResult) -> Result<(), SessionError> {
    match answer {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if error.status().is_some() => Err(SessionError::Refused(error)),
        Ok(Err(_)) | Err(_) => Err(SessionError::Before(FaultScope::Recipient)),
    }
}

impl SmtpConnection {
    async fn command(&mut self, verb: impl std::fmt::Display) -> CommandResult {
        tokio::time::timeout_at(self.deadline, self.connection.command(verb)).await
    }
}

/// Returns whether the session failed because the server offered no trusted TLS. lettre reports it
/// as a connection error that wraps the one of rustls.
fn is_tls_error(error: &lettre::transport::smtp::Error) -> bool {
    std::iter::successors(std::error::Error::source(error), |&cause| cause.source())
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::InvalidData)
}

/// Returns the reply code and the text of the server.
fn text_of(error: &lettre::transport::smtp::Error) -> String {
    let number = error
        .status()
        .map(|code| code.to_string())
        .unwrap_or_default();
    let lines = std::error::Error::source(error)
        .map(ToString::to_string)
        .unwrap_or_default();
    format!("{number} {lines}").trim().to_owned()
}

/// Returns the reply code and, if the server gives one, the enhanced status code: `550 5.1.1`.
fn code_of(error: &lettre::transport::smtp::Error) -> String {
    let number = error
        .status()
        .map(|code| code.to_string())
        .unwrap_or_default();
    let lines = std::error::Error::source(error)
        .map(ToString::to_string)
        .unwrap_or_default();
    let enhanced = lines.split_whitespace().next().filter(|part| {
        part.split('.').count() == 3
            && part
                .split('.')
                .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    });
    enhanced.map_or_else(|| number.clone(), |enhanced| format!("{number} {enhanced}"))
}

fn response_text(response: &Response) -> String {
    let lines: Vec<&str> = response.message().collect();
    format!("{} {}", response.code(), lines.join(" "))
        .trim()
        .to_owned()
}

// === impl IdlePool ===

impl IdlePool {
    fn pop(&self) -> Option<SmtpConnection> {
        let mut idle = self.0.lock();
        while let Some((session, since)) = idle.pop_back() {
            if since.elapsed() < MAX_IDLE_TIME {
                return Some(session);
            }
        }
        None
    }

    fn push(&self, session: SmtpConnection, max_idle: usize) {
        let mut idle = self.0.lock();
        if idle.len() < max_idle {
            idle.push_back((session, Instant::now()));
        }
    }
}

impl std::fmt::Debug for SmtpProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SmtpProvider")
            .field("host", &self.config.host)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
