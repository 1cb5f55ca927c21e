//! Parsing of messages for display: headers (RFC 5322, RFC 2047) and bodies (RFC 2045,
//! RFC 2046).
//!
//! Parsing never fails. Undecodable content is shown as received; the raw message is available as
//! well.

use mail_parser::{HeaderName, MessageParser, MimeHeaders, PartType};
use serde::Serialize;

/// Maximum nesting of multiparts.
const MAX_DEPTH: usize = 8;

/// A parsed message.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ParsedMail {
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

/// Parses a message. Attached messages are left out.
pub(super) fn parse(message: &[u8]) -> ParsedMail {
    let parser = MessageParser::new()
        .with_mime_headers()
        .default_header_ignore();
    let mut mail = ParsedMail {
        headers: headers(message),
        ..ParsedMail::default()
    };
    let mut bodies = Vec::new();
    collect_bodies(message, MAX_DEPTH, &mut bodies);
    let parsed = bodies.into_iter().filter_map(|body| parser.parse(body));
    for part in parsed.flat_map(|mail| mail.parts) {
        if let (None, PartType::Text(text)) = (&mail.text, &part.body) {
            mail.text = Some(text.clone().into_owned());
        }
        if let (None, PartType::Html(html)) = (&mail.html, &part.body) {
            mail.html = Some(html.clone().into_owned());
        }
    }
    mail
}

/// Appends the parts that contain no others. The library nests attached messages without limit, so
/// that they are left out.
fn collect_bodies<'a>(entity: &'a [u8], depth: usize, bodies: &mut Vec<&'a [u8]>) {
    let head = MessageParser::new()
        .with_mime_headers()
        .parse_headers(entity);
    let kind = head.as_ref().and_then(|head| head.content_type());
    let boundary = kind.and_then(|kind| kind.attribute("boundary"));
    let name = kind.map(|kind| kind.ctype().to_ascii_lowercase());
    match name.as_deref() {
        Some("message") => {}
        Some("multipart") if depth == 0 => {}
        Some("multipart") => {
            let delimiter = format!("\n--{}", boundary.unwrap_or_default());
            let ends = entity.windows(delimiter.len()).enumerate();
            let ends = ends.filter(|(at, found)| {
                let next = entity.get(at + delimiter.len());
                *found == delimiter.as_bytes() && next.is_none_or(|next| b"\r\n- ".contains(next))
            });
            let ends: Vec<usize> = ends.map(|(at, _)| at).chain([entity.len()]).collect();
            for pair in ends.windows(2) {
                let part = &entity[pair[0] + delimiter.len()..pair[1]];
                let part = part.strip_suffix(b"\r").unwrap_or(part);
                if part.starts_with(b"--") {
                    break;
                }
                let line = part.iter().position(|byte| *byte == b'\n');
                collect_bodies(&part[line.map_or(0, |at| at + 1)..], depth - 1, bodies);
            }
        }
        _ => bodies.push(entity),
    }
}

#[cfg(test)]
mod tests;
