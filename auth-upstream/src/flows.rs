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
//! | `POST /api/session` | [`LoginFlow`] or [`RefreshFlow`] |
//!
//! [`RegistrationCompensator`] completes or undoes interrupted registrations in the background.

mod account_codes;
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
mod social;
mod token_issuer;
mod token_set;
mod user_locks;

use postern_common::cache::CacheError;
use postern_common::trace;
use postern_common::{Code, Problem};

pub(crate) use self::account_codes::AccountCodes;
#[cfg(test)]
pub(crate) use self::account_codes::CodePurpose;
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
pub(crate) use self::social::{
    AccountResolver, AuthorizationStates, ProviderTokens, SocialCallback, SocialFlow,
    SocialLanding, SocialParts,
};
pub(crate) use self::token_issuer::TokenIssuer;
#[cfg(test)]
pub(crate) use self::token_set::TokenSet;
pub(crate) use self::user_locks::UserLocks;
use crate::telemetry::log_limited;

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
}

/// Returns the problem for a failed cache operation.
fn cache_unavailable(error: CacheError) -> Problem {
    log_limited!(warn, %error, "shared cache unavailable");
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
