//! Protection against guessing: attempt limits, trusted networks and equal response times.
//!
//! Enters: the kind of an attempt, the client and the account that is named, then the outcome.
//! Leaves: whether the attempt may be evaluated, and delays of responses. Depends on `client` and
//! `crypto`; the flows apply it through [`crate::flows`]' attempt guard.

mod attempts;
mod fallback_cache;
mod response_time;

pub use self::attempts::AttemptLimits;
pub(crate) use self::attempts::{Attempt, AttemptKind, AttemptLimiter, CredentialDigest};
pub(crate) use self::response_time::ResponseTimePadding;
