//! The state machine of an SMTP session (RFC 5321), without I/O: bytes in, actions out.

use bytes::{Buf, BytesMut};

use super::mailbox::MailEnvelope;

/// Maximum size of a message in bytes, announced by SIZE (RFC 1870).
pub(super) const MAX_MESSAGE_BYTES: usize = 25 << 20;

/// Maximum length of a command line in bytes with its CRLF: RFC 5321 requires 512, and more for
/// extension parameters.
const MAX_COMMAND_BYTES: usize = 2048;

/// Bytes of an incomplete line that are buffered before they are processed.
const MAX_PARTIAL_LINE_BYTES: usize = 8192;

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
    data: Option<MessageData>,
    overlong: bool,
}

/// The state of a message transfer after DATA.
#[derive(Debug)]
struct MessageData {
    message: Vec<u8>,
    at_line_start: bool,
    bare_line_end: bool,
    too_large: bool,
}

type CommandResult = Result<String, String>;

// === impl SmtpSession ===

impl SmtpSession {
    /// Consumes the next complete command or message from `input`. Returns `None` if more bytes are
    /// needed. Further pipelined commands (RFC 2920) stay in `input`.
    pub(super) fn next(&mut self, input: &mut BytesMut) -> Option<SessionAction> {
        if self.data.is_some() {
            return self.consume_data(input);
        }
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
            self.overlong |= input.len() > MAX_COMMAND_BYTES;
            if self.overlong {
                input.clear();
            }
            return None;
        };
        let line = input.split_to(end + 1);
        let reply = if std::mem::take(&mut self.overlong) || line.len() > MAX_COMMAND_BYTES {
            Err("500 5.5.6 Line too long".to_owned())
        } else {
            self.read_line(&line)
        };
        Some(reply_action(reply))
    }

    fn read_line(&mut self, line: &[u8]) -> CommandResult {
        let Some(line) = line
            .strip_suffix(b"\r\n")
            .filter(|line| !line.contains(&b'\r'))
        else {
            return Err("500 5.5.2 Lines end with CRLF".to_owned());
        };
        let line =
            std::str::from_utf8(line).map_err(|_| "500 5.5.2 Commands are UTF-8".to_owned())?;
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        self.command(&verb.to_ascii_uppercase(), rest)
    }

    fn command(&mut self, verb: &str, rest: &str) -> CommandResult {
        match verb {
            "EHLO" => self.hello(rest, true),
            "HELO" => self.hello(rest, false),
            "MAIL" => self.mail(rest),
            "RCPT" => self.recipient(rest),
            "DATA" if rest.is_empty() => self.start_data(),
            "RSET" if rest.is_empty() => {
                self.envelope = None;
                ok("250 2.0.0 Ok")
            }
            "NOOP" => ok("250 2.0.0 Ok"),
            "QUIT" if rest.is_empty() => ok("221 2.0.0 Bye"),
            "DATA" | "RSET" | "QUIT" => reject("501 5.5.4 Wrong argument"),
            "AUTH" | "STARTTLS" | "VRFY" => reject("502 5.5.1 Not supported"),
            // HTTP from a browser that was tricked into connecting: close, so that no part of the
            // request is taken for a command.
            "GET" | "POST" | "PUT" | "HEAD" | "OPTIONS" | "DELETE" => {
                ok("221 2.7.0 This is not HTTP")
            }
            _ => reject("500 5.5.2 Unknown command"),
        }
    }

    fn hello(&mut self, name: &str, extended: bool) -> CommandResult {
        if name.trim().is_empty() {
            return reject("501 5.5.4 Host name required");
        }
        self.greeted = true;
        self.envelope = None;
        if !extended {
            return ok("250 Postern mail catcher");
        }
        Ok(format!(
            "250-Postern mail catcher\r\n250-PIPELINING\r\n250-SIZE {MAX_MESSAGE_BYTES}\r\n250-8BITMIME\r\n\
             250-SMTPUTF8\r\n250 ENHANCEDSTATUSCODES"
        ))
    }

    fn mail(&mut self, rest: &str) -> CommandResult {
        if !self.greeted {
            return reject("503 5.5.1 EHLO first");
        }
        if self.envelope.is_some() {
            return reject("503 5.5.1 Nested MAIL command");
        }
        let Some((sender, parameters)) = path_after(rest, "FROM:") else {
            return reject("501 5.1.7 MAIL FROM:<address>");
        };
        let mut parameters = parameters.split_ascii_whitespace();
        let size = parameters.find_map(|parameter| parameter.strip_prefix("SIZE="));
        match size.map(str::parse::<usize>) {
            None | Some(Ok(..=MAX_MESSAGE_BYTES)) => {}
            Some(Ok(_)) => return reject("552 5.3.4 Message too large"),
            Some(Err(_)) => return reject("501 5.5.4 SIZE must be a number"),
        }
        self.envelope = Some(MailEnvelope {
            sender: sender.to_owned(),
            recipients: Vec::new(),
        });
        ok("250 2.1.0 Ok")
    }

    fn recipient(&mut self, rest: &str) -> CommandResult {
        let Some(envelope) = &mut self.envelope else {
            return reject("503 5.5.1 MAIL first");
        };
        let path = path_after(rest, "TO:");
        let Some((address, _)) = path.filter(|(address, _)| address.contains('@')) else {
            return reject("501 5.1.3 RCPT TO:<address>");
        };
        if envelope.recipients.len() >= MAX_RECIPIENTS {
            return reject("452 4.5.3 Too many recipients");
        }
        // Two domains that simulate failures; `.invalid` never exists (RFC 2606).
        match address.rsplit_once('@') {
            Some((_, "bounce.invalid")) => return reject("550 5.1.1 No such mailbox"),
            Some((_, "busy.invalid")) => return reject("451 4.2.1 Mailbox busy, try again"),
            _ => {}
        }
        envelope.recipients.push(address.to_owned());
        ok("250 2.1.5 Ok")
    }

    fn start_data(&mut self) -> CommandResult {
        match &self.envelope {
            None => reject("503 5.5.1 MAIL first"),
            Some(envelope) if envelope.recipients.is_empty() => {
                reject("554 5.5.1 No valid recipients")
            }
            Some(_) => {
                self.data = Some(MessageData::new());
                ok("354 End with <CRLF>.<CRLF>")
            }
        }
    }

    fn consume_data(&mut self, input: &mut BytesMut) -> Option<SessionAction> {
        if !self.data.as_mut()?.consume(input) {
            return None;
        }
        let data = self.data.take()?;
        let envelope = self.envelope.take()?;
        if data.too_large {
            return Some(reply_action(reject("552 5.3.4 Message too large")));
        }
        // Servers interpret a bare CR or LF differently, which permits SMTP smuggling.
        if data.bare_line_end {
            return Some(reply_action(reject("550 5.6.11 Lines end with CRLF")));
        }
        Some(SessionAction::Store(envelope, data.message))
    }
}

fn reply_action(reply: CommandResult) -> SessionAction {
    let text = reply.unwrap_or_else(|refusal| refusal);
    if text.starts_with("221 ") {
        SessionAction::Close(text)
    } else {
        SessionAction::Reply(text)
    }
}

fn ok(text: &str) -> CommandResult {
    Ok(text.to_owned())
}

fn reject(text: &str) -> CommandResult {
    Err(text.to_owned())
}

/// Returns the address and the parameters of `FROM:<address> parameters` (RFC 5321 section 4.1.2).
fn path_after<'a>(text: &'a str, keyword: &str) -> Option<(&'a str, &'a str)> {
    let (head, rest) = text.split_at_checked(keyword.len())?;
    let path = rest.trim_start_matches(' ').strip_prefix('<')?;
    let (address, parameters) = path.rsplit_once('>')?;
    let is_valid = head.eq_ignore_ascii_case(keyword)
        && address.len() <= MAX_ADDRESS_BYTES
        && !address.chars().any(char::is_control);
    is_valid.then_some((address, parameters))
}

// === impl MessageData ===

impl MessageData {
    fn new() -> Self {
        Self {
            message: Vec::new(),
            at_line_start: true,
            bare_line_end: false,
            too_large: false,
        }
    }

    /// Consumes complete lines. Returns true after the terminating dot.
    fn consume(&mut self, input: &mut BytesMut) -> bool {
        while !input.is_empty() {
            let end = match input.iter().position(|byte| *byte == b'\n') {
                Some(end) => end + 1,
                // A long line is consumed in parts, except for its last byte, which may be the CR
                // of a CRLF.
                None if input.len() > MAX_PARTIAL_LINE_BYTES => input.len() - 1,
                None => return false,
            };
            let last = self.at_line_start && input[..end] == *b".\r\n";
            if !last {
                self.push(&input[..end]);
            }
            input.advance(end);
            if last {
                return true;
            }
        }
        false
    }

    fn push(&mut self, piece: &[u8]) {
        let stuffed = self.at_line_start && piece.first() == Some(&b'.');
        let body = piece.strip_suffix(b"\r\n").unwrap_or(piece);
        self.at_line_start = body.len() < piece.len();
        self.bare_line_end |= body.contains(&b'\r') || body.contains(&b'\n');
        let piece = &piece[usize::from(stuffed)..];
        if self.message.len() + piece.len() > MAX_MESSAGE_BYTES {
            self.too_large = true;
            self.message = Vec::new();
        }
        if !self.too_large {
            self.message.extend_from_slice(piece);
        }
    }
}

#[cfg(test)]
mod tests;
