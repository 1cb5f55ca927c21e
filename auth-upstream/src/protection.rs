//! Protection against guessing: attempt limits, trusted networks and equal response times.
//! The flows apply it through [`crate::flows`]' attempt guard.

mod attempts;
mod fallback_cache;
mod response_time;

pub use self::attempts::AttemptLimits;
pub(crate) use self::attempts::{Attempt, AttemptKind, AttemptLimiter, CredentialDigest, network};
pub(crate) use self::response_time::ResponseTimePadding;
