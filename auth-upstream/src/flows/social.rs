//! Social sign-in: `GET /auth/social/login` and its callback.
//!
//! The browser is sent to the provider with a single-use state, a PKCE challenge and a nonce, and
//! returns with a code. The code is exchanged for an ID token, which is verified; the identity is
//! resolved to an account ([`AccountResolver`]), and the UI receives a temporary token. Error
//! messages of the provider are never passed on: the UI gets the name of a [`SocialError`].
//!
//! ```text
//!   start ──► provider ──► callback ──► state ──► code exchange ──► account ──► tokens ──► UI
//! ```

mod account;
mod authorization_state;
mod provider;
mod provider_cache;
mod provider_tokens;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use postern_common::dependency::Dependency;
use postern_common::email::EmailAddress;
use postern_common::{Clock, Code, Problem};
use url::Url;

pub(crate) use self::account::AccountResolver;
use self::authorization_state::AuthorizationState;
pub(crate) use self::authorization_state::AuthorizationStates;
use self::provider::{AuthorizedUser, Provider};
use self::provider_cache::ProviderCache;
pub(crate) use self::provider_tokens::ProviderTokens;
pub(crate) use self::tokens::SocialTokenIssuer;
use super::attempt_guard::AttemptGuard;
use super::exchange::{ExchangedIdentity, TemporaryTokens, UserInfo};
use crate::client::ClientContext;
use crate::config::{SocialConfig, TokenDelivery};
use crate::protection::AttemptKind;
use crate::telemetry::{AuditLog, Audited, Completed, Operation, OutcomeName, log_limited};

/// The time that a user may take at the provider.
const STATE_TTL: Duration = Duration::from_secs(10 * 60);

/// Signs users in at a social provider.
#[derive(Debug)]
pub(crate) struct SocialFlow {
    config: Arc<SocialConfig>,
    http: reqwest::Client,
    provider_cache: ProviderCache,
    parts: SocialParts,
}

/// The dependencies of [`SocialFlow`].
#[derive(Debug)]
pub(crate) struct SocialParts {
    pub(crate) states: AuthorizationStates,
    pub(crate) accounts: AccountResolver,
    pub(crate) tokens: SocialTokenIssuer,
    pub(crate) provider_tokens: ProviderTokens,
    pub(crate) temporary_tokens: TemporaryTokens,
    pub(crate) guard: AttemptGuard,
    pub(crate) audit: AuditLog,
    pub(crate) clock: Clock,
    pub(crate) availability: Dependency,
}

/// The parameters of a callback.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocialCallback {
    pub(crate) code: Option<String>,
    pub(crate) state: Option<String>,
    pub(crate) error: Option<String>,
    /// The issuer of the response (RFC 9207), if the provider sends it.
    pub(crate) issuer: Option<String>,
}

/// The result of a social sign-in for the UI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocialLanding {
    /// The page of the UI.
    pub(crate) ui: Url,
    pub(crate) delivery: TokenDelivery,
    /// The name of the parameter: `temporaryToken` or `error`.
    pub(crate) name: &'static str,
    pub(crate) value: String,
}

/// The error of a social sign-in. The UI gets its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.outcome_name())]
pub(crate) enum SocialError {
    InvalidRequest,
    InvalidState,
    AccessDenied,
    ProviderError,
    ProviderUnavailable,
    InvalidIdToken,
    Unavailable,
    Internal,
}

// === impl SocialError ===

impl OutcomeName for SocialError {
    fn outcome_name(&self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::InvalidState => "invalid_state",
            Self::AccessDenied => "access_denied",
            Self::ProviderError => "provider_error",
            Self::ProviderUnavailable => "provider_unavailable",
            Self::InvalidIdToken => "invalid_id_token",
            Self::Unavailable => "temporarily_unavailable",
            Self::Internal => "server_error",
        }
    }
}

impl From<Problem> for SocialError {
    fn from(problem: Problem) -> Self {
        match problem.code().status().as_u16() {
            429 | 503 => Self::Unavailable,
            _ => Self::Internal,
        }
    }
}

// === impl SocialFlow ===

impl SocialFlow {
    pub(crate) fn new(
        config: Arc<SocialConfig>,
        http: reqwest::Client,
        parts: SocialParts,
    ) -> Self {
        Self {
            config,
            http,
            provider_cache: ProviderCache::default(),
            parts,
        }
    }

    /// Returns the settings.
    pub(crate) fn config(&self) -> &SocialConfig {
        &self.config
    }

    /// Returns the stored refresh tokens of the provider.
    pub(crate) fn provider_tokens(&self) -> &ProviderTokens {
        &self.parts.provider_tokens
    }

    /// Starts a sign-in and returns the URL at the provider.
    ///
    /// # Errors
    /// `unavailable` if the provider's endpoints are not known, or the cache fails.
    pub(crate) async fn start(&self, code_challenge: Option<String>) -> Result<Url, Problem> {
        let provider = self.provider().await.map_err(|error| {
            log_limited!(warn, %error, "social provider unavailable");
            Problem::new(Code::Unavailable)
        })?;
        let (sealed, state) = self.parts.states.create(code_challenge).await?;
        Ok(provider.authorization_url(&self.config, sealed, &state))
    }

    /// Handles the callback of the provider. Returns a redirect to the UI with a temporary token or
    /// the name of an error.
    pub(crate) async fn handle_callback(
        &self,
        client: &ClientContext,
        callback: SocialCallback,
    ) -> Audited<SocialLanding> {
        let outcome = Box::pin(self.limited_sign_in(client, callback)).await;
        let audit = &self.parts.audit;
        match audit.complete(client, Operation::SocialSignIn, outcome) {
            Ok(token) => token.map(|token| self.landing("temporaryToken", token)),
            Err(error) => error.map(|error| self.landing("error", error.outcome_name().to_owned())),
        }
    }

    /// Signs a user in under the limits of the client's address: each failed callback costs an
    /// entry in the cache and, with a valid state, a call to the provider.
    async fn limited_sign_in(
        &self,
        client: &ClientContext,
        callback: SocialCallback,
    ) -> Result<Completed<String>, SocialError> {
        let guard = &self.parts.guard;
        let mut attempt = guard
            .check_anonymous(AttemptKind::SocialCallback, client)
            .await?;
        let outcome = self.sign_in(client, callback).await;
        match outcome {
            // A failure of this service's own stores says nothing of the client.
            Ok(_) | Err(SocialError::Unavailable) => attempt.settle().await,
            Err(_) => guard.limiter().record_failure(&mut attempt).await,
        }
        outcome
    }

    /// Returns the user's subject and a temporary token.
    async fn sign_in(
        &self,
        client: &ClientContext,
        callback: SocialCallback,
    ) -> Result<Completed<String>, SocialError> {
        let state = self.parts.states.redeem(callback.state.as_deref()).await?;
        let provider = self.provider().await?;
        if !provider.is_issuer_valid(callback.issuer.as_deref(), &self.config) {
            return Err(SocialError::InvalidRequest);
        }
        let code = callback.into_code()?;
        let authorized = self.exchange_code(&provider, code, &state).await?;
        let id = &authorized.id_token;
        // An address that the provider has not verified may belong to somebody else.
        if let Some(email) = id.email.as_deref().and_then(EmailAddress::parse)
            && id.email_verified
        {
            client.details.set_email(&email);
        }
        let exchanged = self.resolve_user(client, &authorized).await?;
        let subject = exchanged.user.user_id.clone();
        let temporary_tokens = &self.parts.temporary_tokens;
        let token = temporary_tokens
            .issue(exchanged, state.code_challenge)
            .await?;
        Ok(Completed {
            subject,
            value: token,
        })
    }

    async fn exchange_code(
        &self,
        provider: &Provider,
        code: String,
        state: &AuthorizationState,
    ) -> Result<AuthorizedUser, SocialError> {
        provider
            .exchange_code(
                &self.http,
                self.config.deadline,
                code,
                state,
                &self.parts.availability,
            )
            .await
    }

    /// Resolves the account of a user and requests tokens for it.
    async fn resolve_user(
        &self,
        client: &ClientContext,
        authorized: &AuthorizedUser,
    ) -> Result<ExchangedIdentity, SocialError> {
        let id = &authorized.id_token;
        let identity = self.parts.accounts.resolve(client, id).await?;
        if let Some(token) = &authorized.refresh_token {
            self.parts
                .provider_tokens
                .save(id, &identity.user_id, token)
                .await?;
        }
        let (tokens, tokens_unavailable) = match self.parts.tokens.issue(&identity).await? {
            Ok(tokens) => (Some(tokens), None),
            Err(reason) => (None, Some(reason)),
        };
        let user = UserInfo {
            user_id: identity.user_id,
            email: id.email.clone().unwrap_or_default(),
            email_verified: id.email_verified,
            name: id.name.clone(),
            picture: id.picture.clone(),
            provider: self.config.provider.clone(),
        };
        Ok(ExchangedIdentity {
            user,
            tokens,
            tokens_unavailable,
        })
    }

    async fn provider(&self) -> Result<Arc<Provider>, SocialError> {
        self.provider_cache
            .get_or_discover(&self.parts.clock, |clock| {
                Provider::discover(&self.config, &self.http, clock, &self.parts.availability)
            })
            .await
    }

    fn landing(&self, name: &'static str, value: String) -> SocialLanding {
        SocialLanding {
            ui: self.config.ui.clone(),
            delivery: self.config.delivery,
            name,
            value,
        }
    }
}

// === impl SocialCallback ===

impl SocialCallback {
    /// Returns the authorization code. An error in the callback has precedence over a code.
    fn into_code(self) -> Result<String, SocialError> {
        match (self.code, self.error.as_deref()) {
            (Some(code), None) => Ok(code),
            (_, Some("access_denied")) => Err(SocialError::AccessDenied),
            (_, Some("temporarily_unavailable" | "server_error")) => {
                Err(SocialError::ProviderUnavailable)
            }
            (_, Some(_)) => Err(SocialError::ProviderError),
            (None, None) => Err(SocialError::InvalidRequest),
        }
    }
}
