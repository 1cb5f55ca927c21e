//! Delivery status notifications: the mail that a mail server sends back when it cannot deliver, or is late
//! (RFC 3464, in a `multipart/report` of RFC 6522; RFC 6533 for addresses beyond ASCII).
//!
//! Nobody signs them. Whoever writes one must know the notification's id, of which 62 bits are random and which stands in
//! the mail alone; and an address is believed to be dead only if the notification went there, see
//! [`Suppression::believe`](crate::suppression::Suppression::believe).

use mail_parser::{DateTime, Message, MessageParser, MessagePart, MimeHeaders, PartType};
use postern_common::clock::Timestamp;
use sha2::{Digest, Sha256};

use crate::address::hex;
use crate::notification::NotificationId;
use crate::provider::Codes;
use crate::store::row::ReceiptKind;
use crate::webhook::{Report, id_in_message_id, without_address};

/// The name under which events tell of these reports.
pub const PROVIDER: &str = "dsn";

/// What a mail reports: one entry for each address that it speaks of; nothing if it is no delivery status notification.
/// An entry whose notification cannot be told has no id.
#[must_use]
pub fn read(mail: &[u8], codes: &Codes, now: Timestamp) -> Vec<Report> {
    let Some(mail) = MessageParser::new().parse(mail) else { return Vec::new() };
    let is_status =
        |part: &&MessagePart<'_>| is_type(part, "message", &["delivery-status", "global-delivery-status"]);
    let Some(status) = mail.parts.iter().find(is_status).map(MessagePart::contents) else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(status).replace("\r\n", "\n");
    let mut groups = text.split("\n\n").filter(|group| !group.trim().is_empty());
    let Some(about_mail) = groups.next().and_then(Fields::read) else { return Vec::new() };
    let id = about_mail
        .get("Original-Envelope-Id")
        .and_then(|id| NotificationId::parse(&id))
        .or_else(|| mail.parts.iter().find_map(id_of_returned));
    let own = id.map(|id| id.to_string()).unwrap_or_default();
    let print = hex(&Sha256::new().chain_update(own).chain_update(status).finalize());
    let about_recipients = groups.filter_map(Fields::read).enumerate();
    about_recipients
        .filter_map(|(number, fields)| report(&fields, id, format!("{print}-{number}"), codes, now))
        .collect()
}

fn is_type(part: &MessagePart<'_>, kind: &str, subtypes: &[&str]) -> bool {
    part.content_type().is_some_and(|found| {
        let subtype = found.subtype().unwrap_or_default();
        found.ctype().eq_ignore_ascii_case(kind)
            && subtypes.iter().any(|known| known.eq_ignore_ascii_case(subtype))
    })
}

/// Our id in the message that is returned, whole or its head alone, with the report.
fn id_of_returned(part: &MessagePart<'_>) -> Option<NotificationId> {
    match &part.body {
        PartType::Message(returned) => returned.message_id().and_then(id_in_message_id),
        PartType::Text(_) | PartType::Html(_) | PartType::Binary(_) | PartType::InlineBinary(_)
            if is_type(part, "text", &["rfc822-headers"])
                || is_type(part, "message", &["global-headers"]) =>
        {
            let head = MessageParser::new().parse(part.contents())?;
            head.message_id().and_then(id_in_message_id)
        }
        PartType::Text(_)
        | PartType::Html(_)
        | PartType::Binary(_)
        | PartType::InlineBinary(_)
        | PartType::Multipart(_) => None,
    }
}

/// What is said of one recipient (RFC 3464 section 2.3).
fn report(
    fields: &Fields<'_>,
    id: Option<NotificationId>,
    event_id: String,
    codes: &Codes,
    now: Timestamp,
) -> Option<Report> {
    let status = fields.get("Status").unwrap_or_default();
    let for_good = status.starts_with('5');
    let kind = match fields.get("Action")?.to_ascii_lowercase().as_str() {
        "failed" if for_good => ReceiptKind::Bounced,
        "failed" => ReceiptKind::Failed,
        "delayed" => ReceiptKind::Deferred,
        "delivered" => ReceiptKind::Delivered,
        // To a server that reports nothing, or to the members of a list.
        "relayed" | "expanded" => ReceiptKind::Sent,
        _ => return None,
    };
    // The address that we gave, before the one that it was forwarded to.
    let address = fields.address("Original-Recipient").or_else(|| fields.address("Final-Recipient"));
    let words = fields.get("Diagnostic-Code").map(|words| after_type(&words).to_owned());
    let judged = codes.judge("smtp", &code(words.as_deref(), &status));
    let failed = kind == ReceiptKind::Failed || kind == ReceiptKind::Bounced;
    let said = [Some(status.as_str()), words.as_deref()].into_iter().flatten();
    let said = said.filter(|said| !said.is_empty()).collect::<Vec<_>>().join(" ");
    let finally = fields.address("Final-Recipient");
    let at = fields.get("Last-Attempt-Date").and_then(|date| DateTime::parse_rfc822(&date));
    Some(Report {
        event_id,
        id,
        kind,
        at: at.map_or(now, |at| Timestamp(at.to_timestamp().saturating_mul(1000)).min(now)),
        code: failed.then(|| judged.code.clone()),
        detail: Some(without_address(&without_address(&said, address.as_deref()), finally.as_deref())),
        dead_address: address.filter(|_| kind == ReceiptKind::Bounced && judged.suppress),
    })
}

/// As a mail server would have said it to us: the reply code, where one is quoted, and the enhanced status code.
fn code(words: Option<&str>, status: &str) -> String {
    let number = words.and_then(|words| words.split([' ', '-']).next());
    let number = number.filter(|number| {
        number.len() == 3
            && number.bytes().all(|byte| byte.is_ascii_digit())
            && number.get(..1) == status.get(..1)
    });
    let class = if status.starts_with('5') { "550" } else { "450" };
    format!("{} {status}", number.unwrap_or(class))
}

/// What stands behind the type: `smtp; 550 5.1.1 …`, `rfc822; ada@example.com`.
fn after_type(value: &str) -> &str {
    value.split_once(';').map_or(value, |(_, rest)| rest).trim()
}

/// A group of fields: they are written like the head of a mail.
struct Fields<'a>(Message<'a>);

// === impl Fields ===

impl<'a> Fields<'a> {
    fn read(group: &'a str) -> Option<Self> {
        MessageParser::new().default_header_raw().parse(group.trim_start().as_bytes()).map(Self)
    }

    /// A field's value on one line.
    fn get(&self, name: &'static str) -> Option<String> {
        let value = self.0.header_raw(name)?;
        Some(value.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|value| !value.is_empty())
    }

    fn address(&self, name: &'static str) -> Option<String> {
        let value = self.get(name)?;
        Some(after_type(&value).trim_matches(['<', '>']).to_owned()).filter(|address| !address.is_empty())
    }
}

#[cfg(test)]
mod tests;
