//! Parsing of messages for display: headers (RFC 5322, RFC 2047), bodies, and attachments (RFC
//! 2045, RFC 2046).
//!
//! Parsing never fails, and is bounded in depth and number of parts. Undecodable content is shown
//! as received; the raw message is available as well.

use base64::Engine;
use base64::engine::general_purpose::GeneralPurpose;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use serde::Serialize;

use crate::web::header_parameters::{essence, parameter};

/// Maximum nesting depth; deeper parts are ignored.
const MAX_DEPTH: usize = 8;

/// Maximum number of parts; further ones are ignored.
const MAX_PARTS: usize = 100;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// A parsed message.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ParsedMail {
    /// Headers in order, unfolded and decoded.
    pub headers: Vec<(String, String)>,
    /// First plain text body.
    pub text: Option<String>,
    /// First HTML body.
    pub html: Option<String>,
    /// All other parts.
    pub attachments: Vec<AttachmentInfo>,
}

/// A part that is not shown as a body.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentInfo {
    /// File name given by the sender.
    pub file_name: Option<String>,
    /// Media type, such as `application/pdf`.
    pub content_type: String,
    /// Decoded size in bytes.
    pub size: usize,
}

/// Headers in order, unfolded, as sent.
#[derive(Debug)]
pub(super) struct MailHeaders(Vec<(String, String)>);

// === impl MailHeaders ===

impl MailHeaders {
    /// Returns the first value of a header, decoded.
    pub(super) fn first(&self, name: &str) -> Option<String> {
        self.all(name).next()
    }

    /// Returns all values of a header, decoded.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = String> {
        let matching = self
            .0
            .iter()
            .filter(move |(known, _)| known.eq_ignore_ascii_case(name));
        matching.map(|(_, value)| decode_words(value))
    }

    /// Returns the number of consecutive headers of this name after the first `skip` headers.
    pub(super) fn leading(&self, name: &str, skip: usize) -> usize {
        self.0
            .iter()
            .skip(skip)
            .take_while(|(known, _)| known.eq_ignore_ascii_case(name))
            .count()
    }
}

/// Parses the headers of a message or a part.
pub(super) fn headers(message: &[u8]) -> MailHeaders {
    let (head, _) = split_head(message);
    let text = String::from_utf8_lossy(head);
    let mut headers: Vec<(String, String)> = Vec::new();
    for line in text.split("\r\n") {
        match (line.starts_with([' ', '\t']), headers.last_mut()) {
            (true, Some((_, value))) => {
                value.push(' ');
                value.push_str(line.trim());
            }
            _ => {
                if let Some((name, value)) = line.split_once(':') {
                    headers.push((name.trim().to_owned(), value.trim().to_owned()));
                }
            }
        }
    }
    MailHeaders(headers)
}

/// Parses a message.
pub(super) fn parse(message: &[u8]) -> ParsedMail {
    let mut mail = ParsedMail::default();
    let mut budget = MAX_PARTS;
    let top = headers(message);
    parse_part(message, MAX_DEPTH, &mut budget, &mut mail);
    mail.headers = top
        .0
        .into_iter()
        .map(|(name, value)| (name, decode_words(&value)))
        .collect();
    mail
}

fn parse_part(part: &[u8], depth: usize, budget: &mut usize, mail: &mut ParsedMail) {
    if depth == 0 || *budget == 0 {
        return;
    }
    *budget -= 1;
    let headers = headers(part);
    let (_, body) = split_head(part);
    let content_type = headers
        .first("Content-Type")
        .unwrap_or_else(|| "text/plain".to_owned());
    let essence = essence(&content_type).to_ascii_lowercase();
    if let Some(boundary) =
        parameter(&content_type, "boundary").filter(|_| essence.starts_with("multipart/"))
    {
        for inner in split_parts(body, &boundary) {
            parse_part(inner, depth - 1, budget, mail);
        }
        return;
    }
    let bytes = decode_transfer(
        body,
        &headers
            .first("Content-Transfer-Encoding")
            .unwrap_or_default(),
    );
    let disposition = headers.first("Content-Disposition").unwrap_or_default();
    let attached = disposition.to_ascii_lowercase().starts_with("attachment");
    let charset = parameter(&content_type, "charset").unwrap_or_default();
    match essence.as_str() {
        "text/plain" if !attached && mail.text.is_none() => {
            mail.text = Some(decode_charset(&bytes, &charset));
        }
        "text/html" if !attached && mail.html.is_none() => {
            mail.html = Some(decode_charset(&bytes, &charset));
        }
        _ => mail.attachments.push(AttachmentInfo {
            file_name: parameter(&disposition, "filename")
                .or_else(|| parameter(&content_type, "name")),
            content_type: essence,
            size: bytes.len(),
        }),
    }
}

/// Splits a message into its head, with the last CRLF, and the body after the empty line.
fn split_head(message: &[u8]) -> (&[u8], &[u8]) {
    if let Some(body) = message.strip_prefix(b"\r\n") {
        return (&[], body);
    }
    match message.windows(4).position(|window| window == b"\r\n\r\n") {
        Some(at) => (&message[..at + 2], &message[at + 4..]),
        None => (message, &[]),
    }
}

/// Returns the parts between the delimiter lines.
fn split_parts<'a>(body: &'a [u8], boundary: &str) -> Vec<&'a [u8]> {
    let delimiter = format!("--{boundary}");
    let (mut parts, mut begin, mut at) = (Vec::new(), None, 0);
    while at < body.len() && parts.len() < MAX_PARTS {
        let end = body[at..]
            .windows(2)
            .position(|pair| pair == b"\r\n")
            .map_or(body.len(), |line| at + line + 2);
        if let Some(rest) = body[at..end].strip_prefix(delimiter.as_bytes()) {
            let rest = rest.trim_ascii();
            if rest.is_empty() || rest == b"--" {
                if let Some(begin) = begin {
                    parts.push(body[begin..at].strip_suffix(b"\r\n").unwrap_or_default());
                }
                begin = rest.is_empty().then_some(end);
            }
        }
        at = end;
    }
    if let Some(begin) = begin.filter(|begin| *begin < body.len()) {
        parts.push(&body[begin..]);
    }
    parts
}

fn decode_transfer(body: &[u8], encoding: &str) -> Vec<u8> {
    match encoding.trim().to_ascii_lowercase().as_str() {
        "base64" => {
            let compact: Vec<u8> = body
                .iter()
                .copied()
                .filter(|byte| !byte.is_ascii_whitespace())
                .collect();
            BASE64.decode(&compact).unwrap_or(compact)
        }
        "quoted-printable" => decode_quoted(body, false),
        _ => body.to_vec(),
    }
}

/// Decodes quoted-printable (RFC 2045 section 6.7), or the `Q` encoding of encoded words, in which
/// `_` is a space.
fn decode_quoted(text: &[u8], word: bool) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'=' if after.starts_with(b"\r\n") => rest = &after[2..],
            b'=' => match after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok()) {
                Some(hex) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                    bytes.extend(u8::from_str_radix(hex, 16).ok());
                    rest = &after[2..];
                }
                _ => bytes.push(b'='),
            },
            b'_' if word => bytes.push(b' '),
            other => bytes.push(*other),
        }
    }
    bytes
}

/// Decodes UTF-8 and Latin-1. Other charsets are decoded as UTF-8, lossily.
fn decode_charset(bytes: &[u8], charset: &str) -> String {
    match charset.to_ascii_lowercase().as_str() {
        "iso-8859-1" | "latin1" | "windows-1252" => bytes.iter().copied().map(char::from).collect(),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

/// Decodes encoded words (RFC 2047): `=?utf-8?b?…?=`. Adjacent words are joined before decoding,
/// because senders split characters between words; white space between them is removed.
fn decode_words(value: &str) -> String {
    let (mut text, mut pending, mut charset, mut rest) =
        (String::new(), Vec::new(), String::new(), value);
    while let Some(begin) = rest.find("=?") {
        let Some((word_charset, bytes, after)) = decode_word(&rest[begin + 2..]) else {
            flush(&mut text, &mut pending, &charset);
            text.push_str(&rest[..begin + 2]);
            rest = &rest[begin + 2..];
            continue;
        };
        let between = &rest[..begin];
        if pending.is_empty() || !between.trim().is_empty() || charset != word_charset {
            let joined = !pending.is_empty() && between.trim().is_empty();
            flush(&mut text, &mut pending, &charset);
            text.push_str(if joined { "" } else { between });
        }
        charset = word_charset;
        pending.extend(bytes);
        rest = after;
    }
    flush(&mut text, &mut pending, &charset);
    text.push_str(rest);
    text
}

fn flush(text: &mut String, pending: &mut Vec<u8>, charset: &str) {
    text.push_str(&decode_charset(&std::mem::take(pending), charset));
}

fn decode_word(text: &str) -> Option<(String, Vec<u8>, &str)> {
    let (charset, text) = text.split_once('?')?;
    let (encoding, text) = text.split_once('?')?;
    let (encoded, after) = text.split_once("?=")?;
    let bytes = match encoding {
        "b" | "B" => BASE64.decode(encoded).ok()?,
        "q" | "Q" => decode_quoted(encoded.as_bytes(), true),
        _ => return None,
    };
    Some((charset.to_ascii_lowercase(), bytes, after))
}

#[cfg(test)]
mod tests;
