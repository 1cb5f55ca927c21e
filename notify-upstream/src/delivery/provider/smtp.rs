//! E-mail by SMTP (RFC 5321), over lettre's connections.
//!
//! We speak the verbs ourselves, so that it is known where a conversation broke: before the final
//! dot nothing was handed over and the attempt can be repeated; after it the outcome is ambiguous
//! until the server answers. A connection whose conversation broke off is closed, never used again.

mod message;

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, Certificate, TlsParameters};
use lettre::transport::smtp::commands::{Data, Ehlo, Mail, Rcpt};
use lettre::transport::smtp::extension::{ClientId, MailParameter, RcptParameter};
use lettre::transport::smtp::response::Response;
use postern_common::Secret;

use super::{ErrorCodeTable, FaultScope, OutgoingMessage, ProviderAck, ProviderRefusal};
use crate::address::{Address, EmailAddress};
use crate::delivery::mail_token::MailTokens;
use crate::delivery::retry::FailureClass;
use crate::templates::MessageContent;

/// How a mail server is reached.
#[derive(Clone, Debug)]
pub(crate) struct SmtpConfig {
    /// Host name or address.
    pub(crate) host: String,
    /// Port: 587 for STARTTLS, 465 for TLS from the start.
    pub(crate) port: u16,
    /// How the conversation is protected. Nothing is allowed only on loopback.
    pub(crate) tls: TlsMode,
    /// Certificates that are trusted besides the public ones, in PEM.
    pub(crate) ca_pem: Option<Vec<u8>>,
    /// User name and password.
    pub(crate) credentials: Option<(String, Secret)>,
    /// The sender: address and name.
    pub(crate) from: (EmailAddress, String),
    /// The sender of the envelope: where mail servers send what they report (RFC 5321 section 4.4).
    /// With tokens each message has a return path of its own, `local+TOKEN@domain` (VERP). `None`:
    /// the sender's address, as it is.
    pub(crate) return_path: Option<EmailAddress>,
    /// What a report and a click are proven with. `None`: reports are not believed, and no mail
    /// offers a click.
    pub(crate) tokens: Option<MailTokens>,
    /// What `EHLO` says. Default: the domain of the sender.
    pub(crate) hello: String,
    /// Connections that are kept at most.
    pub(crate) connections: usize,
    /// Where one-click unsubscriptions go (RFC 8058): `https`, and a token is put behind it.
    pub(crate) unsubscribe: Option<String>,
    /// How long the server may take.
    pub(crate) timeouts: SmtpTimeouts,
}

/// How long a mail server may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmtpTimeouts {
    /// To accept a connection. Default 10 s.
    pub(crate) connect: Duration,
    /// For everything up to the message, the connection included. Default 29 s: RFC 5321 section
    /// 4.5.3.2 allows minutes a command, but a queue with repeats need not wait for them.
    pub(crate) prelude: Duration,
    /// To take the message and answer the final dot. Default 60 s: the server may be checking the
    /// message.
    pub(crate) dot: Duration,
}

/// How a conversation is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsMode {
    /// `STARTTLS`, required.
    StartTls,
    /// TLS from the first byte.
    Tls,
    /// Nothing.
    None,
}

/// A mail server with its connections.
pub(crate) struct SmtpProvider {
    config: SmtpConfig,
    tls: Option<TlsParameters>,
    codes: ErrorCodeTable,
    idle: IdlePool,
}

/// A conversation, and what the server offers in it.
struct SmtpConnection {
    connection: AsyncSmtpConnection,
    /// Whether it reports what becomes of a message (RFC 3461).
    dsn: bool,
    /// When everything up to the message is to be over.
    until: tokio::time::Instant,
}

struct IdlePool(Mutex<VecDeque<(SmtpConnection, Instant)>>);

/// A connection is not used again after it was idle for so long: servers close theirs after some
/// minutes.
const MAX_IDLE_TIME: Duration = Duration::from_secs(30);

/// Where a conversation broke.
enum SessionError {
    /// Before the final dot: nothing was handed over.
    Before(FaultScope),
    /// The server said no to the sender, before it knew the recipient; the conversation can go on.
    SenderRefused(lettre::transport::smtp::Error),
    /// The server said no to the recipient or the message; the conversation can go on.
    Refused(lettre::transport::smtp::Error),
    /// After the final dot: the server may have taken it.
    After(&'static str),
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

// === impl SmtpProvider ===

impl SmtpProvider {
    /// A server; no connection is made yet.
    ///
    /// # Errors
    /// The certificates cannot be read.
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
        let words = message::RenderedMail {
            subject,
            text,
            html: html.as_deref(),
        };
        let mail = message::build(&self.config, message, to, &words).map_err(|error| {
            ProviderRefusal {
                code: "message_not_buildable".to_owned(),
                ..ProviderRefusal::unsupported_message()
            }
            .with_detail(error)
        })?;
        let bytes = mail.formatted();
        let SmtpTimeouts { prelude, dot, .. } = self.config.timeouts;
        let mut line = self.line(tokio::time::Instant::now() + prelude).await?;
        match converse(
            &mut line,
            message::envelope_id(&self.config, message),
            (&mail, &bytes),
            dot,
        )
        .await
        {
            Ok(response) => {
                self.keep(line);
                Ok(ProviderAck {
                    detail: Some(words_of(&response)),
                })
            }
            Err(SessionError::SenderRefused(error)) => {
                self.keep(line);
                Err(self.turned_away(&error, "sender_refused"))
            }
            // From the recipient on, what a server says or how long it is silent may be the
            // recipient's doing.
            Err(SessionError::Refused(error)) => {
                self.keep(line);
                Err(self.refused(&error, to).with_scope(FaultScope::Recipient))
            }
            // The connection is dropped: whatever the server says now is not heard by the next
            // message.
            Err(SessionError::Before(scope)) => {
                let refusal = self.codes.judge("smtp", "connect").with_scope(scope);
                Err(refusal.with_detail("broken off before the message"))
            }
            Err(SessionError::After(word)) => {
                let refusal = self
                    .codes
                    .judge("smtp", word)
                    .with_scope(FaultScope::Recipient);
                Err(refusal.with_detail("no answer after the message"))
            }
        }
    }

    async fn line(&self, until: tokio::time::Instant) -> Result<SmtpConnection, ProviderRefusal> {
        while let Some(line) = self.idle.take() {
            let mut line = SmtpConnection { until, ..line };
            match tokio::time::timeout(self.config.timeouts.connect, line.command("RSET\r\n")).await
            {
                Ok(Ok(Ok(_))) => return Ok(line),
                Ok(_) => {}
                // The others may be as silent: there is time for a new one.
                Err(_) => break,
            }
        }
        match tokio::time::timeout_at(until, self.connect(until)).await {
            Ok(connected) => connected,
            Err(_) => Err(self
                .codes
                .judge("smtp", "connect")
                .with_detail("no connection in time")),
        }
    }

    async fn connect(
        &self,
        until: tokio::time::Instant,
    ) -> Result<SmtpConnection, ProviderRefusal> {
        let timeouts = self.config.timeouts;
        let hello = ClientId::Domain(self.config.hello.clone());
        let server = (self.config.host.as_str(), self.config.port);
        let implicit = self.tls.clone().filter(|_| self.config.tls == TlsMode::Tls);
        let refused = |error: &lettre::transport::smtp::Error| self.unreachable(error);
        let mut connection = AsyncSmtpConnection::connect_tokio1(
            server,
            Some(timeouts.connect),
            &hello,
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
                    .judge("smtp", "tls")
                    .with_detail("the server does not offer STARTTLS"));
            }
            connection
                .starttls(tls, &hello)
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
        // lettre reads the server's extensions and keeps those that it knows; DSN is none of them,
        // so we ask again.
        let mut line = SmtpConnection {
            connection,
            dsn: false,
            until,
        };
        let offered = line.command(Ehlo::new(hello)).await;
        let offers = |response: &Response| {
            response
                .message()
                .any(|line| line.eq_ignore_ascii_case("DSN"))
        };
        line.dsn = offered
            .ok()
            .and_then(Result::ok)
            .is_some_and(|response| offers(&response));
        Ok(line)
    }

    fn keep(&self, line: SmtpConnection) {
        if !line.connection.has_broken() {
            self.idle.put(line, self.config.connections);
        }
    }

    /// No recipient was named yet: what the server refuses for good, it refuses to us and not to
    /// the message.
    fn turned_away(&self, error: &lettre::transport::smtp::Error, code: &str) -> ProviderRefusal {
        let mut refusal = self.codes.judge("smtp", &code_of(error));
        if refusal.class == FailureClass::Permanent {
            refusal = self.codes.judge("smtp", code);
        }
        refusal
            .with_scope(FaultScope::Provider)
            .with_detail(text_of(error))
    }

    fn unreachable(&self, error: &lettre::transport::smtp::Error) -> ProviderRefusal {
        match error.status() {
            Some(_) => self.turned_away(error, "turned_away"),
            None if error.is_tls() || is_no_trust(error) => {
                self.codes.judge("smtp", "tls").with_detail("TLS failed")
            }
            None if error.is_client() => self
                .codes
                .judge("smtp", "tls")
                .with_detail("the server lacks what the configuration requires"),
            None => self
                .codes
                .judge("smtp", "connect")
                .with_detail("cannot connect"),
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
                .judge("smtp", "broken")
                .with_detail("the answer is not SMTP");
        }
        // The address stands in many servers' words; it does not go into the history.
        let detail = text_of(error).replace(to.as_str(), "<recipient>");
        self.codes
            .judge("smtp", &code_of(error))
            .with_detail(detail)
    }
}

async fn converse(
    line: &mut SmtpConnection,
    envelope_id: String,
    (mail, bytes): (&lettre::Message, &[u8]),
    dot: Duration,
) -> Result<Response, SessionError> {
    let envelope = mail.envelope();
    let sender = envelope.from().cloned();
    let about_mail = if line.dsn {
        report_under(envelope_id)
    } else {
        Vec::new()
    };
    step(line.command(Mail::new(sender, about_mail)).await).map_err(|broken| match broken {
        SessionError::Refused(error) => SessionError::SenderRefused(error),
        SessionError::Before(_) => SessionError::Before(FaultScope::Provider),
        SessionError::SenderRefused(_) | SessionError::After(_) => broken,
    })?;
    for to in envelope.to() {
        let about_recipient = if line.dsn {
            report_trouble(to)
        } else {
            Vec::new()
        };
        step(line.command(Rcpt::new(to.clone(), about_recipient)).await)?;
    }
    step(line.command(Data).await)?;
    match tokio::time::timeout(dot, line.connection.message(bytes)).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) if error.status().is_some() => Err(SessionError::Refused(error)),
        Ok(Err(_)) => Err(SessionError::After("broken")),
        Err(_) => Err(SessionError::After("timeout")),
    }
}

/// A report names the envelope and holds the head of the message alone (RFC 3461 sections 4.3 and
/// 4.4).
fn report_under(envelope_id: String) -> Vec<MailParameter> {
    let other = |keyword: &str, value: String| MailParameter::Other {
        keyword: keyword.to_owned(),
        value: Some(value),
    };
    vec![other("RET", "HDRS".to_owned()), other("ENVID", envelope_id)]
}

/// A report comes when the message is late or lost, to the sender's address (RFC 3461 sections 4.1
/// and 4.2).
fn report_trouble(to: &lettre::Address) -> Vec<RcptParameter> {
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

fn step(answer: CommandResult) -> Result<(), SessionError> {
    match answer {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if error.status().is_some() => Err(SessionError::Refused(error)),
        Ok(Err(_)) | Err(_) => Err(SessionError::Before(FaultScope::Recipient)),
    }
}

impl SmtpConnection {
    async fn command(&mut self, verb: impl std::fmt::Display) -> CommandResult {
        tokio::time::timeout_at(self.until, self.connection.command(verb)).await
    }
}

/// Whether the conversation was broken off because what came was no TLS that we trust: lettre calls
/// that a matter of the connection, and rustls wraps it so.
fn is_no_trust(error: &lettre::transport::smtp::Error) -> bool {
    std::iter::successors(std::error::Error::source(error), |&cause| cause.source())
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::InvalidData)
}

/// Reply code and the server's words.
fn text_of(error: &lettre::transport::smtp::Error) -> String {
    let number = error
        .status()
        .map(|code| code.to_string())
        .unwrap_or_default();
    let words = std::error::Error::source(error)
        .map(ToString::to_string)
        .unwrap_or_default();
    format!("{number} {words}").trim().to_owned()
}

/// Reply code and, where the server gives one, enhanced status code: `550 5.1.1`.
fn code_of(error: &lettre::transport::smtp::Error) -> String {
    let number = error
        .status()
        .map(|code| code.to_string())
        .unwrap_or_default();
    let words = std::error::Error::source(error)
        .map(ToString::to_string)
        .unwrap_or_default();
    let enhanced = words.split_whitespace().next().filter(|word| {
        word.split('.').count() == 3
            && word
                .split('.')
                .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    });
    enhanced.map_or_else(|| number.clone(), |enhanced| format!("{number} {enhanced}"))
}

fn words_of(response: &Response) -> String {
    let words: Vec<&str> = response.message().collect();
    format!("{} {}", response.code(), words.join(" "))
        .trim()
        .to_owned()
}

// === impl IdlePool ===

impl IdlePool {
    fn take(&self) -> Option<SmtpConnection> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((line, since)) = idle.pop_back() {
            if since.elapsed() < MAX_IDLE_TIME {
                return Some(line);
            }
        }
        None
    }

    fn put(&self, line: SmtpConnection, most: usize) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < most {
            idle.push_back((line, Instant::now()));
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
