//! Strings that are never printed.

use zeroize::Zeroizing;

/// A password, key or token. `Debug` prints `[secret]`; the memory is zeroed on drop.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps `text`.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// Returns the text. Each call is a possible leak, so callers pass it directly to the operation
    /// that needs it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self::new(text.to_owned())
    }
}

/// What to do about a password whose characters end the host too early.
pub const PERCENT_ENCODE: &str = "percent-encode `@ / : ? #` in the user name and the password";

/// Returns whether a URL has an `@` behind its host: a password has an unencoded `/`, `?` or `#`, and
/// what looks like the host is a part of it.
#[must_use]
pub fn has_misplaced_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (_, after) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let checked = match after.strip_prefix('/') {
        Some(path) => path.split(['?', '#']).next().unwrap_or(path),
        None => after,
    };
    checked.contains('@')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_the_secret() {
        assert_eq!(format!("{:?}", Secret::from("hunter2")), "[secret]");
    }
}
