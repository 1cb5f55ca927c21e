use std::time::{Duration, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lettre::address::Envelope;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, MultiPart, SinglePart};
use lettre::{Address, Message as Mail};
use postern_core::email::EmailAddress;

use super::SmtpConfig;
use crate::delivery::mail_token::TokenPurpose;
use crate::delivery::provider::OutgoingMessage;

/// Builds the message: one recipient, the same `Message-ID` for all attempts. Bodies are
/// encoded, so that no line of the content can end the message or start a header.
pub(super) fn build(
    config: &SmtpConfig,
    message: &OutgoingMessage<'_>,
    to: &EmailAddress,
    (subject, text, html): (&str, &str, Option<&str>),
) -> Result<Mail, String> {
    let (from, name) = &config.from;
    let name = (!name.is_empty()).then(|| name.clone());
    let domain = from.parts().1;
    let date = UNIX_EPOCH + Duration::from_millis(u64::try_from(message.sent_at.0).unwrap_or(0));
    let mut builder = Mail::builder()
        .from(Mailbox::new(name, address(from)?))
        .to(Mailbox::new(None, address(to)?))
        .envelope(envelope(config, message, to)?)
        .raw_header(subject_header(subject)?)
        .message_id(Some(format!("<{}@{domain}>", message.id)))
        .date(date)
        .raw_header(raw_header("Auto-Submitted", "auto-generated".to_owned())?);
    if let (true, Some(prefix), Some(tokens)) =
        (message.unsubscribe, &config.unsubscribe, &config.tokens)
    {
        let url = format!(
            "{prefix}{}",
            tokens.issue(TokenPurpose::Unsubscribe, message.id, &message.to.hash())
        );
        builder = builder
            .raw_header(raw_header("List-Unsubscribe", format!("<{url}>"))?)
            .raw_header(raw_header(
                "List-Unsubscribe-Post",
                "List-Unsubscribe=One-Click".to_owned(),
            )?);
    }
    let text = normalize_text(text);
    let mail = match html.map(normalize_text) {
        Some(html) => builder.multipart(MultiPart::alternative_plain_html(text, html)),
        None => builder.singlepart(SinglePart::plain(text)),
    };
    mail.map_err(|error| error.to_string())
}

/// Returns the envelope identifier for reports: the token that authenticates them, otherwise the
/// notification identifier.
pub(super) fn envelope_id(config: &SmtpConfig, message: &OutgoingMessage<'_>) -> String {
    report_token(config, message).unwrap_or_else(|| message.id.to_string())
}

fn report_token(config: &SmtpConfig, message: &OutgoingMessage<'_>) -> Option<String> {
    let tokens = config.tokens.as_ref()?;
    Some(tokens.issue(TokenPurpose::DeliveryReport, message.id, &message.to.hash()))
}

fn envelope(
    config: &SmtpConfig,
    message: &OutgoingMessage<'_>,
    to: &EmailAddress,
) -> Result<Envelope, String> {
    let from = match (&config.return_path, report_token(config, message)) {
        (Some(path), Some(token)) => {
            let (local, domain) = path.parts();
            Address::new(format!("{local}+{token}"), domain).map_err(|error| error.to_string())?
        }
        (Some(path), None) => address(path)?,
        (None, _) => address(&config.from.0)?,
    };
    Envelope::new(Some(from), vec![address(to)?]).map_err(|error| error.to_string())
}

fn address(address: &EmailAddress) -> Result<Address, String> {
    let (local, domain) = address.parts();
    Address::new(local, domain).map_err(|error| error.to_string())
}

fn raw_header(name: &'static str, value: String) -> Result<HeaderValue, String> {
    let name = HeaderName::new_from_ascii(name.to_owned()).map_err(|error| error.to_string())?;
    Ok(HeaderValue::new(name, value))
}

/// Returns the subject. Mail programs decode `=?…?=` wherever it stands (RFC 2047 section 5), so
/// that a text which contains it is encoded as a whole: what is shown is what was given.
fn subject_header(text: &str) -> Result<HeaderValue, String> {
    if !text.contains("=?") {
        return raw_header("Subject", text.to_owned());
    }
    let chars: Vec<char> = text.chars().collect();
    let word = |part: &[char]| {
        let part: String = part.iter().collect();
        format!("=?utf-8?b?{}?=", STANDARD.encode(part))
    };
    let words: Vec<String> = chars.chunks(CHARS_PER_WORD).map(word).collect();
    let encoded = words.join("\r\n ");
    let name = HeaderName::new_from_ascii_str("Subject");
    Ok(HeaderValue::dangerous_new_pre_encoded(
        name,
        text.to_owned(),
        encoded,
    ))
}

/// Characters of at most four bytes in an encoded word: a line has at most 76 characters (RFC 2047
/// section 2).
const CHARS_PER_WORD: usize = 9;

/// Converts all line endings to `\n` (the transport makes them CRLF) and removes characters
/// that are not text: a bare CR or a NUL in a variable must not have a meaning for any server.
fn normalize_text(text: &str) -> String {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    text.chars()
        .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
        .collect()
}
