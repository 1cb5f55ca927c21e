//! E-mail by SMTP (RFC 5321), over lettre's connections.
//!
//! We speak the verbs ourselves, so that it is known where a conversation broke: before the final dot nothing was
//! handed over and the attempt can be repeated; after it the outcome is ambiguous until the server answers. A
//! connection whose conversation broke off is closed, never used again.

mod message;

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lettre::transport::smtp::authentication::{Credentials, DEFAULT_MECHANISMS};
use lettre::transport::smtp::client::{AsyncSmtpConnection, Certificate, TlsParameters};
use lettre::transport::smtp::commands::{Data, Mail, Rcpt};
use lettre::transport::smtp::extension::ClientId;
use lettre::transport::smtp::response::Response;
use postern_common::Secret;

use super::{Codes, Message, Refusal, Taken};
use crate::address::{Address, EmailAddress};
use crate::template::Content;

/// How a mail server is reached.
#[derive(Clone, Debug)]
pub struct SmtpConfig {
    /// Host name or address.
    pub host: String,
    /// Port: 587 for STARTTLS, 465 for TLS from the start.
    pub port: u16,
    /// How the conversation is protected. Nothing is allowed only on loopback.
    pub tls: TlsMode,
    /// Certificates that are trusted besides the public ones, in PEM.
    pub ca_pem: Option<Vec<u8>>,
    /// User name and password.
    pub credentials: Option<(String, Secret)>,
    /// The sender: address and name.
    pub from: (EmailAddress, String),
    /// What `EHLO` says. Default: the domain of the sender.
    pub hello: String,
    /// Connections that are kept at most.
    pub connections: usize,
    /// Where one-click unsubscriptions go (RFC 8058); the notification's id is put behind it.
    pub unsubscribe_url: Option<url::Url>,
}

/// How a conversation is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// `STARTTLS`, required.
    StartTls,
    /// TLS from the first byte.
    Tls,
    /// Nothing.
    None,
}

/// A mail server with its connections.
pub struct Smtp {
    config: SmtpConfig,
    tls: Option<TlsParameters>,
    codes: Codes,
    idle: Idle,
}

struct Idle(Mutex<VecDeque<(AsyncSmtpConnection, Instant)>>);

/// A connection is not used again after it was idle for so long: servers close theirs after some minutes.
const MAX_IDLE: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(10);
/// Deadline of one command (RFC 5321 section 4.5.3.2 allows minutes; a queue with repeats need not wait for them).
const COMMAND: Duration = Duration::from_secs(30);
/// Deadline of the answer to the final dot: the server may be checking the message.
const DOT: Duration = Duration::from_secs(60);

/// Where a conversation broke.
enum Broken {
    /// Before the final dot: nothing was handed over.
    Before,
    /// The server said no; the conversation can go on.
    Refused(lettre::transport::smtp::Error),
    /// After the final dot: the server may have taken it.
    After(&'static str),
}

// === impl Smtp ===

impl Smtp {
    /// A server; no connection is made yet.
    ///
    /// # Errors
    /// The certificates cannot be read.
    pub fn new(config: SmtpConfig, codes: Codes) -> Result<Self, String> {
        let tls = match config.tls {
            TlsMode::None => None,
            TlsMode::StartTls | TlsMode::Tls => {
                let mut builder = TlsParameters::builder(config.host.clone());
                if let Some(pem) = &config.ca_pem {
                    let certificate = Certificate::from_pem(pem).map_err(|error| error.to_string())?;
                    builder = builder.add_root_certificate(certificate);
                }
                Some(builder.build().map_err(|error| error.to_string())?)
            }
        };
        Ok(Self { config, tls, codes, idle: Idle(Mutex::default()) })
    }

    pub(super) async fn send(&self, message: &Message<'_>) -> Result<Taken, Refusal> {
        let (Address::Email(to), Content::Email { subject, text, html }) = (message.to, message.content)
        else {
            return Err(Refusal::unfit());
        };
        let words = message::Words { subject, text, html: html.as_deref() };
        let mail = message::build(&self.config, message, to, &words).map_err(|error| {
            Refusal { code: "message_not_buildable".to_owned(), ..Refusal::unfit() }.with_detail(error)
        })?;
        let bytes = mail.formatted();
        let mut connection = self.connection().await?;
        match converse(&mut connection, &mail, &bytes).await {
            Ok(response) => {
                self.keep(connection);
                Ok(Taken { detail: Some(line(&response)) })
            }
            Err(Broken::Refused(error)) => {
                let refusal = self.refused(&error, to);
                if command(&mut connection, "RSET\r\n").await.is_ok() {
                    self.keep(connection);
                }
                Err(refusal)
            }
            // The connection is dropped: whatever the server says now is not heard by the next message.
            Err(Broken::Before) => {
                Err(self.codes.judge("smtp", "connect").with_detail("broken off before the message"))
            }
            Err(Broken::After(word)) => {
                Err(self.codes.judge("smtp", word).with_detail("no answer after the message"))
            }
        }
    }

    async fn connection(&self) -> Result<AsyncSmtpConnection, Refusal> {
        while let Some(mut connection) = self.idle.take() {
            if command(&mut connection, "RSET\r\n").await.is_ok() {
                return Ok(connection);
            }
        }
        match tokio::time::timeout(CONNECT + COMMAND, self.connect()).await {
            Ok(connected) => connected,
            Err(_) => Err(self.codes.judge("smtp", "connect").with_detail("no connection in time")),
        }
    }

    async fn connect(&self) -> Result<AsyncSmtpConnection, Refusal> {
        let hello = ClientId::Domain(self.config.hello.clone());
        let server = (self.config.host.as_str(), self.config.port);
        let implicit = self.tls.clone().filter(|_| self.config.tls == TlsMode::Tls);
        let refused = |error: &lettre::transport::smtp::Error| self.unreachable(error);
        let mut connection =
            AsyncSmtpConnection::connect_tokio1(server, Some(CONNECT), &hello, implicit, None)
                .await
                .map_err(|error| refused(&error))?;
        if let Some(tls) = self.tls.clone().filter(|_| self.config.tls == TlsMode::StartTls) {
            if !connection.can_starttls() {
                return Err(self
                    .codes
                    .judge("smtp", "tls")
                    .with_detail("the server does not offer STARTTLS"));
            }
            connection.starttls(tls, &hello).await.map_err(|error| refused(&error))?;
        }
        if let Some((user, password)) = &self.config.credentials {
            let credentials = Credentials::new(user.clone(), password.expose().to_owned());
            connection.auth(DEFAULT_MECHANISMS, &credentials).await.map_err(|error| refused(&error))?;
        }
        Ok(connection)
    }

    fn keep(&self, connection: AsyncSmtpConnection) {
        if !connection.has_broken() {
            self.idle.put(connection, self.config.connections);
        }
    }

    /// No message was begun.
    fn unreachable(&self, error: &lettre::transport::smtp::Error) -> Refusal {
        match error.status() {
            Some(_) => self.codes.judge("smtp", &code_of(error)).with_detail(code_of(error)),
            None if error.is_tls() => self.codes.judge("smtp", "tls").with_detail("TLS failed"),
            None if error.is_client() => self
                .codes
                .judge("smtp", "tls")
                .with_detail("the server lacks what the configuration requires"),
            None => self.codes.judge("smtp", "connect").with_detail("cannot connect"),
        }
    }

    fn refused(&self, error: &lettre::transport::smtp::Error, to: &EmailAddress) -> Refusal {
        if error.status().is_none() {
            return self.codes.judge("smtp", "broken").with_detail("the answer is not SMTP");
        }
        let words = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        let number = error.status().map(|code| code.to_string()).unwrap_or_default();
        // The address stands in many servers' words; it does not go into the history.
        let detail = format!("{number} {words}").replace(to.as_str(), "<recipient>");
        self.codes.judge("smtp", &code_of(error)).with_detail(detail)
    }
}

async fn converse(
    connection: &mut AsyncSmtpConnection,
    mail: &lettre::Message,
    bytes: &[u8],
) -> Result<Response, Broken> {
    let envelope = mail.envelope();
    let sender = envelope.from().cloned();
    step(command(connection, Mail::new(sender, Vec::new())).await)?;
    for to in envelope.to() {
        step(command(connection, Rcpt::new(to.clone(), Vec::new())).await)?;
    }
    step(command(connection, Data).await)?;
    match tokio::time::timeout(DOT, connection.message(bytes)).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) if error.status().is_some() => Err(Broken::Refused(error)),
        Ok(Err(_)) => Err(Broken::After("broken")),
        Err(_) => Err(Broken::After("timeout")),
    }
}

type Answer = Result<Result<Response, lettre::transport::smtp::Error>, tokio::time::error::Elapsed>;

fn step(answer: Answer) -> Result<(), Broken> {
    match answer {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if error.status().is_some() => Err(Broken::Refused(error)),
        Ok(Err(_)) | Err(_) => Err(Broken::Before),
    }
}

async fn command(connection: &mut AsyncSmtpConnection, verb: impl std::fmt::Display) -> Answer {
    tokio::time::timeout(COMMAND, connection.command(verb)).await
}

/// Reply code and, where the server gives one, enhanced status code: `550 5.1.1`.
fn code_of(error: &lettre::transport::smtp::Error) -> String {
    let number = error.status().map(|code| code.to_string()).unwrap_or_default();
    let words = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let enhanced = words.split_whitespace().next().filter(|word| {
        word.split('.').count() == 3
            && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
    });
    enhanced.map_or_else(|| number.clone(), |enhanced| format!("{number} {enhanced}"))
}

fn line(response: &Response) -> String {
    let words: Vec<&str> = response.message().collect();
    format!("{} {}", response.code(), words.join(" ")).trim().to_owned()
}

// === impl Idle ===

impl Idle {
    fn take(&self) -> Option<AsyncSmtpConnection> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((connection, since)) = idle.pop_back() {
            if since.elapsed() < MAX_IDLE {
                return Some(connection);
            }
        }
        None
    }

    fn put(&self, connection: AsyncSmtpConnection, most: usize) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < most {
            idle.push_back((connection, Instant::now()));
        }
    }
}

impl std::fmt::Debug for Smtp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Smtp").field("host", &self.config.host).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
