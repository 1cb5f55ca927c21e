//! Limits of tokens.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::TokenError;
use crate::decode::{Field, defaults};
use crate::settings;

settings! {
    /// Limits that every token has to keep, two keys of the table `[identity]`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TokenLimits(identity) {
        /// Longer tokens are 401. Read at start.
        pub bytes as token_bytes: usize = "16KiB" => read_bytes,
        /// Time by which `nbf` and `iat` may be ahead; `exp` has none. Read at start.
        pub leeway: Duration = "5s" => read_leeway,
    }
}

/// Lengths that can be configured. Request heads limit them as well.
const BYTES: RangeInclusive<usize> = (1 << 10)..=(64 << 10);

/// The highest leeway that can be configured.
const MAX_LEEWAY: Duration = Duration::from_secs(5 * 60);

fn read_bytes(field: Field<'_>) -> Option<usize> {
    let bytes = usize::try_from(field.typed("`1KiB` to `64KiB`").bytes()?).ok();
    let bytes = bytes.filter(|bytes| BYTES.contains(bytes));
    bytes.or_else(|| field.fail("out_of_range", "must be 1KiB to 64KiB"))
}

fn read_leeway(field: Field<'_>) -> Option<Duration> {
    match field.typed("up to `5m`").duration()? {
        leeway if leeway <= MAX_LEEWAY => Some(leeway),
        _ => field.fail("out_of_range", "must be at most 5m"),
    }
}

impl TokenLimits {
    /// The longest tokens that can be configured.
    pub(super) const MAX_BYTES: usize = *BYTES.end();

    pub(super) fn check_length(&self, token: &str) -> Result<(), TokenError> {
        let has_length = token.len() <= self.bytes;
        has_length.then_some(()).ok_or(TokenError::TooLong)
    }

    pub(super) fn leeway_s(&self) -> i64 {
        i64::try_from(self.leeway.as_secs()).unwrap_or(i64::MAX)
    }
}

impl Default for TokenLimits {
    fn default() -> Self {
        defaults(Self::read)
    }
}
