//! Password requirements: Cognito's defaults, for every pool.

use std::ops::RangeInclusive;

use crate::pool::error::{ApiError, ApiResult};

/// Bounds of the length of a password in characters.
const LENGTH: RangeInclusive<usize> = 8..=256;

/// Checks a password. Fails with `InvalidPasswordException` and the first unmet requirement.
pub(crate) fn check_password(password: &str) -> ApiResult {
    let length = password.chars().count();
    let has = |wanted: fn(char) -> bool| password.chars().any(wanted);
    let rules = [
        (length >= *LENGTH.start(), "Password not long enough"),
        (length <= *LENGTH.end(), "Password too long"),
        (
            has(|c| c.is_ascii_uppercase()),
            "Password must have uppercase characters",
        ),
        (
            has(|c| c.is_ascii_lowercase()),
            "Password must have lowercase characters",
        ),
        (
            has(|c| c.is_ascii_digit()),
            "Password must have numeric characters",
        ),
        (
            has(|c| !c.is_alphanumeric()),
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
            "InvalidPasswordException",
            format!("Password did not conform with policy: {rule}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_check_reports_first_unmet_requirement() {
        for (password, reason) in [
            ("Aa1-", "long enough"),
            (&*"Aa1-".repeat(65), "too long"),
            ("correct-horse-9", "uppercase"),
            ("CORRECT-HORSE-9", "lowercase"),
            ("Correct-Horse", "numeric"),
            ("CorrectHorse9", "symbol"),
            (" Correct-Horse-9", "space"),
        ] {
            let error = check_password(password).expect_err(password);
            assert!(error.message.contains(reason), "{error:?}");
        }
        assert!(check_password("Correct-Horse-9").is_ok());
    }
}
