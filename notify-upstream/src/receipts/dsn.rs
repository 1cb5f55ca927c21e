//! Mails about mails: delivery status notifications (DSN) of a mail server about failed or delayed
//! delivery (RFC 3464, in a `multipart/report` of RFC 6522; RFC 6533 for addresses beyond ASCII),
//! the older forms of qmail and Exim, and complaints of recipients (ARF, RFC 5965).
//!
//! They are not signed, and notification identifiers are not secret. A report is accepted only with
//! the token that this service put into the envelope, as its identifier (`ENVID`) or in the return
//! path ([`mail_token`](crate::delivery::mail_token)), and only for the address that the message
//! was sent to.

use mail_parser::{DateTime, Message, MessageParser, MimeHeaders};
use postern_core::clock::Timestamp;
use sha2::{Digest, Sha256};

use crate::address::{AddressHash, hash};
use crate::delivery::mail_token::{MailTokens, TokenClaim, TokenPurpose};
use crate::notification::NotificationId;
use crate::receipts::bounce::{is_objection, judge};
use crate::receipts::webhook::without_address;
use crate::store::ProviderReport;
use crate::store::row::ReceiptKind;

/// Provider name of these reports in events.
pub(crate) const PROVIDER: &str = "dsn";

/// Maximum number of recipients read from one report. Each message has one recipient, and an alias
/// expands to a few.
const MAX_RECIPIENTS: usize = 8;
/// Maximum number of tokens checked for one message.
const MAX_CLAIMS: usize = 4;
/// Maximum nesting of multiparts.
const MAX_DEPTH: usize = 4;

/// A report that has not been verified.
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
    /// Whether it is a complaint of the recipient.
    objects: bool,
}

/// Parses a message. Returns `None` if it is no report or has no token.
pub(crate) fn read(mail: &[u8], now: Timestamp) -> Option<DeliveryReport> {
    let mut parts = Vec::new();
    collect_parts(mail, MAX_DEPTH, &mut parts);
    let part = |subtypes: &[&str]| {
        let found = parts.iter().find(|part| is_type(part, "message", subtypes));
        found.map(|part| String::from_utf8_lossy(part.root_part().contents()).into_owned())
    };
    let status = part(&["delivery-status", "global-delivery-status"]);
    let complaint = part(&["feedback-report"]);
    let (text, groups) = match status.or(complaint) {
        Some(text) => (text.clone(), groups(&text)),
        None => {
            let text = parts.first()?.body_text(0)?.into_owned();
            let groups = plain_bounce(mail, &text);
            (text, groups)
        }
    };
    let claims = claims(&String::from_utf8_lossy(mail), &text);
    let first_id = claims.first()?.id.to_string();
    let fingerprint = Sha256::new().chain_update(first_id).chain_update(&text);
    let fingerprint = hex::encode(fingerprint.finalize());
    let recipients = groups.iter().filter_map(|fields| report(fields, now));
    let mut recipients: Vec<_> = recipients.take(MAX_RECIPIENTS).collect();
    for (number, recipient) in recipients.iter_mut().enumerate() {
        recipient.report.event_id = format!("{fingerprint}-{number}");
    }
    Some(DeliveryReport { claims, recipients })
}

/// Appends the parts of a message that contain no others. Attached messages are left out: the
/// library nests them without limit.
fn collect_parts<'a>(entity: &'a [u8], depth: usize, parts: &mut Vec<Message<'a>>) {
    let Some(head) = MessageParser::new().parse_headers(entity) else {
        return;
    };
    if is_type(&head, "message", &["rfc822", "global"]) {
        return;
    }
    let kind = head.content_type();
    let multipart = kind.filter(|kind| kind.ctype().eq_ignore_ascii_case("multipart"));
    match multipart.and_then(|kind| kind.attribute("boundary")) {
        None => parts.extend(MessageParser::new().parse(entity)),
        Some(_) if depth == 0 => {}
        Some(boundary) => {
            for part in split(entity, boundary) {
                collect_parts(part, depth - 1, parts);
            }
        }
    }
}

/// Returns the parts between the delimiter lines of a multipart (RFC 2046 section 5.1.1), of which
/// the last may be cut off.
fn split<'a>(entity: &'a [u8], boundary: &str) -> Vec<&'a [u8]> {
    let (mut parts, mut start, mut at) = (Vec::new(), None, 0);
    for line in entity.split_inclusive(|byte| *byte == b'\n') {
        let text = line.trim_ascii_end().strip_prefix(b"--");
        let rest = text.and_then(|text| text.strip_prefix(boundary.as_bytes()));
        if matches!(rest, Some(b"" | b"--")) {
            parts.extend(start.and_then(|start| entity.get(start..at)));
            start = (rest == Some(b"")).then_some(at + line.len());
        }
        at += line.len();
    }
    parts.extend(start.and_then(|start| entity.get(start..)));
    parts
}

/// Returns the tokens in a message and in its report, in the order of their appearance: those of
/// the addresses that the report was sent to come first. They need no authentication, because they
/// are verified.
fn claims(mail: &str, report: &str) -> Vec<TokenClaim> {
    let is_end = |c: char| c.is_whitespace() || "<>,;:\"".contains(c);
    let words = mail.split(is_end).chain(report.split(is_end));
    let mut claims = Vec::new();
    for word in words {
        let claim = TokenClaim::parse(word).or_else(|| TokenClaim::from_return_path(word));
        if let Some(claim) = claim.filter(|claim| !claims.contains(claim)) {
            claims.push(claim);
            if claims.len() == MAX_CLAIMS {
                break;
            }
        }
    }
    claims
}

/// Returns the recipients of a bounce without a status part: those of qmail (cr.yp.to/proto/qsbmf)
/// and of Exim, which names them in a header.
fn plain_bounce(mail: &[u8], text: &str) -> Vec<Fields> {
    let head = MessageParser::new().parse_headers(mail);
    let head = head.as_ref();
    let failed = head.and_then(|head| head.header_raw("X-Failed-Recipients"));
    let quoted = |line| str::trim(line).strip_prefix('<')?.strip_suffix(">:");
    let addresses: Vec<&str> = match failed {
        Some(list) => list.split(',').map(str::trim).collect(),
        None if text.trim_start().starts_with("Hi. This is the") => {
            text.lines().filter_map(quoted).collect()
        }
        None => Vec::new(),
    };
    let fields = |address: &str| {
        let name = |line: &str| line.trim().trim_matches(['<', '>', ':']).to_owned();
        let is_end = |line: &&str| !line.trim().is_empty() && !addresses.contains(&&*name(line));
        let lines = text.lines().skip_while(|line| name(line) != address);
        let words: Vec<&str> = lines.skip(1).take_while(is_end).map(str::trim).collect();
        [
            ("action", "failed".to_owned()),
            ("final-recipient", address.to_owned()),
            ("diagnostic-code", words.join(" ")),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    };
    addresses.iter().map(|address| fields(address)).collect()
}

impl DeliveryReport {
    /// Returns the notifications of the tokens that this service issued.
    pub(crate) fn notification_ids(&self, tokens: &MailTokens) -> Vec<NotificationId> {
        let is_issued =
            |claim: &&TokenClaim| tokens.has_issued(TokenPurpose::DeliveryReport, **claim);
        let issued = self.claims.iter().filter(is_issued);
        issued.map(|claim| claim.id).collect()
    }

    /// Returns the reports if a token is valid for an address in them, or for an address that
    /// `known` returns for the notification. Otherwise returns none.
    pub(crate) fn verified_reports(
        self,
        tokens: &MailTokens,
        known: impl Fn(NotificationId) -> Vec<AddressHash>,
    ) -> Vec<ProviderReport> {
        let named = || {
            self.recipients
                .iter()
                .flat_map(|recipient| &recipient.addresses)
        };
        let proven = self.claims.iter().find_map(|claim| {
            let mut addresses = named().copied().chain(known(claim.id));
            let is_ours =
                |hash: &AddressHash| tokens.verify(TokenPurpose::DeliveryReport, *claim, hash);
            Some((claim.id, addresses.find(is_ours)?))
        });
        let Some((id, address)) = proven else {
            return Vec::new();
        };
        let verified = |RecipientReport {
                            report, objects, ..
                        }| ProviderReport {
            id: Some(id),
            dead_address: report.dead_address.filter(|dead| hash(dead) == address),
            objector: objects.then_some(address),
            ..report
        };
        self.recipients.into_iter().map(verified).collect()
    }
}

fn is_type(part: &Message<'_>, kind: &str, subtypes: &[&str]) -> bool {
    part.content_type().is_some_and(|found| {
        let subtype = found.subtype().unwrap_or_default();
        let mut subtypes = subtypes.iter();
        found.ctype().eq_ignore_ascii_case(kind)
            && subtypes.any(|known| known.eq_ignore_ascii_case(subtype))
    })
}

/// Reads the fields of one recipient (RFC 3464 section 2.3), or of a complaint (RFC 5965 section
/// 3). Returns `None` for the fields of the message.
fn report(fields: &Fields, now: Timestamp) -> Option<RecipientReport> {
    let complaint = get(fields, "feedback-type");
    if complaint.is_some_and(|kind| !is_objection(Some(kind))) {
        return None;
    }
    let action = match complaint {
        Some(_) => "delivered".to_owned(),
        None => first_word(get(fields, "action")?).to_ascii_lowercase(),
    };
    let status = first_word(get(fields, "status").unwrap_or_default());
    let diagnostic = get(fields, "diagnostic-code").map(without_type);
    let (kind, refusal) = match action.as_str() {
        "failed" => {
            let (kind, refusal) = judge(diagnostic.unwrap_or_default(), status);
            (kind, Some(refusal))
        }
        "delayed" => (ReceiptKind::Deferred, None),
        "delivered" => (ReceiptKind::Delivered, None),
        // Relayed to a server that does not report, or expanded to the members of a list.
        "relayed" | "expanded" => (ReceiptKind::Sent, None),
        _ => return None,
    };
    let recipients = ["original-recipient", "final-recipient", "original-rcpt-to"];
    let recipients = recipients.map(|name| get(fields, name).map(address_of));
    let addresses: Vec<&str> = recipients.into_iter().flatten().collect();
    let detail = [Some(status), diagnostic].into_iter().flatten();
    let detail: Vec<&str> = detail.filter(|detail| !detail.is_empty()).collect();
    let hide = |detail: String, address: &&str| without_address(&detail, Some(address));
    let at = get(fields, "last-attempt-date")
        .or_else(|| get(fields, "arrival-date").filter(|_| complaint.is_some()))
        .and_then(DateTime::parse_rfc822)
        .map(|at| Timestamp(at.to_timestamp().saturating_mul(1000)));
    let is_dead = refusal.as_ref().is_some_and(|refusal| refusal.suppress);
    // An address that forwards to a dead one is not dead.
    let is_same = |one: &&&str| addresses.iter().all(|other| hash(other) == hash(one));
    let dead = addresses.first().filter(|_| is_dead).filter(is_same);
    let complained = || complaint.map(|_| "complained".to_owned());
    let report = ProviderReport {
        event_id: String::new(),
        id: None,
        kind,
        at: at.map_or(now, |at| at.min(now)),
        code: refusal.map(|refusal| refusal.code).or_else(complained),
        detail: Some(addresses.iter().fold(detail.join(" "), hide)),
        dead_address: dead.map(|address| (*address).to_owned()),
        objector: None,
    };
    Some(RecipientReport {
        report,
        addresses: addresses.iter().map(|address| hash(address)).collect(),
        objects: complaint.is_some(),
    })
}

/// Returns the value after its type: `smtp; 550 5.1.1 …`, `rfc822; ada@example.com`.
fn without_type(value: &str) -> &str {
    let typed = value.split_once(';');
    let typed = typed.filter(|(kind, _)| !kind.trim().contains(char::is_whitespace));
    typed.map_or(value, |(_, rest)| rest).trim()
}

fn address_of(value: &str) -> &str {
    without_type(value).trim_matches(['<', '>'])
}

/// Returns a value without a comment behind it.
fn first_word(value: &str) -> &str {
    let is_end = |c: char| c.is_whitespace() || c == '(' || c == ';';
    value.split(is_end).next().unwrap_or_default()
}

/// The fields of a group: the name in lower case and the value on one line.
type Fields = Vec<(String, String)>;

fn get<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    let found = fields.iter().find(|(known, _)| known == name);
    let value = found.map(|(_, value)| value.trim());
    value.filter(|value| !value.is_empty())
}

/// Reads groups of fields (RFC 3464 section 2.1). Those of the next recipient also begin without an
/// empty line, with a field that the group already has.
fn groups(text: &str) -> Vec<Fields> {
    let mut groups = vec![Fields::new()];
    for line in text.lines() {
        let group = groups.last_mut();
        if line.trim().is_empty() {
            if group.is_some_and(|group| !group.is_empty()) {
                groups.push(Fields::new());
            }
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = group.and_then(|group| group.last_mut()) {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            let field = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
            match group.filter(|group| !begins_recipient(group, &field.0)) {
                Some(group) => group.push(field),
                None => groups.push(vec![field]),
            }
        }
    }
    groups
}

fn begins_recipient(group: &Fields, name: &str) -> bool {
    let has = |name| get(group, name).is_some();
    match name {
        "action" | "status" => has(name),
        "original-recipient" | "final-recipient" => {
            has(name) || (has("final-recipient") && has("action"))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
