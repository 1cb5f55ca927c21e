//! The dialogue with a mail server (RFC 5321), its TLS (RFC 3207) and its authentication (RFC 4954).
//!
//! Replies are read as bytes and within bounds, and their code alone decides: the text may be
//! missing, or in any encoding.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use super::config::{SmtpConfig, TlsMode};

/// An open session with the extensions of the server.
pub(super) struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    /// The lines of the last reply to EHLO: a keyword and its parameters.
    extensions: Vec<String>,
    /// The deadline of everything up to the message.
    pub(super) deadline: Instant,
    /// Whether the connection has carried a message before.
    pub(super) is_reused: bool,
}

/// The reply of a server.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    code: u16,
    lines: Vec<String>,
}

/// The reason why a step of a session failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The server refused: the session can continue, unless the code is 421.
    Refused(Reply),
    /// The connection was lost, what arrived is no reply ([`BROKEN`]), or nothing arrived in time:
    /// the code in the table, and the reason.
    Lost(&'static str, String),
    /// There is no trusted TLS.
    Tls(String),
    /// The server offers no mechanism with a password.
    NoMechanism,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The code of a lost connection.
pub(super) const BROKEN: &str = "broken";
/// Maximum size of a line of a reply; RFC 5321 section 4.5.3.1.5 has 512.
const MAX_LINE_BYTES: u64 = 1 << 10;
/// Maximum number of lines of a reply, and maximum size.
const MAX_LINES: usize = 100;
const MAX_REPLY_BYTES: usize = 64 << 10;

// === impl Reply ===

impl Reply {
    /// Returns whether the server closes the connection.
    pub(super) fn closes(&self) -> bool {
        self.code == 421
    }

    pub(super) fn is_busy(&self) -> bool {
        (450..=452).contains(&self.code)
    }
}

impl std::fmt::Display for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.lines.join(" ");
        write!(f, "{}", format!("{} {text}", self.code).trim_end())
    }
}

impl Fault {
    fn broken(reason: impl Into<String>) -> Self {
        Self::Lost(BROKEN, reason.into())
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::broken(error.to_string())
    }
}

impl From<Elapsed> for Fault {
    fn from(_: Elapsed) -> Self {
        Self::Lost("timeout", "no answer in time".to_owned())
    }
}

// === impl Connection ===

impl Connection {
    /// Connects, and authenticates if there are credentials.
    pub(super) async fn open(
        config: &SmtpConfig,
        tls: Option<&TlsConnector>,
        deadline: Instant,
    ) -> Result<Self, Fault> {
        let socket = connect((&config.host, config.port), config.timeouts.connect).await?;
        let mut connection = Self {
            stream: BufReader::new(Box::new(socket)),
            extensions: Vec::new(),
            deadline,
            is_reused: false,
        };
        if let (Some(tls), TlsMode::Tls) = (tls, config.tls) {
            connection = connection.encrypt(tls, &config.host).await?;
        }
        timeout_at(deadline, connection.read()).await??;
        connection.hello(&config.ehlo_name).await?;
        if let (Some(tls), TlsMode::StartTls) = (tls, config.tls) {
            if !connection.offers("STARTTLS") {
                let reason = "the server does not offer STARTTLS".to_owned();
                return Err(Fault::Tls(reason));
            }
            connection.command("STARTTLS\r\n").await?;
            connection = connection.encrypt(tls, &config.host).await?;
            connection.hello(&config.ehlo_name).await?;
        }
        if let Some((user, password)) = &config.credentials {
            connection.authenticate(user, password.expose()).await?;
        }
        Ok(connection)
    }

    /// Sends a command, which ends with CRLF, and reads a positive reply to it.
    pub(super) async fn command(
        &mut self,
        command: impl std::fmt::Display,
    ) -> Result<Reply, Fault> {
        let deadline = self.deadline;
        self.exchange(command.to_string().as_bytes(), deadline)
            .await
    }

    /// Sends a command to which only this code is a positive reply.
    pub(super) async fn command_for(
        &mut self,
        code: u16,
        command: impl std::fmt::Display,
    ) -> Result<(), Fault> {
        let reply = self.command(command).await?;
        if reply.code == code {
            return Ok(());
        }
        Err(Fault::broken(format!("the answer is {reply}, not {code}")))
    }

    /// Sends the message after DATA, with transparency (RFC 5321 section 4.5.2).
    pub(super) async fn message(&mut self, mail: &[u8], limit: Duration) -> Result<Reply, Fault> {
        let mut data = Vec::with_capacity(mail.len() + 64);
        for line in mail.split_inclusive(|byte| *byte == b'\n') {
            data.extend(line.starts_with(b".").then_some(b'.'));
            data.extend(line);
        }
        data.extend(b"\r\n.\r\n");
        let reply = self.exchange(&data, Instant::now() + limit).await?;
        if reply.code < 300 {
            return Ok(reply);
        }
        Err(Fault::broken("the server asks for more after the message"))
    }

    /// Returns whether the server offers an extension.
    pub(super) fn offers(&self, keyword: &str) -> bool {
        let first = |line: &String| line.split([' ', '=']).next().map(str::to_ascii_uppercase);
        self.extensions
            .iter()
            .filter_map(first)
            .any(|word| word == keyword)
    }

    async fn hello(&mut self, name: &str) -> Result<(), Fault> {
        self.extensions = self.command(format!("EHLO {name}\r\n")).await?.lines;
        Ok(())
    }

    async fn authenticate(&mut self, user: &str, password: &str) -> Result<(), Fault> {
        // Old servers write `AUTH=LOGIN`.
        let is_auth = |line: &&String| line.to_ascii_uppercase().starts_with("AUTH");
        let offered = self.extensions.iter().filter(is_auth);
        let words = offered.flat_map(|line| line.split([' ', '=']).skip(1));
        let words: Vec<String> = words.map(str::to_ascii_uppercase).collect();
        let has = |name: &str| words.iter().any(|word| word == name);
        let steps = if has("PLAIN") {
            let secret = STANDARD.encode(format!("\0{user}\0{password}"));
            vec![(235, format!("AUTH PLAIN {secret}\r\n"))]
        } else if has("LOGIN") {
            let [user, password] = [user, password].map(|text| STANDARD.encode(text) + "\r\n");
            let login = "AUTH LOGIN\r\n".to_owned();
            vec![(334, login), (334, user), (235, password)]
        } else {
            return Err(Fault::NoMechanism);
        };
        for (code, step) in steps {
            self.command_for(code, step).await?;
        }
        Ok(())
    }

    async fn encrypt(self, tls: &TlsConnector, host: &str) -> Result<Self, Fault> {
        // Whatever the server sent after its reply to STARTTLS was not protected.
        if !self.stream.buffer().is_empty() {
            return Err(Fault::Tls("the server spoke before TLS began".to_owned()));
        }
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| Fault::Tls(error.to_string()))?;
        let handshake = tls.connect(name, self.stream.into_inner());
        let encrypted = timeout_at(self.deadline, handshake)
            .await?
            .map_err(|error| {
                if error.kind() == std::io::ErrorKind::InvalidData {
                    Fault::Tls(error.to_string())
                } else {
                    error.into()
                }
            })?;
        Ok(Self {
            stream: BufReader::new(Box::new(encrypted)),
            ..self
        })
    }

    async fn exchange(&mut self, bytes: &[u8], deadline: Instant) -> Result<Reply, Fault> {
        let exchanged = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await?;
            self.read().await
        };
        timeout_at(deadline, exchanged).await?
    }

    /// Reads a reply; the code of its last line decides.
    async fn read(&mut self) -> Result<Reply, Fault> {
        let (mut lines, mut size) = (Vec::new(), 0);
        while lines.len() < MAX_LINES && size < MAX_REPLY_BYTES {
            let mut line = Vec::new();
            let mut bounded = (&mut self.stream).take(MAX_LINE_BYTES);
            size += bounded.read_until(b'\n', &mut line).await?;
            if !line.ends_with(b"\n") {
                return Err(Fault::broken("the reply is cut off, or a line is too long"));
            }
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end();
            let code = line.get(..3).and_then(|code| code.parse().ok());
            let Some(code) = code.filter(|code| (200..600).contains(code)) else {
                return Err(Fault::broken("the answer is not SMTP"));
            };
            lines.push(line.get(4..).unwrap_or_default().to_owned());
            if line.as_bytes().get(3) != Some(&b'-') {
                let reply = Reply { code, lines };
                return if code < 400 {
                    Ok(reply)
                } else {
                    Err(Fault::Refused(reply))
                };
            }
        }
        Err(Fault::broken("the reply is too long"))
    }
}

/// Connects to the first address of the server that answers.
async fn connect(server: (&str, u16), limit: Duration) -> Result<TcpStream, Fault> {
    let mut fault = Fault::broken("the name has no address");
    for address in tokio::net::lookup_host(server).await? {
        match timeout(limit, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => fault = error.into(),
            Err(elapsed) => fault = elapsed.into(),
        }
    }
    Err(fault)
}

/// Returns a connector that trusts the public authorities and those of the configuration.
pub(super) fn connector(ca_pem: Option<&[u8]>) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    let public = roots.len();
    for certificate in ca_pem.into_iter().flat_map(CertificateDer::pem_slice_iter) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if ca_pem.is_some() && roots.len() == public {
        return Err("ca_file has no certificate in PEM".to_owned());
    }
    let config =
        ClientConfig::builder_with_provider(Arc::new(crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
