//! Codes and links in the text of a mail, which a person or a test copies.

use std::collections::BTreeSet;

/// Lengths of a sequence of digits that is taken for a code.
const CODE_LENGTHS: std::ops::RangeInclusive<usize> = 4..=8;
/// Maximum number of findings of each kind.
const MAX_FINDINGS: usize = 20;
/// Maximum bytes of a link.
const MAX_LINK_BYTES: usize = 4096;

/// What was found in a text, each once, in the order of the text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Sequences of 4 to 8 digits that stand alone.
    pub(super) codes: Vec<String>,
    /// Absolute `http` and `https` URLs.
    pub(super) links: Vec<String>,
}

// === impl Findings ===

impl Findings {
    /// Returns the codes and links of a text.
    pub(super) fn of(text: &str) -> Self {
        let mut findings = Self::default();
        let mut seen = BTreeSet::new();
        for word in text.split(|character: char| {
            character.is_whitespace() || matches!(character, '<' | '>' | '"')
        }) {
            let (kind, found) = match link(word) {
                Some(link) => (&mut findings.links, Some(link)),
                None => (&mut findings.codes, code(word)),
            };
            if let Some(found) = found
                && kind.len() < MAX_FINDINGS
                && seen.insert(found)
            {
                kind.push(found.to_owned());
            }
        }
        findings
    }
}

/// Returns the URL that a word is, without the punctuation after it.
fn link(word: &str) -> Option<&str> {
    let start = word.find("https://").or_else(|| word.find("http://"))?;
    let link = word[start..].trim_end_matches(['.', ',', ';', ':', '!', '?', ')', ']', '\'']);
    let is_short = link.len() <= MAX_LINK_BYTES;
    let has_host = url::Url::parse(link).is_ok_and(|url| url.has_host());
    (is_short && has_host).then_some(link)
}

/// Returns the code that a word is, without the punctuation around it.
fn code(word: &str) -> Option<&str> {
    let code = word.trim_matches(|character: char| character.is_ascii_punctuation());
    let is_number = code.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && CODE_LENGTHS.contains(&code.len())).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_links_are_found_once() {
        let text = "Your code is 123456. Again: 123456, or (0042)!\n\
            Open https://example.com/a?b=c#d. Or <http://example.com/x>, not javascript:alert(1)\n\
            123 123456789 12a456 1,234 https:// http://[ ftp://example.com";
        let expected = Findings {
            codes: vec!["123456".to_owned(), "0042".to_owned()],
            links: vec![
                "https://example.com/a?b=c#d".to_owned(),
                "http://example.com/x".to_owned(),
            ],
        };
        assert_eq!(Findings::of(text), expected);
    }

    #[test]
    fn findings_are_bounded() {
        let many: String = (1000..2000).map(|code| format!("{code} ")).collect();
        assert_eq!(Findings::of(&many).codes.len(), MAX_FINDINGS);
        let long = format!("https://example.com/{}", "a".repeat(MAX_LINK_BYTES));
        assert_eq!(Findings::of(&long), Findings::default());
    }
}
