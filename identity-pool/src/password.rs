//! What a password must have.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::fault::{Fault, Kind};

/// Longest password that Cognito takes, in characters.
const LONGEST: usize = 256;

/// The policy of a pool; the defaults are Cognito's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PasswordPolicy {
    /// Characters at least. Default 8.
    pub minimum_length: usize,
    /// A letter of `A-Z`. Default true.
    pub require_uppercase: bool,
    /// A letter of `a-z`. Default true.
    pub require_lowercase: bool,
    /// A digit. Default true.
    pub require_numbers: bool,
    /// Something that is neither letter nor digit. Default true.
    pub require_symbols: bool,
    /// Days in which a password that an administrator gave must be replaced. Default 7.
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
    /// Refuses with `InvalidPasswordException` and the first thing that is missing.
    pub(crate) fn check(&self, password: &str) -> Result<(), Fault> {
        let length = password.chars().count();
        let has = |wanted: fn(char) -> bool| password.chars().any(wanted);
        let rules = [
            (length >= self.minimum_length, "Password not long enough"),
            (length <= LONGEST, "Password too long"),
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
            Some((_, rule)) => Err(Fault::new(
                Kind::InvalidPassword,
                format!("Password did not conform with policy: {rule}"),
            )),
        }
    }

    /// The `PasswordPolicyType` of DescribeUserPool.
    pub(crate) fn to_json(self) -> Value {
        json!({
            "MinimumLength": self.minimum_length,
            "RequireUppercase": self.require_uppercase,
            "RequireLowercase": self.require_lowercase,
            "RequireNumbers": self.require_numbers,
            "RequireSymbols": self.require_symbols,
            "TemporaryPasswordValidityDays": self.temporary_days,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_policy_names_what_is_missing() {
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
            let fault = policy.check(weak).expect_err(weak);
            assert!(
                fault.message().contains(reason),
                "{weak}: {}",
                fault.message()
            );
        }
        assert!(policy.check(&"Aa1-".repeat(65)).is_err());
    }
}
