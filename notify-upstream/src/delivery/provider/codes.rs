use std::sync::Arc;

use postern_common::config;
use postern_common::decode::{Field, Object};
use postern_common::exit::Exit;

use super::{FaultScope, ProviderRefusal};
use crate::delivery::retry::FailureClass;

/// The table of error codes of providers (`codes.toml`).
#[derive(Clone, Debug)]
pub(crate) struct ErrorCodeTable(Arc<[CodeRule]>);

#[derive(Debug)]
struct CodeRule {
    provider: String,
    pattern: String,
    class: FailureClass,
    code: String,
    suppress: bool,
    scope: FaultScope,
}

/// The code of an internal error during an attempt.
pub(crate) const INTERNAL_ERROR: &str = "internal_error";
/// The code of a response that no rule matches.
const NOT_UNDERSTOOD: &str = "provider_answer_not_understood";

const SHIPPED: &str = include_str!("codes.toml");

// === impl ErrorCodeTable ===

impl ErrorCodeTable {
    /// Returns the built-in table.
    #[must_use]
    pub(crate) fn shipped() -> Self {
        Self::parse("codes.toml", SHIPPED).expect("a test reads the shipped table")
    }

    /// Parses a table.
    ///
    /// # Errors
    /// Exit code 64 with all errors.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, Exit> {
        config::parse(name, text, |root| {
            Some(Self(
                root.list("rule", |field| field.object(CodeRule::read))
                    .into(),
            ))
        })
    }

    /// Classifies the code of a provider: an exact rule precedes a pattern, a longer pattern a
    /// shorter one, and a rule of this provider one of any provider.
    #[must_use]
    pub(crate) fn classify(&self, provider: &str, code: &str) -> ProviderRefusal {
        let fits = |rule: &&CodeRule| {
            (rule.provider == provider || rule.provider == "*")
                && match rule.pattern.strip_suffix('*') {
                    Some(prefix) => code.starts_with(prefix),
                    None => rule.pattern == code,
                }
        };
        let best = self.0.iter().filter(fits).max_by_key(|rule| {
            let exact = !rule.pattern.ends_with('*');
            (rule.provider == provider, exact, rule.pattern.len())
        });
        ProviderRefusal {
            class: best.map_or(FailureClass::Ambiguous, |rule| rule.class),
            code: best.map_or(NOT_UNDERSTOOD, |rule| &rule.code).to_owned(),
            detail: Some(code.to_owned()),
            retry_after: None,
            suppress: best.is_some_and(|rule| rule.suppress),
            scope: best.map_or(FaultScope::Recipient, |rule| rule.scope),
        }
    }

    /// Returns whether a failure with this code leaves open whether the provider accepted the
    /// message.
    #[must_use]
    pub(crate) fn is_ambiguous(&self, code: &str) -> bool {
        [NOT_UNDERSTOOD, INTERNAL_ERROR].contains(&code)
            || self
                .0
                .iter()
                .any(|rule| rule.class == FailureClass::Ambiguous && rule.code == code)
    }

    /// Classifies an HTTP response. The error code of the provider decides; in a 5xx response only
    /// if a rule names it, because an unknown code does not make an outage a fault of the message.
    #[must_use]
    pub(crate) fn classify_http(
        &self,
        provider: &str,
        status: u16,
        code: Option<&str>,
    ) -> ProviderRefusal {
        let named = |code: &&str| {
            status < 500
                || self
                    .0
                    .iter()
                    .any(|rule| rule.provider == provider && rule.names(code))
        };
        match code.filter(named) {
            Some(code) => self.classify(provider, code),
            None => self.classify(provider, &format!("http {status}")),
        }
    }
}

// === impl CodeRule ===

impl CodeRule {
    /// Returns whether the rule names this code, as opposed to a class of status codes (a digit and
    /// an asterisk).
    fn names(&self, code: &str) -> bool {
        match self.pattern.strip_suffix('*') {
            Some(prefix) => prefix.len() > 1 && code.starts_with(prefix),
            None => self.pattern == code,
        }
    }

    fn read(object: &Object<'_>) -> Option<Self> {
        let text = |field: Field<'_>| field.text(1..=64);
        let classes = [
            ("permanent", FailureClass::Permanent),
            ("transient", FailureClass::Transient),
            ("throttled", FailureClass::Throttled),
            ("configuration", FailureClass::Configuration),
            ("ambiguous", FailureClass::Ambiguous),
        ];
        let provider = object.required("provider", text);
        let pattern = object.required("match", text);
        let class = object.required("class", |field| field.one_of(&classes));
        let code = object.required("code", text);
        let suppress = object.or("suppress", false, |field| field.boolean());
        let scopes = [
            ("provider", FaultScope::Provider),
            ("recipient", FaultScope::Recipient),
        ];
        let scope = object.or("scope", FaultScope::Recipient, |field| {
            field.one_of(&scopes)
        });
        Some(Self {
            provider: provider?,
            pattern: pattern?,
            class: class?,
            code: code?,
            suppress,
            scope,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_specific_rule_applies() {
        let codes = ErrorCodeTable::shipped();
        let judged = |provider, code| {
            let refusal = codes.classify(provider, code);
            (refusal.class, refusal.code, refusal.suppress)
        };
        let expect = |class, code: &str, suppress| (class, code.to_owned(), suppress);
        assert_eq!(
            judged("smtp", "550 5.1.1"),
            expect(FailureClass::Permanent, "mailbox_unknown", true)
        );
        assert_eq!(
            judged("smtp", "550 5.7.26"),
            expect(FailureClass::Permanent, "message_refused_by_policy", false)
        );
        assert_eq!(
            judged("smtp", "550"),
            expect(FailureClass::Permanent, "provider_refused", false)
        );
        assert_eq!(
            judged("smtp", "421 4.7.0"),
            expect(FailureClass::Throttled, "provider_throttles", false)
        );
        assert_eq!(
            judged("smtp", "451 4.3.0"),
            expect(FailureClass::Transient, "provider_busy", false)
        );
        assert_eq!(
            judged("smtp", "535 5.7.8"),
            expect(
                FailureClass::Configuration,
                "provider_authentication_failed",
                false
            )
        );
        assert_eq!(
            judged("twilio", "21610"),
            expect(FailureClass::Permanent, "recipient_opted_out", false)
        );
        assert_eq!(
            judged("twilio", "30006"),
            expect(FailureClass::Permanent, "number_not_mobile", false)
        );
        assert_eq!(
            judged("twilio", "http 503"),
            expect(FailureClass::Transient, "provider_busy", false)
        );
        assert_eq!(
            judged("anything", "???"),
            expect(
                FailureClass::Ambiguous,
                "provider_answer_not_understood",
                false
            )
        );
    }

    #[test]
    fn server_error_is_transient_and_timeout_is_ambiguous() {
        let codes = ErrorCodeTable::shipped();
        let judged = |provider: &str, code: &str| {
            let refusal = codes.classify(provider, code);
            (refusal.class, codes.is_ambiguous(&refusal.code))
        };
        for (provider, code) in [
            ("twilio", "20503"),
            ("twilio", "30008"),
            ("http", "http 503"),
        ] {
            assert_eq!(
                judged(provider, code),
                (FailureClass::Transient, false),
                "{provider} {code}"
            );
        }
        for (provider, code) in [
            ("twilio", "20429"),
            ("twilio", "30001"),
            ("fcm", "http 429"),
        ] {
            assert_eq!(
                judged(provider, code),
                (FailureClass::Throttled, false),
                "{provider} {code}"
            );
        }
        let doubtful = ["http 408", "http 500", "http 502", "http 504", "http 599"];
        for (provider, code) in doubtful.map(|code| ("webpush", code)).into_iter().chain([
            ("twilio", "20500"),
            ("twilio", "20504"),
            ("fcm", "INTERNAL"),
        ]) {
            assert_eq!(
                judged(provider, code),
                (FailureClass::Ambiguous, true),
                "{provider} {code}"
            );
        }
    }
}
