//! The judgement of bounces: one rule for the reports of mail servers and of providers.

use crate::delivery::provider::{ProviderRefusal, classify_reply, is_enhanced};
use crate::delivery::retry::FailureClass;
use crate::store::row::ReceiptKind;

/// Classifies a failure by all that a report says: the reply of the mail server within
/// `diagnostic`, and the enhanced status code of the report, which may be empty. Only a failure
/// that is permanent is a bounce, and only an unknown recipient has `suppress`.
pub(super) fn judge(diagnostic: &str, status: &str) -> (ReceiptKind, ProviderRefusal) {
    let quoted = reply(diagnostic);
    // Behind a space, a provider's own number is not read as a reply code.
    let words = quoted.map_or_else(|| format!(" {diagnostic}"), str::to_owned);
    let refusal = classify_reply(&words, status);
    let is_bounce = refusal.class == FailureClass::Permanent;
    let kind = if is_bounce {
        ReceiptKind::Bounced
    } else {
        ReceiptKind::Failed
    };
    (kind, refusal)
}

/// Returns kind and code of a report, those of the bounce if it is one, and whether the address is
/// proven not to exist.
pub(super) fn conclude(
    kind: ReceiptKind,
    code: Option<String>,
    bounce: Option<(ReceiptKind, ProviderRefusal)>,
) -> (ReceiptKind, Option<String>, bool) {
    match bounce {
        Some((kind, refusal)) => (kind, Some(refusal.code), refusal.suppress),
        None => (kind, code, false),
    }
}

/// Returns whether a feedback report of this type is the recipient's objection (RFC 5965 section 7.3
/// and the IANA registry): not that of a filter, and not the correction of one (RFC 6430).
pub(super) fn is_objection(feedback_type: Option<&str>) -> bool {
    let kind = feedback_type.unwrap_or_default().to_ascii_lowercase();
    !["not-spam", "auth-failure", "virus", "dmarc"].contains(&kind.as_str())
}

/// Returns a text from its SMTP reply code on: the first with an enhanced code, `550 5.1.1 …`, otherwise
/// the first. Other numbers are seconds, ports and sizes.
fn reply(text: &str) -> Option<&str> {
    let is_end = |c: char| c.is_whitespace() || c == '-';
    let is_code = |word: &str| word.len() == 3 && word.bytes().all(|byte| byte.is_ascii_digit());
    let is_start = |before: &str| before.is_empty() || before.trim_end() != before;
    let starts = text
        .match_indices(['4', '5'])
        .map(|(at, _)| text.split_at(at));
    let replies = starts.filter(|(before, _)| is_start(before));
    let mut replies = replies
        .map(|(_, reply)| reply)
        .filter(|reply| reply.split(is_end).next().is_some_and(is_code));
    let has_enhanced = |reply: &&str| reply.split(is_end).nth(1).is_some_and(is_enhanced);
    let first = replies.clone().next();
    replies.find(has_enhanced).or(first)
}
