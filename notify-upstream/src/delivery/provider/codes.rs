use std::sync::LazyLock;

use serde::Deserialize;

use super::{FaultScope, ProviderRefusal};
use crate::delivery::retry::FailureClass;

#[derive(Deserialize)]
struct Rules {
    rule: Vec<CodeRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CodeRule {
    provider: String,
    #[serde(rename = "match")]
    patterns: Vec<String>,
    #[serde(default, rename = "text")]
    texts: Vec<String>,
    class: FailureClass,
    code: String,
    #[serde(default)]
    suppress: bool,
    #[serde(default)]
    scope: FaultScope,
}

/// The code of a response that no rule matches.
const NOT_UNDERSTOOD: &str = "provider_answer_not_understood";

/// The table of error codes of providers.
static RULES: LazyLock<Vec<CodeRule>> = LazyLock::new(|| {
    let rules: Rules = toml::from_str(include_str!("codes.toml")).expect("a test reads the table");
    rules.rule
});

/// Classifies the code of a provider, see `codes.toml`.
pub(crate) fn classify(provider: &str, code: &str) -> ProviderRefusal {
    match provider {
        "smtp" if code.starts_with(|c: char| c.is_ascii_digit()) => classify_reply(code, ""),
        _ => refusal(provider, &[code], "").with_detail(code),
    }
}

/// Classifies the reply of a mail server, `550 5.1.1 …` or `550-5.1.1 …`, by reply code, enhanced
/// status code and text together. `status` is the field of a report (RFC 3464 section 2.3.4), which
/// counts for what the reply leaves open.
pub(crate) fn classify_reply(reply: &str, status: &str) -> ProviderRefusal {
    let number = reply.get(..3);
    let number = number.filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    let words = reply.split([' ', '-', '\n']);
    let words = words.map(|word| word.trim_matches(|c: char| c.is_ascii_punctuation()));
    let mut words = words.chain([status]).filter(|word| is_enhanced(word));
    let class = number.or_else(|| words.clone().next());
    let class = class.and_then(|code| code.get(..1));
    // Systems that only know the class write X.0.0.
    let enhanced = words
        .find(|word| class.is_none_or(|class| word.starts_with(class)) && !word.ends_with(".0.0"));
    let both = format!("{} {}", number.unwrap_or(""), enhanced.unwrap_or(""));
    let codes = [Some(both.as_str()), enhanced, number, class];
    let codes: Vec<&str> = codes.into_iter().flatten().collect();
    // What it quotes of another server: Postfix, Exim.
    let mut own = reply.split(" said:").flat_map(|part| part.split(" was: "));
    let own = own.next().unwrap_or_default();
    refusal("smtp", &codes, &own.to_ascii_lowercase()).with_detail(reply)
}

/// Classifies an answer by its codes and its text.
fn refusal(provider: &str, codes: &[&str], text: &str) -> ProviderRefusal {
    let ranked = RULES
        .iter()
        .filter_map(|rule| Some((rule.rank(provider, codes, text)?, rule)));
    let Some((_, best)) = ranked.max_by_key(|(rank, _)| *rank) else {
        return ProviderRefusal {
            class: FailureClass::Transient,
            scope: FaultScope::Recipient,
            ..ProviderRefusal::not_sent(NOT_UNDERSTOOD)
        };
    };
    ProviderRefusal {
        class: best.class,
        suppress: best.suppress,
        // The recipient chose the push service: its failures say nothing about others.
        scope: match provider {
            "webpush" => FaultScope::Recipient,
            _ => best.scope,
        },
        ..ProviderRefusal::not_sent(&best.code)
    }
}

/// Classifies an HTTP response by the first of the provider's error codes that a rule of the
/// provider names, otherwise by its status: an unknown code does not hide a known status.
pub(super) fn classify_http(provider: &str, status: u16, codes: &[&str]) -> ProviderRefusal {
    let own = || RULES.iter().filter(|rule| rule.provider == provider);
    let is_named = |code: &&str| own().any(|rule| rule.matches(code).is_some());
    match codes.iter().copied().find(is_named) {
        Some(code) => classify(provider, code),
        None => classify(provider, &format!("http {status}")),
    }
}

/// Returns whether a word is an enhanced status code (RFC 3463 section 2): not an address or
/// version.
pub(crate) fn is_enhanced(word: &str) -> bool {
    let parts: Vec<&str> = word.split('.').collect();
    let is_number = |part: &&str| {
        (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    matches!(parts[..], ["4" | "5", _, _]) && parts.iter().all(is_number)
}

impl CodeRule {
    /// Returns whether a pattern fits the code exactly, and its length.
    fn matches(&self, code: &str) -> Option<(bool, usize)> {
        let fit = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => code.starts_with(prefix).then_some((false, prefix.len())),
            None => (pattern == code).then_some((true, pattern.len())),
        };
        self.patterns.iter().filter_map(fit).max()
    }

    /// Returns how specific the rule is for an answer, if it fits.
    fn rank(&self, provider: &str, codes: &[&str], text: &str) -> Option<impl Ord + Copy + use<>> {
        if self.provider != provider && self.provider != "*" {
            return None;
        }
        let found = self.texts.iter().filter(|part| text.contains(*part));
        let words = found.map(String::len).max();
        if words.is_none() && !self.texts.is_empty() {
            return None;
        }
        let fit = codes.iter().filter_map(|code| self.matches(code)).max()?;
        Some((self.provider == provider, words, fit))
    }
}

#[cfg(test)]
pub(super) mod tests;
