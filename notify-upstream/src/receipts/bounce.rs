//! The judgement of bounces: one rule for the reports of mail servers and of providers.

use std::sync::LazyLock;

use crate::delivery::provider::{ErrorCodeTable, ProviderRefusal};
use crate::delivery::retry::FailureClass;
use crate::store::row::ReceiptKind;

static CODES: LazyLock<ErrorCodeTable> = LazyLock::new(ErrorCodeTable::shipped);

/// Classifies a failure by all that a report says: the reply of the mail server within
/// `diagnostic`, and the enhanced status code of the report, which may be empty. Only a failure
/// that is permanent is a bounce, and only an unknown recipient has `suppress`.
pub(super) fn judge(diagnostic: &str, status: &str) -> (ReceiptKind, ProviderRefusal) {
    let quoted = reply(diagnostic);
    // Behind a space, a provider's own number is not read as a reply code.
    let words = quoted.map_or_else(|| format!(" {diagnostic}"), str::to_owned);
    let refusal = CODES.classify_reply(&words, status);
    let kind = if refusal.class == FailureClass::Permanent {
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
    !matches!(
        kind.as_str(),
        "not-spam" | "auth-failure" | "virus" | "dmarc"
    )
}

/// Returns a text from its first SMTP reply code on: `550 5.1.1 …`, also behind other words.
fn reply(text: &str) -> Option<&str> {
    let mut at = 0;
    for word in text.split_inclusive([' ', '\t', '\n']) {
        let code = word.trim_end().split('-').next().unwrap_or_default();
        let is_code = code.len() == 3
            && code.starts_with(['2', '4', '5'])
            && code.bytes().all(|byte| byte.is_ascii_digit());
        if is_code {
            return text.get(at..);
        }
        at += word.len();
    }
    None
}
