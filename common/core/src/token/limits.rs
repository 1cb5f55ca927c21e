//! Limits of tokens.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::TokenError;

/// Limits that every token has to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLimits {
    /// Maximum length in bytes; default 16 KiB.
    pub bytes: usize,
    /// Maximum time by which `nbf` and `iat` may be ahead of the clock; default 5 s. `exp` has no
    /// leeway.
    pub leeway: Duration,
}

// === impl TokenLimits ===

impl TokenLimits {
    /// Lengths that can be configured. Request heads limit them as well.
    pub const BYTES: RangeInclusive<usize> = (1 << 10)..=(64 << 10);

    /// The highest leeway that can be configured.
    pub const MAX_LEEWAY: Duration = Duration::from_secs(5 * 60);

    pub(super) fn check_length(&self, token: &str) -> Result<(), TokenError> {
        match token.len() <= self.bytes {
            true => Ok(()),
            false => Err(TokenError::TooLong),
        }
    }

    pub(super) fn leeway_s(&self) -> i64 {
        i64::try_from(self.leeway.as_secs()).unwrap_or(i64::MAX)
    }
}

impl Default for TokenLimits {
    fn default() -> Self {
        Self {
            bytes: 16 << 10,
            leeway: Duration::from_secs(5),
        }
    }
}
