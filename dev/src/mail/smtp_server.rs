//! The SMTP server of the mail catcher (RFC 5321).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use postern_service::accept::serve_connections;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::mailbox::{MailEnvelope, Mailbox};

/// Maximum number of connections; further ones wait to be accepted. With the message size limit,
/// this bounds memory.
const MAX_CONNECTIONS: usize = 256;

/// Time for which a client may send nothing or read nothing (RFC 5321 section 4.5.3.2 recommends
/// five minutes).
const CLIENT_TIMEOUT: Duration = Duration::from_secs(300);

/// Time for which a shutdown waits for open sessions.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

const MAX_MESSAGE_BYTES: usize = 25 << 20;

/// Maximum length of a line in bytes. RFC 5321 requires 512 for commands and 1000 for messages, and
/// programs send longer ones.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Maximum bytes of an address: 64 for the local part, `@`, 255 for the domain (RFC 5321 section
/// 4.5.3.1).
const MAX_ADDRESS_BYTES: usize = 320;

/// Maximum number of recipients of a message; the RFC requires at least 100.
const MAX_RECIPIENTS: usize = 100;

/// The answer to EHLO. The size is that of [`MAX_MESSAGE_BYTES`] (RFC 1870).
const EXTENSIONS: &str = "250-Postern mail catcher\r\n250-PIPELINING\r\n250-SIZE 26214400\r\n\
    250-8BITMIME\r\n250-SMTPUTF8\r\n250 ENHANCEDSTATUSCODES";

struct Session<'a, S> {
    stream: BufReader<S>,
    mailbox: &'a Mailbox,
    shutdown: &'a CancellationToken,
    greeted: bool,
    envelope: Option<MailEnvelope>,
}

pub(crate) async fn serve(
    listener: TcpListener,
    mailbox: Arc<Mailbox>,
    shutdown: CancellationToken,
) {
    let serve = |stream, _peer| {
        let (mailbox, shutdown) = (Arc::clone(&mailbox), shutdown.clone());
        async move {
            if let Err(error) = Session::new(stream, &mailbox, &shutdown).run().await {
                tracing::debug!(%error, "smtp session failed");
            }
        }
    };
    serve_connections(listener, MAX_CONNECTIONS, DRAIN_TIMEOUT, &shutdown, serve).await;
}

// === impl Session ===

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Session<'a, S> {
    fn new(stream: S, mailbox: &'a Mailbox, shutdown: &'a CancellationToken) -> Self {
        Self {
            stream: BufReader::new(stream),
            mailbox,
            shutdown,
            greeted: false,
            envelope: None,
        }
    }

    async fn run(mut self) -> io::Result<()> {
        self.reply("220 127.0.0.1 ESMTP Postern mail catcher")
            .await?;
        while let Some(line) = self.line().await? {
            if !self.command(&String::from_utf8_lossy(&line)).await? {
                break;
            }
        }
        Ok(())
    }

    async fn reply(&mut self, text: &str) -> io::Result<()> {
        let text = format!("{text}\r\n");
        let sent = timeout(CLIENT_TIMEOUT, self.stream.write_all(text.as_bytes()));
        sent.await.map_err(io::Error::from)?
    }

    /// Reads a line. Returns `None` at the end of the session.
    async fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let mut limited = (&mut self.stream).take(MAX_LINE_BYTES);
        let read = timeout(CLIENT_TIMEOUT, limited.read_until(b'\n', &mut line));
        let read = tokio::select! {
            () = self.shutdown.cancelled() => Err("421 4.3.2 Shutting down"),
            read = read => match read {
                Ok(read) => Ok(read?),
                Err(_) => Err("421 4.4.2 Timeout"),
            },
        };
        let last = match read {
            Err(last) => last,
            Ok(read) if read as u64 == MAX_LINE_BYTES => "500 5.5.6 Line too long",
            Ok(_) if !line.ends_with(b"\n") => return Ok(None),
            // Servers interpret a bare CR or LF differently, which permits SMTP smuggling.
            Ok(_) => match line.strip_suffix(b"\r\n") {
                Some(text) if !text.contains(&b'\r') => return Ok(Some(text.to_vec())),
                Some(_) | None => "550 5.6.11 Lines end with CRLF",
            },
        };
        self.reply(last).await?;
        Ok(None)
    }

    /// Executes a command. Returns whether the session goes on.
    async fn command(&mut self, line: &str) -> io::Result<bool> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let answer = match verb.to_ascii_uppercase().as_str() {
            "EHLO" | "HELO" if rest.trim().is_empty() => "501 5.5.4 Host name required",
            verb @ ("EHLO" | "HELO") => {
                (self.greeted, self.envelope) = (true, None);
                match verb {
                    "EHLO" => EXTENSIONS,
                    _ => "250 Postern mail catcher",
                }
            }
            "MAIL" => self.mail(rest),
            "RCPT" => self.recipient(rest),
            "DATA" => match self.envelope.take_if(|it| !it.recipients.is_empty()) {
                Some(envelope) => return self.receive(envelope).await,
                None if self.envelope.is_some() => "554 5.5.1 No valid recipients",
                None => "503 5.5.1 MAIL first",
            },
            "RSET" => {
                self.envelope = None;
                "250 2.0.0 Ok"
            }
            "NOOP" => "250 2.0.0 Ok",
            "AUTH" | "STARTTLS" | "VRFY" => "502 5.5.1 Not supported",
            "QUIT" => {
                self.reply("221 2.0.0 Bye").await?;
                return Ok(false);
            }
            // HTTP from a browser that was tricked into connecting: close, so that no part of the
            // request is taken for a command.
            "GET" | "POST" | "PUT" | "HEAD" | "OPTIONS" | "DELETE" => {
                self.reply("221 2.7.0 This is not HTTP").await?;
                return Ok(false);
            }
            _ => "500 5.5.2 Unknown command",
        };
        self.reply(answer).await?;
        Ok(true)
    }

    fn mail(&mut self, rest: &str) -> &'static str {
        if !self.greeted {
            return "503 5.5.1 EHLO first";
        }
        if self.envelope.is_some() {
            return "503 5.5.1 Nested MAIL command";
        }
        let Some(sender) = path_after(rest, "FROM:") else {
            return "501 5.1.7 MAIL FROM:<address>";
        };
        self.envelope = Some(MailEnvelope {
            sender: sender.to_owned(),
            recipients: Vec::new(),
        });
        "250 2.1.0 Ok"
    }

    fn recipient(&mut self, rest: &str) -> &'static str {
        let Some(envelope) = &mut self.envelope else {
            return "503 5.5.1 MAIL first";
        };
        let path = path_after(rest, "TO:");
        let Some(address) = path.filter(|address| address.contains('@')) else {
            return "501 5.1.3 RCPT TO:<address>";
        };
        if envelope.recipients.len() >= MAX_RECIPIENTS {
            return "452 4.5.3 Too many recipients";
        }
        // Two domains that simulate failures; `.invalid` never exists (RFC 2606).
        match address.rsplit_once('@') {
            Some((_, "bounce.invalid")) => return "550 5.1.1 No such mailbox",
            Some((_, "busy.invalid")) => return "451 4.2.1 Mailbox busy, try again",
            _ => {}
        }
        envelope.recipients.push(address.to_owned());
        "250 2.1.5 Ok"
    }

    /// Receives and stores a message. Returns whether the session goes on.
    async fn receive(&mut self, envelope: MailEnvelope) -> io::Result<bool> {
        self.reply("354 End with <CRLF>.<CRLF>").await?;
        let mut message = Vec::new();
        loop {
            let Some(line) = self.line().await? else {
                return Ok(false);
            };
            if line == b"." {
                break;
            }
            message.extend_from_slice(line.strip_prefix(b".").unwrap_or(&line));
            message.extend_from_slice(b"\r\n");
            if message.len() > MAX_MESSAGE_BYTES {
                self.reply("552 5.3.4 Message too large").await?;
                return Ok(false);
            }
        }
        let answer = match self.mailbox.store(envelope, message).await {
            Ok(id) => format!("250 2.0.0 Ok {id}"),
            Err(error) => {
                tracing::error!(%error, "mail storage failed");
                "451 4.3.0 Cannot store the message now".to_owned()
            }
        };
        self.reply(&answer).await?;
        Ok(true)
    }
}

/// Returns the address of `FROM:<address> parameters` (RFC 5321 section 4.1.2).
fn path_after<'a>(text: &'a str, keyword: &str) -> Option<&'a str> {
    let (head, rest) = text.split_at_checked(keyword.len())?;
    let path = rest.trim_start_matches(' ').strip_prefix('<')?;
    let (address, _parameters) = path.rsplit_once('>')?;
    let is_valid = head.eq_ignore_ascii_case(keyword)
        && address.len() <= MAX_ADDRESS_BYTES
        && !address.chars().any(char::is_control);
    is_valid.then_some(address)
}

#[cfg(test)]
mod tests {
    use super::super::mailbox::tests::open;
    use super::*;

    const START: &str = "EHLO me\r\nMAIL FROM:<a@b.test>\r\nRCPT TO:<c@d.test>\r\nDATA\r\n";

    /// Sends a text, in pieces of some bytes, and returns the codes of the replies.
    async fn codes(mailbox: &Mailbox, text: &[u8], piece: usize) -> String {
        let (mut client, server) = tokio::io::duplex(piece);
        let shutdown = CancellationToken::new();
        let session = Session::new(server, mailbox, &shutdown);
        let mut answer = Vec::new();
        let conversation = async {
            let (mut reader, mut writer) = tokio::io::split(&mut client);
            let sending = async {
                let _closed = writer.write_all(text).await;
                let _closed = writer.shutdown().await;
            };
            tokio::join!(sending, reader.read_to_end(&mut answer)).1
        };
        let (served, read) = tokio::join!(session.run(), conversation);
        served.expect("served");
        read.expect("read");
        let answer = String::from_utf8(answer).expect("text");
        let last = answer.lines().filter(|line| line.as_bytes()[3] == b' ');
        last.map(|line| &line[..3]).collect::<Vec<_>>().join(" ")
    }

    #[tokio::test]
    async fn pipelined_commands_are_answered_and_messages_stored() {
        let (mailbox, _folder) = open().await;
        let text = format!(
            "{START}..\r\n...a\r\n.b\r\na.b\r\n.\r\nMAIL FROM:<>\r\nRCPT TO:<e@f.test>\r\nDATA\r\n.\r\n\
             RSET\r\nNOOP\r\nVRFY a\r\nQUIT\r\nNOOP\r\n"
        );
        // Packet boundaries do not matter.
        for piece in [1, 1 << 16] {
            let expected = "220 250 250 250 354 250 250 250 354 250 250 250 502 221";
            assert_eq!(codes(&mailbox, text.as_bytes(), piece).await, expected);
        }
        let stored = mailbox.list(Some("c@d.test")).await.expect("listed");
        assert_eq!((stored.len(), stored[0].sender.as_str()), (2, "a@b.test"));
        let message = mailbox.get(&stored[0].id).await.expect("read");
        let (_, message) = message.expect("stored");
        assert_eq!(message, b".\r\n..a\r\nb\r\na.b\r\n");
    }

    #[tokio::test]
    async fn malformed_or_misordered_commands_are_rejected() {
        let (mailbox, _folder) = open().await;
        let commands =
            b"MAIL FROM:<a@b>\r\nEHLO\r\nEHLO me\r\nRCPT TO:<a@b>\r\nDATA\r\nMAIL FROM:a@b\r\n\
            MAIL FROM:<a@b>\r\nMAIL FROM:<a@b>\r\nRCPT TO:<>\r\nRCPT TO:<a@bounce.invalid>\r\n\
            RCPT TO:<a@busy.invalid>\r\nDATA\r\nWHAT\r\n";
        let expected = "220 503 501 250 503 503 501 250 503 501 550 451 554 500";
        assert_eq!(codes(&mailbox, commands, 1 << 16).await, expected);
    }

    #[tokio::test]
    async fn unreadable_line_and_http_end_the_session() {
        let (mailbox, _folder) = open().await;
        let line_bytes = usize::try_from(MAX_LINE_BYTES).expect("small");
        let line = format!("{}\r\n", "x".repeat(line_bytes - 3));
        let too_large = format!("{START}{}", line.repeat(MAX_MESSAGE_BYTES / line.len() + 1));
        for (text, expected) in [
            (b"NOOP\nNOOP\r\n".to_vec(), "220 550"),
            (vec![b'x'; line_bytes + 1], "220 500"),
            (b"POST / HTTP/1.1\r\nNOOP\r\n".to_vec(), "220 221"),
            (too_large.into_bytes(), "220 250 250 250 354 552"),
        ] {
            assert_eq!(codes(&mailbox, &text, 4 << 20).await, expected);
        }
        for smuggled in [
            "a\n.\r\nNOOP\r\n.\r\n",
            "a\r\n.\nb\r\n.\r\n",
            "a\rb\r\n.\r\n",
        ] {
            let text = format!("{START}{smuggled}");
            let expected = "220 250 250 250 354 550";
            assert_eq!(codes(&mailbox, text.as_bytes(), 1 << 16).await, expected);
        }
        assert!(mailbox.list(None).await.expect("listed").is_empty());
    }

    #[tokio::test]
    async fn shutdown_ends_the_session() {
        let (mailbox, _folder) = open().await;
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        let served = Session::new(server, &mailbox, &shutdown).run().await;
        served.expect("served");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("read");
        assert!(answer.contains("\r\n421 "), "{answer}");
    }
}
