//! The authentication flows: methods of [`Flows`], which has what they depend on.
//! They know nothing of HTTP.
//!
//! `run_compensation` completes or undoes interrupted registrations in the background.

mod account_codes;
mod accounts;
mod attempt_guard;
mod challenge;
mod challenge_session;
mod compensation;
mod current_user;
mod exchange;
mod grant;
mod login;
mod logout;
mod password;
mod refresh;
mod registration;
mod security_stamps;
mod social;
mod token_set;
mod user_locks;

use std::sync::Arc;

use postern_core::token::Verifier;
use postern_core::{Clock, Code, Problem, trace};
use postern_store::cache::{Cache, CacheError};
use tokio::sync::Semaphore;

#[cfg(test)]
pub(crate) use self::account_codes::CodePurpose;
pub(crate) use self::accounts::AccountChange;
pub(crate) use self::challenge::ChallengeAnswer;
pub(crate) use self::exchange::is_code_challenge;
#[cfg(test)]
pub(crate) use self::exchange::{ExchangedIdentity, temporary_token_key};
#[cfg(test)]
pub(crate) use self::grant::RefreshGrant;
pub(crate) use self::login::LoginRequest;
pub(crate) use self::password::{MAX_CODE_REQUESTS, ResetRequest};
pub(crate) use self::registration::{ConfirmationRequest, RegistrationRequest};
#[cfg(test)]
pub(crate) use self::security_stamps::StampSnapshot;
pub(crate) use self::social::{Social, SocialCallback, SocialLanding};
#[cfg(test)]
pub(crate) use self::token_set::TokenSet;
use crate::account_messages::AccountMessages;
use crate::actor_service::ActorService;
use crate::config::ConfirmationMode;
use crate::crypto::KeyRing;
use crate::pool::UserPool;
use crate::protection::{AttemptLimiter, ResponseTimePadding};
use crate::store::AuthStore;
use crate::telemetry::{AuditLog, Metrics};

#[derive(Debug)]
pub(crate) struct Flows {
    pub(crate) pool: UserPool,
    pub(crate) actor_service: Arc<ActorService>,
    pub(crate) messages: Arc<AccountMessages>,
    pub(crate) store: AuthStore,
    pub(crate) cache: Cache,
    /// Seals refresh tokens, challenge sessions and the profiles of registrations.
    pub(crate) key_ring: Arc<KeyRing>,
    pub(crate) verifier: Arc<Verifier>,
    /// The issuer whose users are actors.
    pub(crate) actor_issuer: Arc<str>,
    pub(crate) limiter: AttemptLimiter,
    pub(crate) padding: ResponseTimePadding,
    /// The password resets whose codes are being requested.
    pub(crate) code_requests: Arc<Semaphore>,
    /// Whether the codes for confirmation and reset are ours. Those for social links always are.
    pub(crate) makes_codes: bool,
    pub(crate) confirmation: ConfirmationMode,
    pub(crate) social: Option<Social>,
    pub(crate) audit: AuditLog,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
}

fn cache_unavailable(error: CacheError) -> Problem {
    postern_core::log_outage!("cache", %error, "shared cache unavailable");
    Problem::new(Code::Unavailable)
}

/// Returns whether an operation that ended with this code was not evaluated by the pool, which is
/// unavailable or throttles.
fn is_not_evaluated(code: Code) -> bool {
    code == Code::RateLimited || code.status().is_server_error()
}

/// Runs an operation in a task of its own, so that it completes even if the client disconnects.
async fn run_to_completion<T: Send + 'static>(
    operation: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    trace::spawn(operation)
        .await
        .unwrap_or_else(|_| Err(Code::Internal.into()))
}
