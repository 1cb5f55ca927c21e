//! The authentication flows: one struct for each operation, with the dependencies that it uses.
//!
//! Enters: parsed requests and the [`ClientContext`](crate::client::ClientContext). Leaves: audited
//! results, which the HTTP layer turns into responses. Depends on `protection`, `pool`,
//! `account_messages`, `actor_service`, `store`, `crypto`, `telemetry` and the settings of `config`; never on `http` or
//! `assembly`.
//!
//! | endpoint | flow |
//! |---|---|
//! | `POST /auth/login` | [`LoginFlow`] |
//! | `POST /auth/challenge` | [`ChallengeFlow`] |
//! | `POST /auth/register`, `/auth/register/confirm` | [`RegistrationFlow`] |
//! | `POST /auth/tokens/refresh` | [`RefreshFlow`] |
//! | `POST /auth/tokens/exchange` | [`ExchangeFlow`] |
//! | `POST /auth/password/forgot`, `/auth/password/reset` | [`PasswordFlow`] |
//! | `POST /auth/logout` | [`LogoutFlow`] |
//! | `GET /auth/social/login` and its callback | [`SocialFlow`] |
//! | `GET /auth/me` | [`CurrentUserFlow`] |
//! | `GET /admin/users`, `POST /admin/users/…` | [`AccountsFlow`] |
//! | `POST /api/session` | [`LoginFlow`] or [`RefreshFlow`] |
//!
//! [`RegistrationCompensator`] completes or undoes interrupted registrations in the background.

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
mod token_issuer;
mod token_set;
mod user_locks;

use std::ops::Deref;
use std::sync::Arc;

use postern_core::token::Verifier;
use postern_core::{Clock, Code, Problem, trace};
use postern_store::cache::{Cache, CacheError};
use tokio::sync::Semaphore;

pub(crate) use self::account_codes::AccountCodes;
#[cfg(test)]
pub(crate) use self::account_codes::CodePurpose;
pub(crate) use self::accounts::{AccountChange, AccountsFlow};
pub(crate) use self::attempt_guard::AttemptGuard;
pub(crate) use self::challenge::{ChallengeAnswer, ChallengeFlow};
pub(crate) use self::compensation::RegistrationCompensator;
pub(crate) use self::current_user::CurrentUserFlow;
pub(crate) use self::exchange::{ExchangeFlow, TemporaryTokens, is_code_challenge};
#[cfg(test)]
pub(crate) use self::exchange::{ExchangedIdentity, TEMPORARY_TOKEN_TTL};
#[cfg(test)]
pub(crate) use self::grant::RefreshGrant;
pub(crate) use self::login::{LoginFlow, LoginRequest};
pub(crate) use self::logout::LogoutFlow;
pub(crate) use self::password::{MAX_CODE_REQUESTS, PasswordFlow, ResetRequest};
pub(crate) use self::refresh::RefreshFlow;
pub(crate) use self::registration::{ConfirmationRequest, RegistrationFlow, RegistrationRequest};
#[cfg(test)]
pub(crate) use self::security_stamps::StampSnapshot;
pub(crate) use self::social::{AccountResolver, SocialCallback, SocialFlow, SocialLanding};
pub(crate) use self::token_issuer::TokenIssuer;
#[cfg(test)]
pub(crate) use self::token_set::TokenSet;
pub(crate) use self::user_locks::UserLocks;
use crate::actor_service::ActorService;
use crate::config::{ConfirmationMode, SocialConfig};
use crate::crypto::KeyRing;
use crate::pool::UserPool;
use crate::store::AuthStore;
use crate::telemetry::{AuditLog, Metrics};

/// The parts that the flows share, and each of them reaches by [`Deref`].
#[derive(Debug)]
pub(crate) struct FlowParts {
    pub(crate) pool: Arc<UserPool>,
    pub(crate) actor_service: Arc<ActorService>,
    pub(crate) store: AuthStore,
    pub(crate) cache: Cache,
    /// Seals refresh tokens, challenge sessions and the profiles of registrations.
    pub(crate) key_ring: Arc<KeyRing>,
    pub(crate) verifier: Arc<Verifier>,
    /// The issuer whose users are actors.
    pub(crate) actor_issuer: Arc<str>,
    pub(crate) guard: AttemptGuard,
    pub(crate) issuer: TokenIssuer,
    pub(crate) locks: UserLocks,
    pub(crate) codes: AccountCodes,
    /// Whether the codes for confirmation and reset are ours. Those for social links always are.
    pub(crate) makes_codes: bool,
    pub(crate) confirmation: ConfirmationMode,
    pub(crate) audit: AuditLog,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
}

/// All flows of the service.
#[derive(Debug)]
pub(crate) struct Flows {
    pub(crate) login: LoginFlow,
    pub(crate) challenge: ChallengeFlow,
    pub(crate) registration: RegistrationFlow,
    pub(crate) refresh: RefreshFlow,
    pub(crate) exchange: ExchangeFlow,
    pub(crate) password: PasswordFlow,
    pub(crate) logout: LogoutFlow,
    /// `None` if social sign-in is not configured.
    pub(crate) social: Option<SocialFlow>,
    pub(crate) current_user: CurrentUserFlow,
    /// For the admin listener.
    pub(crate) accounts: AccountsFlow,
    pub(crate) compensator: RegistrationCompensator,
}

macro_rules! share_parts {
    ($($flow:ident),+) => {
        $(impl Deref for $flow {
            type Target = FlowParts;

            fn deref(&self) -> &FlowParts {
                &self.parts
            }
        })+
    };
}

share_parts! {
    LoginFlow, ChallengeFlow, RegistrationFlow, RefreshFlow, ExchangeFlow, PasswordFlow, LogoutFlow,
    SocialFlow, CurrentUserFlow, AccountsFlow, AccountResolver, RegistrationCompensator
}

// === impl Flows ===

impl Flows {
    pub(crate) fn new(parts: &Arc<FlowParts>, social: Option<SocialConfig>) -> Self {
        let parts = || Arc::clone(parts);
        let temporary_tokens = TemporaryTokens::new(parts().cache.clone());
        let accounts = social.map(|config| Arc::new(AccountResolver::new(parts(), config)));
        let social = accounts.clone();
        let social = social.map(|it| SocialFlow::new(it, temporary_tokens.clone()));
        let password = PasswordFlow {
            parts: parts(),
            code_requests: Arc::new(Semaphore::new(MAX_CODE_REQUESTS)),
        };
        Self {
            accounts: AccountsFlow {
                parts: parts(),
                password: password.clone(),
            },
            login: LoginFlow { parts: parts() },
            challenge: ChallengeFlow {
                parts: parts(),
                accounts,
            },
            registration: RegistrationFlow { parts: parts() },
            refresh: RefreshFlow { parts: parts() },
            exchange: ExchangeFlow {
                parts: parts(),
                temporary_tokens,
            },
            password,
            logout: LogoutFlow { parts: parts() },
            social,
            current_user: CurrentUserFlow { parts: parts() },
            compensator: RegistrationCompensator { parts: parts() },
        }
    }
}

/// Returns the problem for a failed cache operation.
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
