//! Delivery: from a claimed row to the result of one attempt.
//!
//! A row enters as an [`attempt::DeliveryAttempt`]. The address of an actor is looked up,
//! suppressed and unverified addresses are rejected, the template is rendered, and a provider is
//! chosen by weight, circuit breaker, rate limit and shares. An [`outcome::AttemptOutcome`] leaves;
//! the caller applies the [`retry`] policy and writes the result to the store.
//!
//! Depends on `notification`, `address`, `principal`, `templates`, `store`, `lease` and `metrics`,
//! and on no other stage.

pub(crate) mod actors;
pub(crate) mod attempt;
pub(crate) mod mail_token;
pub(crate) mod outcome;
pub(crate) mod pool;
pub(crate) mod provider;
pub(crate) mod redaction;
pub(crate) mod retry;
pub(crate) mod suppression;
pub(crate) mod unverified;
