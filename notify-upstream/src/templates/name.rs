//! Template names and locales.

use postern_core::decode::Field;

/// A template's name: 1 to 64 of `a-z 0-9 - _`, which is a single path component.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TemplateName(String);

/// A language tag with or without a region: `en`, `de-AT`, `zh-Hant-TW` (a subset of RFC 5646).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Locale(String);

// === impl TemplateName ===

impl TemplateName {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_valid = (1..=64).contains(&text.len())
            && text.bytes().all(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte)
            });
        is_valid.then(|| Self(text.to_owned()))
    }

    /// Reads the name in a request or a file.
    pub(crate) fn read(field: Field<'_>) -> Option<Self> {
        let expected = "must be 1 to 64 of a-z, 0-9, - and _";
        Self::parse(field.string()?).or_else(|| field.fail("invalid_format", expected))
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
        let is_language = language.bytes().all(|byte| byte.is_ascii_alphabetic());
        if !is_language || !(2..=3).contains(&language.len()) {
            return None;
        }
        let mut canonical = language.to_ascii_lowercase();
        for subtag in subtags {
            let is_subtag = subtag.bytes().all(|byte| byte.is_ascii_alphanumeric());
            canonical.push('-');
            canonical.push_str(&match subtag.len() {
                _ if !is_subtag => return None,
                2 => subtag.to_ascii_uppercase(),
                4 => subtag[..1].to_ascii_uppercase() + &subtag[1..].to_ascii_lowercase(),
                3..=8 => subtag.to_ascii_lowercase(),
                _ => return None,
            });
        }
        (canonical.len() <= 35).then_some(Self(canonical))
    }

    /// Reads the tag in a request.
    pub(crate) fn read(field: Field<'_>) -> Option<Self> {
        let expected = "must be a tag such as en or de-AT";
        Self::parse(field.string()?).or_else(|| field.fail("invalid_format", expected))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the language without region and script.
    pub(crate) fn without_region(&self) -> Self {
        Self(self.0.split('-').next().unwrap_or_default().to_owned())
    }
}
