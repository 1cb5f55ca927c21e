//! The state machine of an SMTP session (RFC 5321), without I/O: bytes in, actions out.

use bytes::BytesMut;

use super::mailbox::MailEnvelope;

/// Maximum size of a message in bytes, announced by SIZE (RFC 1870).
pub(super) const MAX_MESSAGE_BYTES: usize = 25 << 20;

/// Maximum length of a line in bytes. RFC 5321 requires 512 for commands and 1000 for messages, and
/// programs send longer ones.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Maximum bytes of an address: 64 for the local part, `@`, 255 for the domain (RFC 5321 section
/// 4.5.3.1).
const MAX_ADDRESS_BYTES: usize = 320;

/// Maximum number of recipients of a message; the RFC requires at least 100.
const MAX_RECIPIENTS: usize = 100;

/// The next action of the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SessionAction {
    /// Send a reply.
    Reply(String),
    /// Store the message, then reply with the result.
    Store(MailEnvelope, Vec<u8>),
    /// Send a reply and close the connection.
    Close(String),
}

/// The state of a session.
#[derive(Debug, Default)]
pub(super) struct SmtpSession {
    greeted: bool,
    envelope: Option<MailEnvelope>,
    /// The message so far, after DATA.
    data: Option<Vec<u8>>,
}

// === impl SmtpSession ===

impl SmtpSession {
    /// Consumes the next complete command or message from `input`. Returns `None` if more bytes are
    /// needed. Further pipelined commands (RFC 2920) stay in `input`.
    pub(super) fn next(&mut self, input: &mut BytesMut) -> Option<SessionAction> {
        loop {
            let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
                let is_too_long = input.len() > MAX_LINE_BYTES;
                return is_too_long.then(|| close("500 5.5.6 Line too long"));
            };
            let line = input.split_to(end + 1);
            // Servers interpret a bare CR or LF differently, which permits SMTP smuggling.
            let line = line.strip_suffix(b"\r\n");
            let Some(line) = line.filter(|line| !line.contains(&b'\r')) else {
                return Some(close("550 5.6.11 Lines end with CRLF"));
            };
            if self.data.is_none() {
                return Some(self.read_command(line));
            }
            if let Some(action) = self.read_data(line) {
                return Some(action);
            }
        }
    }

    fn read_command(&mut self, line: &[u8]) -> SessionAction {
        let Ok(line) = std::str::from_utf8(line) else {
            return reply("500 5.5.2 Commands are UTF-8");
        };
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        self.command(&verb.to_ascii_uppercase(), rest)
    }

    /// Adds a line to the message, and returns the message after the terminating dot.
    fn read_data(&mut self, line: &[u8]) -> Option<SessionAction> {
        if line == b"." {
            return Some(SessionAction::Store(
                self.envelope.take()?,
                self.data.take()?,
            ));
        }
        let data = self.data.as_mut()?;
        data.extend_from_slice(line.strip_prefix(b".").unwrap_or(line));
        data.extend_from_slice(b"\r\n");
        (data.len() > MAX_MESSAGE_BYTES).then(|| close("552 5.3.4 Message too large"))
    }

    fn command(&mut self, verb: &str, rest: &str) -> SessionAction {
        match verb {
            "EHLO" => self.hello(rest, true),
            "HELO" => self.hello(rest, false),
            "MAIL" => self.mail(rest),
            "RCPT" => self.recipient(rest),
            "DATA" if rest.is_empty() => self.start_data(),
            "RSET" if rest.is_empty() => {
                self.envelope = None;
                reply("250 2.0.0 Ok")
            }
            "NOOP" => reply("250 2.0.0 Ok"),
            "QUIT" if rest.is_empty() => close("221 2.0.0 Bye"),
            "DATA" | "RSET" | "QUIT" => reply("501 5.5.4 Wrong argument"),
            "AUTH" | "STARTTLS" | "VRFY" => reply("502 5.5.1 Not supported"),
            // HTTP from a browser that was tricked into connecting: close, so that no part of the
            // request is taken for a command.
            "GET" | "POST" | "PUT" | "HEAD" | "OPTIONS" | "DELETE" => {
                close("221 2.7.0 This is not HTTP")
            }
            _ => reply("500 5.5.2 Unknown command"),
        }
    }

    fn hello(&mut self, name: &str, extended: bool) -> SessionAction {
        if name.trim().is_empty() {
            return reply("501 5.5.4 Host name required");
        }
        self.greeted = true;
        self.envelope = None;
        if !extended {
            return reply("250 Postern mail catcher");
        }
        SessionAction::Reply(format!(
            "250-Postern mail catcher\r\n250-PIPELINING\r\n250-SIZE {MAX_MESSAGE_BYTES}\r\n250-8BITMIME\r\n\
             250-SMTPUTF8\r\n250 ENHANCEDSTATUSCODES"
        ))
    }

    fn mail(&mut self, rest: &str) -> SessionAction {
        if !self.greeted {
            return reply("503 5.5.1 EHLO first");
        }
        if self.envelope.is_some() {
            return reply("503 5.5.1 Nested MAIL command");
        }
        let Some(sender) = path_after(rest, "FROM:") else {
            return reply("501 5.1.7 MAIL FROM:<address>");
        };
        self.envelope = Some(MailEnvelope {
            sender: sender.to_owned(),
            recipients: Vec::new(),
        });
        reply("250 2.1.0 Ok")
    }

    fn recipient(&mut self, rest: &str) -> SessionAction {
        let Some(envelope) = &mut self.envelope else {
            return reply("503 5.5.1 MAIL first");
        };
        let path = path_after(rest, "TO:");
        let Some(address) = path.filter(|address| address.contains('@')) else {
            return reply("501 5.1.3 RCPT TO:<address>");
        };
        if envelope.recipients.len() >= MAX_RECIPIENTS {
            return reply("452 4.5.3 Too many recipients");
        }
        // Two domains that simulate failures; `.invalid` never exists (RFC 2606).
        match address.rsplit_once('@') {
            Some((_, "bounce.invalid")) => return reply("550 5.1.1 No such mailbox"),
            Some((_, "busy.invalid")) => return reply("451 4.2.1 Mailbox busy, try again"),
            _ => {}
        }
        envelope.recipients.push(address.to_owned());
        reply("250 2.1.5 Ok")
    }

    fn start_data(&mut self) -> SessionAction {
        match &self.envelope {
            None => reply("503 5.5.1 MAIL first"),
            Some(envelope) if envelope.recipients.is_empty() => {
                reply("554 5.5.1 No valid recipients")
            }
            Some(_) => {
                self.data = Some(Vec::new());
                reply("354 End with <CRLF>.<CRLF>")
            }
        }
    }
}

fn reply(text: &str) -> SessionAction {
    SessionAction::Reply(text.to_owned())
}

fn close(text: &str) -> SessionAction {
    SessionAction::Close(text.to_owned())
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
mod tests;
