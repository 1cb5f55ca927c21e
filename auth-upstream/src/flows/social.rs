//! Social sign-in: `GET /auth/social/login` and its callback.
//!
//! The browser is sent to one of the providers with a single-use state, a PKCE challenge and a nonce, and
//! returns with a code. The code is exchanged for an ID token, which is verified; the identity is
//! resolved to an account (`account`), and the UI receives a temporary token. Error
//! messages of the provider are never passed on: the UI gets the name of a [`SocialError`].

mod account;
mod authorization_state;
mod provider;

use std::sync::Arc;
use std::time::Duration;

use postern_core::dependency::Dependencies;
use postern_core::email::EmailAddress;
use postern_core::token::Verifier;
use postern_core::{Clock, Code, Problem};
use postern_service::calls::http_client;
use tokio::sync::Mutex;
use url::Url;

use self::account::ResolvedIdentity;
use self::authorization_state::AuthorizationState;
pub(super) use self::provider::AuthorizedUser;
use self::provider::ProviderClient;
use super::Flows;
use super::exchange::{ExchangedIdentity, SocialResult, UserInfo};
use crate::client::ClientContext;
use crate::config::{SocialConfig, SocialProviderConfig, TokenDelivery};
use crate::pool::error::PoolFault;
use crate::protection::AttemptKind;
use crate::store::StoreError;
use crate::telemetry::{Audited, Completed, Operation, log_consequence};

const STATE_TTL: Duration = Duration::from_secs(10 * 60);

#[derive(Debug)]
pub(crate) struct Social {
    pub(crate) config: SocialConfig,
    /// The clients of the providers, in the order of the configuration.
    providers: Vec<ProviderClient>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocialCallback {
    pub(crate) code: Option<String>,
    pub(crate) state: Option<String>,
    pub(crate) error: Option<String>,
    /// The issuer of the response (RFC 9207), if the provider sends it.
    pub(crate) issuer: Option<String>,
    /// The name of the provider, if its redirect URI has it as a parameter.
    pub(crate) provider: Option<String>,
    /// The user, as JSON, if the provider sends it beside the code (Sign in with Apple).
    pub(crate) user: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocialLanding {
    pub(crate) ui: Url,
    pub(crate) delivery: TokenDelivery,
    /// The name of the parameter: `temporaryToken` or `error`.
    pub(crate) name: &'static str,
    pub(crate) value: String,
}

named! {
    /// The error of a social sign-in. The UI gets its name.
    #[derive(thiserror::Error)]
    #[error("{}", self.name())]
    SocialError {
        InvalidRequest = "invalid_request",
        InvalidState = "invalid_state",
        AccessDenied = "access_denied",
        /// The address is missing or malformed.
        EmailNotVerified = "email_not_verified",
        ProviderError = "provider_error",
        ProviderUnavailable = "provider_unavailable",
        InvalidIdToken = "invalid_id_token",
        Unavailable = "temporarily_unavailable",
        Internal = "server_error",
    }
}

// === impl SocialError ===

impl From<PoolFault> for SocialError {
    fn from(fault: PoolFault) -> Self {
        Problem::from(fault).into()
    }
}

impl From<StoreError> for SocialError {
    fn from(error: StoreError) -> Self {
        Problem::from(error).into()
    }
}

impl From<Problem> for SocialError {
    fn from(problem: Problem) -> Self {
        match problem.code().status().as_u16() {
            401 => Self::AccessDenied,
            429 | 503 => Self::Unavailable,
            _ => Self::Internal,
        }
    }
}

impl From<SocialError> for Problem {
    fn from(error: SocialError) -> Self {
        Self::new(if error == SocialError::Unavailable {
            Code::Unavailable
        } else if error == SocialError::Internal {
            Code::Internal
        } else {
            Code::InvalidChallenge
        })
    }
}

// === impl Social ===

impl Social {
    pub(crate) fn new(
        config: SocialConfig,
        dependencies: &Dependencies,
        clock: &Clock,
        verifier: &Verifier,
    ) -> Self {
        let http = http_client();
        let client = |(index, provider): (usize, &Arc<SocialProviderConfig>)| {
            let dependency = match index {
                0 => "social_provider".to_owned(),
                _ => format!("social_provider-{}", provider.name),
            };
            ProviderClient {
                config: Arc::clone(provider),
                http: http.clone(),
                deadline: config.deadline,
                clock: clock.clone(),
                leeway: verifier.leeway(),
                availability: dependencies.optional(dependency, provider.issuer.clone()),
                cache: Mutex::default(),
            }
        };
        Self {
            providers: config.providers.iter().enumerate().map(client).collect(),
            config,
        }
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

// === impl Flows ===

impl Flows {
    /// Starts a sign-in at the provider with this index in the configuration, and returns the URL
    /// there.
    pub(crate) async fn start_social_sign_in(
        &self,
        client: &ClientContext,
        provider: usize,
        code_challenge: Option<String>,
    ) -> Result<Url, Problem> {
        let social = self.social.as_ref().ok_or(Code::NotFound)?;
        let at = social.providers.get(provider).ok_or(Code::NotFound)?;
        let provider = at.provider().await.map_err(|error| {
            log_consequence!(%error, "social provider unavailable");
            Problem::new(Code::Unavailable)
        })?;
        let (address, issuer) = (client.address, &at.config.issuer);
        let (sealed, state) = self.create_state(issuer, address, code_challenge).await?;
        Ok(at.authorization_url(&provider, &sealed, &state))
    }

    /// Handles the callback of the provider. Returns a redirect to the UI with a temporary token or
    /// the name of an error.
    pub(crate) async fn finish_callback(
        &self,
        client: &ClientContext,
        callback: SocialCallback,
    ) -> Result<Audited<SocialLanding>, Problem> {
        let social = self.social.as_ref().ok_or(Code::NotFound)?;
        let outcome = Box::pin(self.social_sign_in(client, social, callback)).await;
        let (operation, name_of) = (Operation::SocialSignIn, |it: &SocialError| it.name());
        let audited = self
            .audit
            .complete_named(client, operation, outcome, name_of);
        Ok(match audited {
            Ok(token) => token.map(|token| social.landing("temporaryToken", token)),
            Err(error) => error.map(|error| social.landing("error", error.name().to_owned())),
        })
    }

    /// Returns the user's subject and a temporary token.
    ///
    /// Browsers open what pages of other sites tell them to: only a state that is valid and unused
    /// costs a call to the provider, and only a failure of that call counts, for the address that
    /// has started the sign-in.
    async fn social_sign_in(
        &self,
        client: &ClientContext,
        social: &Social,
        callback: SocialCallback,
    ) -> Result<Completed<String>, SocialError> {
        let state = self.redeem_state(callback.state.as_deref()).await?;
        let mut providers = social.providers.iter();
        let at = providers
            .find(|it| it.config.issuer == state.issuer)
            .ok_or(SocialError::InvalidState)?;
        let is_other = |name: &str| name != at.config.name;
        if callback.provider.as_deref().is_some_and(is_other) {
            return Err(SocialError::InvalidRequest);
        }
        let provider = at.provider().await?;
        if !provider.is_issuer_valid(callback.issuer.as_deref(), &state.issuer) {
            return Err(SocialError::InvalidRequest);
        }
        let user = callback.user.clone();
        let code = callback.into_code()?;
        let starter = ClientContext {
            address: state.address,
            ..client.clone()
        };
        let admitted = self.admit_anonymous(AttemptKind::SocialCallback, &starter);
        let mut attempt = admitted.await?;
        let authorized = at.exchange_code(&provider, &code, &state).await;
        match &authorized {
            // An outage says nothing of the client.
            Err(SocialError::ProviderError | SocialError::InvalidIdToken)
                if at.availability.is_up() =>
            {
                self.limiter.record_failure(&mut attempt).await;
            }
            Ok(_) | Err(_) => attempt.settle().await,
        }
        let mut authorized = authorized?;
        let id = &mut authorized.id_token;
        self.add_names(id, user).await?;
        // An address that the provider has not verified may belong to somebody else.
        if let Some(email) = id.email.as_deref().and_then(EmailAddress::parse)
            && id.email_verified
        {
            client.details.set_email(&email);
        }
        self.count_social_sign_in(client, id).await?;
        let resolved = self.resolve_user(client, &at.config.name, &authorized);
        let (subject, result) = resolved.await?;
        let token = self.issue_temporary_token(result, state.code_challenge);
        Ok(Completed::new(subject, token.await?))
    }

    /// Resolves the account of a user and requests tokens for it. Returns the subject and the result.
    async fn resolve_user(
        &self,
        client: &ClientContext,
        provider: &str,
        authorized: &AuthorizedUser,
    ) -> Result<(String, SocialResult), SocialError> {
        let id = &authorized.id_token;
        let (identity, challenge) = match self.resolve_identity(client, authorized, None).await? {
            ResolvedIdentity::Started(identity, challenge) => (identity, Some(challenge)),
            ResolvedIdentity::Identified(identity) => (identity, None),
            ResolvedIdentity::Pending(problem) => return Ok((String::new(), next_step(&problem))),
        };
        let tokens = match challenge {
            Some(challenge) => match self.finish_social_sign_in(client, id, &challenge).await {
                Ok(signed_in) => Some(signed_in.value),
                Err(problem) if problem.code() == Code::ChallengeRequired => {
                    return Ok((identity.user_id, next_step(&problem)));
                }
                Err(problem) => return Err(problem.into()),
            },
            None => None,
        };
        let user = UserInfo {
            user_id: identity.user_id.clone(),
            email: id.email.clone().unwrap_or_default(),
            email_verified: id.email_verified,
            name: id.name.clone(),
            picture: id.picture.clone(),
            provider: provider.to_owned(),
        };
        let result = SocialResult::User(ExchangedIdentity { user, tokens });
        Ok((identity.user_id, result))
    }
}

fn next_step(problem: &Problem) -> SocialResult {
    SocialResult::Challenge(problem.to_json("")["challenge"].take())
}

// === impl SocialCallback ===

impl SocialCallback {
    /// Returns the authorization code. An error in the callback has precedence over a code.
    fn into_code(self) -> Result<String, SocialError> {
        match (self.code, self.error.as_deref()) {
            (Some(code), None) => Ok(code),
            (_, Some(error)) if is_cancelled(error) => Err(SocialError::AccessDenied),
            (_, Some("temporarily_unavailable" | "server_error")) => {
                Err(SocialError::ProviderUnavailable)
            }
            (_, Some(_)) => Err(SocialError::ProviderError),
            (None, None) => Err(SocialError::InvalidRequest),
        }
    }
}

/// Returns whether the person has cancelled the sign-in: `access_denied` (RFC 6749 section 4.1.2.1),
/// `user_denied` (its drafts), `user_cancelled_login` and `user_cancelled_authorize` (LinkedIn, Apple),
/// and `interaction_required`, which Red Hat's single sign-on sends and which has no other meaning
/// without `prompt=none`.
fn is_cancelled(error: &str) -> bool {
    error.contains("denied") || error.contains("cancel") || error == "interaction_required"
}
