//! One SMTP conversation (RFC 5321) without a socket: bytes go in, actions come out.

use bytes::{Buf, BytesMut};

use super::address;

/// Longest message in bytes, as announced by SIZE (RFC 1870).
pub(super) const MAX_MESSAGE: usize = 25 << 20;

/// Longest command line with its CRLF; 512 by RFC 5321, and more for the parameters of extensions.
const MAX_COMMAND: usize = 2048;

/// How much of a line without an end is kept back before it is passed on.
const MAX_PARTIAL: usize = 8192;

/// Recipients of one message; the RFC asks for at least 100.
const MAX_RECIPIENTS: usize = 100;

/// Commands that cannot be carried out before the connection is closed.
const MAX_ERRORS: u32 = 20;

/// What the server does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Sends this.
    Reply(String),
    /// Stores the message, then answers with the outcome.
    Store(Envelope, Vec<u8>),
    /// Sends this and closes.
    Close(String),
}

/// From whom to whom, as the SMTP client said it; the headers of the message may say something
/// else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Envelope {
    /// The reverse path; empty for a bounce.
    pub(super) sender: String,
    /// Every accepted recipient, in order.
    pub(super) recipients: Vec<String>,
}

/// The state of a conversation.
#[derive(Debug, Default)]
pub(super) struct Session {
    greeted: bool,
    envelope: Option<Envelope>,
    utf8: bool,
    data: Option<Data>,
    overlong: bool,
    errors: u32,
}

/// A message that is arriving.
#[derive(Debug)]
struct Data {
    message: Vec<u8>,
    at_line_start: bool,
    bare_line_end: bool,
    too_large: bool,
}

type Reply = Result<String, String>;

// === impl Session ===

impl Session {
    /// Takes the next whole step out of `input`; `None` when more bytes are needed. What follows a
    /// command in the same packet stays in `input`, so pipelining (RFC 2920) needs nothing else.
    pub(super) fn next(&mut self, input: &mut BytesMut) -> Option<Action> {
        if self.data.is_some() {
            return self.take_data(input);
        }
        let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
            self.overlong |= input.len() > MAX_COMMAND;
            if self.overlong {
                input.clear();
            }
            return None;
        };
        let line = input.split_to(end + 1);
        let reply = if std::mem::take(&mut self.overlong) || line.len() > MAX_COMMAND {
            Err("500 5.5.6 Line too long".to_owned())
        } else {
            self.read_line(&line)
        };
        Some(self.answer(reply))
    }

    fn answer(&mut self, reply: Reply) -> Action {
        match reply {
            Ok(text) if text.starts_with("221 ") => Action::Close(text),
            Ok(text) => Action::Reply(text),
            Err(text) => {
                self.errors += 1;
                match self.errors {
                    ..MAX_ERRORS => Action::Reply(text),
                    _ => Action::Close("421 4.7.0 Too many errors".to_owned()),
                }
            }
        }
    }

    fn read_line(&mut self, line: &[u8]) -> Reply {
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

    fn command(&mut self, verb: &str, rest: &str) -> Reply {
        match verb {
            "EHLO" => self.hello(rest, true),
            "HELO" => self.hello(rest, false),
            "MAIL" => self.mail(rest),
            "RCPT" => self.recipient(rest),
            "DATA" if rest.is_empty() => self.begin_data(),
            "RSET" if rest.is_empty() => {
                self.envelope = None;
                ok("250 2.0.0 Ok")
            }
            "NOOP" => ok("250 2.0.0 Ok"),
            "QUIT" if rest.is_empty() => ok("221 2.0.0 Bye"),
            "VRFY" if !rest.is_empty() => ok("252 2.5.0 Mail for anyone is taken here"),
            "HELP" => ok("214 2.0.0 EHLO HELO MAIL RCPT DATA RSET NOOP VRFY QUIT"),
            "DATA" | "RSET" | "QUIT" | "VRFY" => refuse("501 5.5.4 Wrong argument"),
            "EXPN" | "AUTH" | "STARTTLS" | "ETRN" => refuse("502 5.5.1 Not offered here"),
            // A browser that was talked into posting here: nothing of it may count as a command.
            "GET" | "POST" | "PUT" | "HEAD" | "OPTIONS" | "DELETE" => {
                ok("221 2.7.0 This is not HTTP")
            }
            _ => refuse("500 5.5.2 Unknown command"),
        }
    }

    fn hello(&mut self, name: &str, extended: bool) -> Reply {
        if name.trim().is_empty() {
            return refuse("501 5.5.4 Say who you are");
        }
        self.greeted = true;
        self.envelope = None;
        if !extended {
            return ok("250 Postern mail catcher");
        }
        Ok(format!(
            "250-Postern mail catcher\r\n250-PIPELINING\r\n250-SIZE {MAX_MESSAGE}\r\n250-8BITMIME\r\n\
             250-SMTPUTF8\r\n250 ENHANCEDSTATUSCODES"
        ))
    }

    fn mail(&mut self, rest: &str) -> Reply {
        if !self.greeted {
            return refuse("503 5.5.1 EHLO first");
        }
        if self.envelope.is_some() {
            return refuse("503 5.5.1 One MAIL a message");
        }
        let path = after(rest, "FROM:").and_then(address::parse);
        let Some(path) = path else {
            return refuse("501 5.1.7 MAIL FROM:<address>");
        };
        let mut utf8 = false;
        for parameter in &path.parameters {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match (
                key.to_ascii_uppercase().as_str(),
                value.to_ascii_uppercase().as_str(),
            ) {
                ("BODY", "7BIT" | "8BITMIME") => {}
                ("SMTPUTF8", "") => utf8 = true,
                ("SIZE", size) => match size.parse::<usize>() {
                    Ok(size) if size > MAX_MESSAGE => return refuse("552 5.3.4 Message too large"),
                    Ok(_) => {}
                    Err(_) => return refuse("501 5.5.4 SIZE is a number"),
                },
                _ => return refuse("555 5.5.4 Unknown parameter"),
            }
        }
        if !utf8 && !path.mailbox.is_ascii() {
            return refuse("553 5.6.7 This address needs SMTPUTF8");
        }
        self.utf8 = utf8;
        self.envelope = Some(Envelope {
            sender: path.mailbox.to_owned(),
            recipients: Vec::new(),
        });
        ok("250 2.1.0 Ok")
    }

    fn recipient(&mut self, rest: &str) -> Reply {
        let Some(envelope) = &mut self.envelope else {
            return refuse("503 5.5.1 MAIL first");
        };
        let path = after(rest, "TO:").and_then(address::parse);
        let Some(path) = path.filter(|path| !path.mailbox.is_empty()) else {
            return refuse("501 5.1.3 RCPT TO:<address>");
        };
        if !path.parameters.is_empty() {
            return refuse("555 5.5.4 Unknown parameter");
        }
        if !self.utf8 && !path.mailbox.is_ascii() {
            return refuse("553 5.6.7 This address needs SMTPUTF8");
        }
        if envelope.recipients.len() >= MAX_RECIPIENTS {
            return refuse("452 4.5.3 Too many recipients");
        }
        // Two domains to try failures with; `.invalid` never exists (RFC 2606).
        match path.mailbox.rsplit_once('@') {
            Some((_, "bounce.invalid")) => return refuse("550 5.1.1 No such mailbox"),
            Some((_, "busy.invalid")) => return refuse("451 4.2.1 Mailbox busy, try again"),
            _ => {}
        }
        envelope.recipients.push(path.mailbox.to_owned());
        ok("250 2.1.5 Ok")
    }

    fn begin_data(&mut self) -> Reply {
        match &self.envelope {
            None => refuse("503 5.5.1 MAIL first"),
            Some(envelope) if envelope.recipients.is_empty() => {
                refuse("554 5.5.1 No valid recipients")
            }
            Some(_) => {
                self.data = Some(Data::new());
                ok("354 End with <CRLF>.<CRLF>")
            }
        }
    }

    fn take_data(&mut self, input: &mut BytesMut) -> Option<Action> {
        if !self.data.as_mut()?.take(input) {
            return None;
        }
        let data = self.data.take()?;
        let envelope = self.envelope.take()?;
        if data.too_large {
            return Some(self.answer(refuse("552 5.3.4 Message too large")));
        }
        // A lone CR or LF means two things to two servers; such mail is how messages are smuggled.
        if data.bare_line_end {
            return Some(self.answer(refuse("550 5.6.11 Lines end with CRLF")));
        }
        Some(Action::Store(envelope, data.message))
    }
}

fn ok(text: &str) -> Reply {
    Ok(text.to_owned())
}

fn refuse(text: &str) -> Reply {
    Err(text.to_owned())
}

/// What follows a keyword, whatever its case.
fn after<'a>(text: &'a str, keyword: &str) -> Option<&'a str> {
    let head = text.get(..keyword.len())?;
    head.eq_ignore_ascii_case(keyword)
        .then(|| &text[keyword.len()..])
}

// === impl Data ===

impl Data {
    fn new() -> Self {
        Self {
            message: Vec::new(),
            at_line_start: true,
            bare_line_end: false,
            too_large: false,
        }
    }

    /// Takes lines until there is none left; true when the final dot was among them.
    fn take(&mut self, input: &mut BytesMut) -> bool {
        while !input.is_empty() {
            let end = match input.iter().position(|byte| *byte == b'\n') {
                Some(end) => end + 1,
                // A long line goes on in pieces; its last byte stays, for it may be half of a CRLF.
                None if input.len() > MAX_PARTIAL => input.len() - 1,
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
        if self.message.len() + piece.len() > MAX_MESSAGE {
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
