//! Template names and locales.

use std::fmt;

/// A template's name: 1 to 64 of `a-z 0-9 - _`, which is a single path component.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TemplateName(String);

/// A language tag with or without a region: `en`, `de-AT`, `zh-Hant-TW` (a subset of RFC 5646).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Locale(String);

// === impl TemplateName ===

impl TemplateName {
    /// Parses a name.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_valid = (1..=64).contains(&text.len())
            && text.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte)
            });
        is_valid.then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl Locale ===

impl Locale {
    /// Parses a tag of 2 or 3 letters and subtags of 2 to 8 letters or digits, and normalizes its
    /// case.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut subtags = text.split('-');
        let language = subtags.next()?;
        if !(2..=3).contains(&language.len())
            || !language.bytes().all(|byte| byte.is_ascii_alphabetic())
        {
            return None;
        }
        let mut canonical = language.to_ascii_lowercase();
        for subtag in subtags {
            if !(2..=8).contains(&subtag.len())
                || !subtag.bytes().all(|byte| byte.is_ascii_alphanumeric())
            {
                return None;
            }
            canonical.push('-');
            match subtag.len() {
                2 => canonical.push_str(&subtag.to_ascii_uppercase()),
                4 => {
                    canonical.push_str(&subtag[..1].to_ascii_uppercase());
                    canonical.push_str(&subtag[1..].to_ascii_lowercase());
                }
                _ => canonical.push_str(&subtag.to_ascii_lowercase()),
            }
        }
        (canonical.len() <= 35).then_some(Self(canonical))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the language without region and script.
    pub(crate) fn without_region(&self) -> Self {
        Self(self.0.split('-').next().unwrap_or_default().to_owned())
    }
}

impl fmt::Debug for TemplateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Locale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
