//! Parsing of messages for display: headers (RFC 5322, RFC 2047), bodies, and attachments (RFC
//! 2045, RFC 2046).
//!
//! Parsing never fails. Undecodable content is shown as received; the raw message is available as
//! well.

use mail_parser::{HeaderName, MessageParser, MessagePart, MimeHeaders, PartType};
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

/// The content of an attachment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Attachment {
    /// File name given by the sender.
    pub(super) file_name: Option<String>,
    /// Decoded content.
    pub(super) bytes: Vec<u8>,
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
    let mut mail = ParsedMail {
        headers: headers(message),
        ..ParsedMail::default()
    };
    read_parts(message, &mut mail, |_| {});
    mail
}

/// Returns the attachment at a position in [`ParsedMail::attachments`].
pub(super) fn attachment(message: &[u8], at: usize) -> Option<Attachment> {
    let mut attachments = Vec::new();
    read_parts(message, &mut ParsedMail::default(), |part| {
        attachments.push(Attachment {
            file_name: part.attachment_name().map(str::to_owned),
            bytes: part.contents().to_vec(),
        });
    });
    (at < attachments.len()).then(|| attachments.swap_remove(at))
}

/// Adds the bodies and attachments of a message to `mail`, and calls `on_attachment` for each
/// attachment.
fn read_parts(
    message: &[u8],
    mail: &mut ParsedMail,
    mut on_attachment: impl FnMut(&MessagePart<'_>),
) {
    let parser = MessageParser::new()
        .with_mime_headers()
        .default_header_ignore();
    for part in parser.parse(message).iter().flat_map(|mail| &mail.parts) {
        let attached = part
            .content_disposition()
            .is_some_and(|disposition| disposition.ctype() == "attachment");
        let content_type = media_type(part);
        match &part.body {
            PartType::Multipart(_) => {}
            PartType::Text(text)
                if !attached && mail.text.is_none() && content_type == "text/plain" =>
            {
                mail.text = Some(text.clone().into_owned());
            }
            PartType::Html(html) if !attached && mail.html.is_none() => {
                mail.html = Some(html.clone().into_owned());
            }
            PartType::Text(_)
            | PartType::Html(_)
            | PartType::Binary(_)
            | PartType::InlineBinary(_)
            | PartType::Message(_) => {
                on_attachment(part);
                mail.attachments.push(AttachmentInfo {
                    file_name: part.attachment_name().map(str::to_owned),
                    content_type,
                    size: part.len(),
                });
            }
        }
    }
}

/// Returns the media type of a part. The default is plain text (RFC 2045 section 5.2).
fn media_type(part: &MessagePart<'_>) -> String {
    let Some(media_type) = part.content_type() else {
        return "text/plain".to_owned();
    };
    let subtype = media_type.subtype().unwrap_or_default();
    format!("{}/{subtype}", media_type.ctype()).to_ascii_lowercase()
}

#[cfg(test)]
mod tests;
