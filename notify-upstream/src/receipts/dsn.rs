//! Delivery status notifications (DSN): messages from a mail server about failed or delayed
//! delivery (RFC 3464, in a `multipart/report` of RFC 6522; RFC 6533 for addresses beyond ASCII).
//!
//! They are not signed, and notification identifiers are not secret. A report is accepted only with
//! the token that this service put into the envelope, as its identifier (`ENVID`) or in the return
//! path ([`mail_token`](crate::delivery::mail_token)), and only for the address that the message
//! was sent to.

use mail_parser::{DateTime, Message, MessageParser, MessagePart, MimeHeaders};
use postern_common::clock::Timestamp;
use sha2::{Digest, Sha256};

use crate::address::{AddressHash, hash};
use crate::delivery::mail_token::{MailTokens, TokenClaim, TokenPurpose};
use crate::delivery::provider::ErrorCodeTable;
use crate::delivery::report::ProviderReport;
use crate::notification::NotificationId;
use crate::receipts::webhook::without_address;
use crate::store::row::ReceiptKind;

/// Provider name of these reports in events.
pub(crate) const PROVIDER: &str = "dsn";

/// Maximum number of recipients read from one report. Each message has one recipient, and an alias
/// expands to a few.
const MAX_RECIPIENTS: usize = 8;
/// Maximum number of tokens checked for one message.
const MAX_CLAIMS: usize = 4;

/// A delivery status notification that has not been verified.
#[derive(Clone, Debug)]
pub(crate) struct DeliveryReport {
    claims: Vec<TokenClaim>,
    recipients: Vec<RecipientReport>,
}

/// The report for one recipient.
#[derive(Clone, Debug)]
struct RecipientReport {
    report: ProviderReport,
    /// Addresses in the report: the original recipient and the one that it was forwarded to.
    addresses: Vec<AddressHash>,
}

/// Parses a message. Returns `None` if it is not a delivery status notification or has no token.
#[must_use]
pub(crate) fn read(mail: &[u8], codes: &ErrorCodeTable, now: Timestamp) -> Option<DeliveryReport> {
    let mail = MessageParser::new().parse(mail)?;
    let is_status = |part: &&MessagePart<'_>| {
        is_type(
            part,
            "message",
            &["delivery-status", "global-delivery-status"],
        )
    };
    let status = mail
        .parts
        .iter()
        .find(is_status)
        .map(MessagePart::contents)?;
    let text = String::from_utf8_lossy(status).replace("\r\n", "\n");
    let mut groups = text.split("\n\n").filter(|group| !group.trim().is_empty());
    let message_fields = groups.next().and_then(FieldGroup::read)?;
    let envelope = message_fields
        .get("Original-Envelope-Id")
        .and_then(|id| TokenClaim::parse(&id));
    let mut claims: Vec<TokenClaim> = envelope.into_iter().chain(return_paths(&mail)).collect();
    claims.truncate(MAX_CLAIMS);
    let first_id = claims.first()?.id.to_string();
    let fingerprint = hex::encode(
        Sha256::new()
            .chain_update(first_id)
            .chain_update(status)
            .finalize(),
    );
    let recipient_fields = groups
        .take(MAX_RECIPIENTS)
        .filter_map(FieldGroup::read)
        .enumerate();
    let recipients = recipient_fields
        .filter_map(|(number, fields)| {
            report(&fields, format!("{fingerprint}-{number}"), codes, now)
        })
        .collect();
    Some(DeliveryReport { claims, recipients })
}

/// Returns the tokens of the addresses that the report was sent to. The header that contains them
/// depends on the receiving mail server. The headers need no authentication, because the tokens are
/// verified.
fn return_paths(mail: &Message<'_>) -> Vec<TokenClaim> {
    let names = ["To", "Delivered-To", "X-Original-To", "Envelope-To"];
    let values = names.into_iter().filter_map(|name| mail.header_raw(name));
    let candidates = values.flat_map(|value| value.split([',', ' ', '\t', '\r', '\n', '<', '>']));
    candidates
        .filter_map(TokenClaim::from_return_path)
        .take(MAX_CLAIMS)
        .collect()
}

// === impl DeliveryReport ===

impl DeliveryReport {
    /// Returns the notifications of the tokens that this service issued.
    #[must_use]
    pub(crate) fn notification_ids(&self, tokens: &MailTokens) -> Vec<NotificationId> {
        let is_issued =
            |claim: &&TokenClaim| tokens.has_issued(TokenPurpose::DeliveryReport, **claim);
        self.claims
            .iter()
            .filter(is_issued)
            .map(|claim| claim.id)
            .collect()
    }

    /// Returns the reports if a token is valid for an address in them, or for an address that
    /// `known` returns for the notification. Otherwise returns none.
    pub(crate) fn verified_reports(
        self,
        tokens: &MailTokens,
        known: impl Fn(NotificationId) -> Vec<AddressHash>,
    ) -> Vec<ProviderReport> {
        let named: Vec<AddressHash> = self
            .recipients
            .iter()
            .flat_map(|recipient| recipient.addresses.iter().copied())
            .collect();
        let proven = self.claims.iter().find_map(|claim| {
            let mut addresses = named.iter().copied().chain(known(claim.id));
            let is_ours =
                |hash: &AddressHash| tokens.verify(TokenPurpose::DeliveryReport, *claim, hash);
            Some((claim.id, addresses.find(is_ours)?))
        });
        let Some((id, address)) = proven else {
            return Vec::new();
        };
        let verified = |RecipientReport { report, .. }: RecipientReport| ProviderReport {
            id: Some(id),
            dead_address: report.dead_address.filter(|dead| hash(dead) == address),
            ..report
        };
        self.recipients.into_iter().map(verified).collect()
    }
}

fn is_type(part: &MessagePart<'_>, kind: &str, subtypes: &[&str]) -> bool {
    part.content_type().is_some_and(|found| {
        let subtype = found.subtype().unwrap_or_default();
        found.ctype().eq_ignore_ascii_case(kind)
            && subtypes
                .iter()
                .any(|known| known.eq_ignore_ascii_case(subtype))
    })
}

/// Parses the fields of one recipient (RFC 3464 section 2.3).
fn report(
    fields: &FieldGroup<'_>,
    event_id: String,
    codes: &ErrorCodeTable,
    now: Timestamp,
) -> Option<RecipientReport> {
    let status = fields.get("Status").unwrap_or_default();
    let permanent = status.starts_with('5');
    let kind = match fields.get("Action")?.to_ascii_lowercase().as_str() {
        "failed" if permanent => ReceiptKind::Bounced,
        "failed" => ReceiptKind::Failed,
        "delayed" => ReceiptKind::Deferred,
        "delivered" => ReceiptKind::Delivered,
        // Relayed to a server that does not report, or expanded to the members of a list.
        "relayed" | "expanded" => ReceiptKind::Sent,
        _ => return None,
    };
    // The original recipient takes precedence over the one that it was forwarded to.
    let address = fields
        .address("Original-Recipient")
        .or_else(|| fields.address("Final-Recipient"));
    let diagnostic = fields
        .get("Diagnostic-Code")
        .map(|diagnostic| without_type(&diagnostic).to_owned());
    let classified = codes.classify("smtp", &code(diagnostic.as_deref(), &status));
    let failed = kind == ReceiptKind::Failed || kind == ReceiptKind::Bounced;
    let detail = [Some(status.as_str()), diagnostic.as_deref()]
        .into_iter()
        .flatten();
    let detail = detail
        .filter(|detail| !detail.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let final_recipient = fields.address("Final-Recipient");
    let at = fields
        .get("Last-Attempt-Date")
        .and_then(|date| DateTime::parse_rfc822(&date));
    let addresses = [address.as_deref(), final_recipient.as_deref()]
        .into_iter()
        .flatten()
        .map(hash)
        .collect();
    let report = ProviderReport {
        event_id,
        id: None,
        kind,
        at: at.map_or(now, |at| {
            Timestamp(at.to_timestamp().saturating_mul(1000)).min(now)
        }),
        code: failed.then(|| classified.code.clone()),
        detail: Some(without_address(
            &without_address(&detail, address.as_deref()),
            final_recipient.as_deref(),
        )),
        dead_address: address.filter(|_| kind == ReceiptKind::Bounced && classified.suppress),
    };
    Some(RecipientReport { report, addresses })
}

/// Returns the response in the form of an SMTP reply: the reply code, if the report quotes one, and
/// the enhanced status code.
fn code(diagnostic: Option<&str>, status: &str) -> String {
    let number = diagnostic.and_then(|diagnostic| diagnostic.split([' ', '-']).next());
    let number = number.filter(|number| {
        number.len() == 3
            && number.bytes().all(|byte| byte.is_ascii_digit())
            && number.get(..1) == status.get(..1)
    });
    let class = if status.starts_with('5') {
        "550"
    } else {
        "450"
    };
    format!("{} {status}", number.unwrap_or(class))
}

/// Returns the value after its type: `smtp; 550 5.1.1 …`, `rfc822; ada@example.com`.
fn without_type(value: &str) -> &str {
    value.split_once(';').map_or(value, |(_, rest)| rest).trim()
}

/// A group of fields, which has the syntax of a message header.
struct FieldGroup<'a>(Message<'a>);

// === impl FieldGroup ===

impl<'a> FieldGroup<'a> {
    fn read(group: &'a str) -> Option<Self> {
        MessageParser::new()
            .default_header_raw()
            .parse(group.trim_start().as_bytes())
            .map(Self)
    }

    /// Returns a field's value on one line.
    fn get(&self, name: &'static str) -> Option<String> {
        let value = self.0.header_raw(name)?;
        Some(value.split_whitespace().collect::<Vec<_>>().join(" "))
            .filter(|value| !value.is_empty())
    }

    fn address(&self, name: &'static str) -> Option<String> {
        let value = self.get(name)?;
        Some(without_type(&value).trim_matches(['<', '>']).to_owned())
            .filter(|address| !address.is_empty())
    }
}

#[cfg(test)]
mod tests;
