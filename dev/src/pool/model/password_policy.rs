//! Password requirements of a pool.

use serde::{Deserialize, Serialize};

use crate::pool::error::{ApiError, ExceptionKind};

/// Maximum length of a password in characters (Cognito's limit).
const MAX_LENGTH: usize = 256;

/// The password policy of a pool. The defaults are Cognito's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PasswordPolicy {
    /// Minimum length in characters. Default 8.
    pub minimum_length: usize,
    /// Whether a letter of `A-Z` is required. Default true.
    pub require_uppercase: bool,
    /// Whether a letter of `a-z` is required. Default true.
    pub require_lowercase: bool,
    /// Whether a digit is required. Default true.
    pub require_numbers: bool,
    /// Whether a character that is neither letter nor digit is required. Default true.
    pub require_symbols: bool,
    /// Days after which a password set by an administrator expires. Default 7.
    pub temporary_days: u64,
}

impl Default for PasswordPolicy {
    fn default() -> Self {
        Self {
            minimum_length: 8,
            require_uppercase: true,
            require_lowercase: true,
            require_numbers: true,
            require_symbols: true,
            temporary_days: 7,
        }
    }
}

impl PasswordPolicy {
    /// Checks a password. Fails with `InvalidPasswordException` and the first unmet requirement.
    pub(crate) fn check(&self, password: &str) -> Result<(), ApiError> {
        let length = password.chars().count();
        let has = |wanted: fn(char) -> bool| password.chars().any(wanted);
        let rules = [
            (length >= self.minimum_length, "Password not long enough"),
            (length <= MAX_LENGTH, "Password too long"),
            (
                !self.require_uppercase || has(|c| c.is_ascii_uppercase()),
                "Password must have uppercase characters",
            ),
            (
                !self.require_lowercase || has(|c| c.is_ascii_lowercase()),
                "Password must have lowercase characters",
            ),
            (
                !self.require_numbers || has(|c| c.is_ascii_digit()),
                "Password must have numeric characters",
            ),
            (
                !self.require_symbols || has(|c| !c.is_alphanumeric()),
                "Password must have symbol characters",
            ),
            (
                password.trim() == password,
                "Password must not begin or end with a space",
            ),
        ];
        match rules.into_iter().find(|(kept, _)| !kept) {
            None => Ok(()),
            Some((_, rule)) => Err(ApiError::new(
                ExceptionKind::InvalidPassword,
                format!("Password did not conform with policy: {rule}"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_policy_reports_first_unmet_requirement() {
        let policy = PasswordPolicy::default();
        assert!(policy.check("Correct-Horse-9").is_ok());
        for (weak, reason) in [
            ("Aa1-", "long enough"),
            ("correct-horse-9", "uppercase"),
            ("CORRECT-HORSE-9", "lowercase"),
            ("Correct-Horse", "numeric"),
            ("CorrectHorse9", "symbol"),
            (" Correct-Horse-9", "space"),
        ] {
            let error = policy.check(weak).expect_err(weak);
            assert!(
                error.message().contains(reason),
                "{weak}: {}",
                error.message()
            );
        }
        assert!(policy.check(&"Aa1-".repeat(65)).is_err());
    }
}
