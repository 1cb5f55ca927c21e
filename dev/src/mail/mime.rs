//! Parsing of messages for display: headers (RFC 5322, RFC 2047) and bodies (RFC 2045,
//! RFC 2046).
//!
//! Parsing never fails. Undecodable content is shown as received; the raw message is available as
//! well.

use mail_parser::{HeaderName, MessageParser, PartType};
use serde::Serialize;

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
}

/// Returns the headers of a message in order, unfolded and decoded.
pub(super) fn headers(message: &[u8]) -> Vec<(String, String)> {
    // A parser without any setting would not decode unknown headers.
    let parser = MessageParser::new()
        .header_text(HeaderName::Subject)
        .default_header_text();
    let Some(parsed) = parser.parse_headers(message) else {
        return Vec::new();
    };
    let name = |at: usize| message[at..].split(|byte| *byte == b':').next();
    let headers = parsed.headers().iter().map(|header| {
        let name = name(header.offset_field() as usize).unwrap_or_default();
        let value = header.value().as_text().unwrap_or_default();
        let name = String::from_utf8_lossy(name);
        (name.trim().to_owned(), value.to_owned())
    });
    headers.collect()
}

/// Parses a message.
pub(super) fn parse(message: &[u8]) -> ParsedMail {
    let parser = MessageParser::new()
        .with_mime_headers()
        .default_header_ignore();
    let mut mail = ParsedMail {
        headers: headers(message),
        ..ParsedMail::default()
    };
    for part in parser.parse(message).iter().flat_map(|mail| &mail.parts) {
        if let (None, PartType::Text(text)) = (&mail.text, &part.body) {
            mail.text = Some(text.clone().into_owned());
        }
        if let (None, PartType::Html(html)) = (&mail.html, &part.body) {
            mail.html = Some(html.clone().into_owned());
        }
    }
    mail
}

#[cfg(test)]
mod tests;
