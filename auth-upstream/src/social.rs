//! Social sign-in: `GET /auth/social/login` and its callback.
//!
//! The browser goes to the provider with a state that is used once, a PKCE challenge and a nonce;
//! it comes back with a code, which is exchanged here; the ID token is verified in full; then the
//! identity becomes a temporary token, which the UI gets in the fragment. No error of a provider's
//! ever shows more than a word.

mod account;
mod known;
mod provider;
mod reseal;
mod state;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use postern_common::{Clock, Problem};
use url::Url;

use self::known::Known;
use self::provider::{Authorized, Provider};
use crate::abuse::Door;
use crate::audit::{self, Act};
use crate::auth::{Auth, Visitor};
use crate::config::{Delivery, SocialConfig};
use crate::log_limit::log_limited;
use crate::temporary_token::{Exchanged, UserInfo};

/// How long a person may take at the provider.
const STATE_TTL: Duration = Duration::from_secs(10 * 60);

/// The social provider and what we know of it.
#[derive(Debug)]
pub(crate) struct Social {
    pub(crate) config: SocialConfig,
    http: reqwest::Client,
    clock: Clock,
    known: Known,
}

/// What the provider sends the browser back with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Callback {
    pub(crate) code: Option<String>,
    pub(crate) state: Option<String>,
    pub(crate) error: Option<String>,
    /// Who sends it (RFC 9207), where the provider says so.
    pub(crate) issuer: Option<String>,
}

/// Where the browser lands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Landing {
    /// The page of the UI.
    pub(crate) ui: Url,
    pub(crate) delivery: Delivery,
    /// `temporaryToken` or `error`.
    pub(crate) name: &'static str,
    pub(crate) value: String,
}

/// Why nobody is signed in; the UI reads the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SocialFault {
    #[error("invalid_request")]
    InvalidRequest,
    #[error("invalid_state")]
    InvalidState,
    #[error("access_denied")]
    AccessDenied,
    #[error("provider_error")]
    ProviderError,
    #[error("provider_unavailable")]
    ProviderUnavailable,
    #[error("invalid_id_token")]
    InvalidIdToken,
    #[error("temporarily_unavailable")]
    Unavailable,
    #[error("server_error")]
    Internal,
}

// === impl SocialFault ===

impl From<Problem> for SocialFault {
    fn from(problem: Problem) -> Self {
        match problem.code().status().as_u16() {
            429 | 503 => Self::Unavailable,
            _ => Self::Internal,
        }
    }
}

// === impl Social ===

impl Social {
    pub(crate) fn new(config: SocialConfig, http: reqwest::Client, clock: Clock) -> Self {
        Self {
            config,
            http,
            clock,
            known: Known::default(),
        }
    }

    async fn provider(&self) -> Result<Arc<Provider>, SocialFault> {
        self.known
            .provider(&self.clock, |now| {
                Provider::find(&self.config, &self.http, now)
            })
            .await
    }

    fn landing(&self, outcome: Result<String, SocialFault>) -> Landing {
        let (name, value) = match outcome {
            Ok(token) => ("temporaryToken", token),
            Err(fault) => ("error", fault.to_string()),
        };
        Landing {
            ui: self.config.ui.clone(),
            delivery: self.config.delivery,
            name,
            value,
        }
    }
}

// === impl Auth ===

impl Auth {
    /// Where the browser must go to sign in at the provider.
    pub(crate) async fn begin_social(
        &self,
        social: &Social,
        code_challenge: Option<String>,
    ) -> Result<Url, Problem> {
        let provider = social.provider().await.map_err(|fault| {
            log_limited!(warn, %fault, "the social provider cannot be found");
            Problem::new(postern_common::Code::Unavailable)
        })?;
        let (state, begun) = self.begin_state(code_challenge).await?;
        Ok(provider.authorization_url(&social.config, state, &begun.pkce_verifier, &begun.nonce))
    }

    /// Takes the browser back and sends it to the UI, with a temporary token or the name of what
    /// went wrong.
    pub(crate) async fn finish_social(
        &self,
        visitor: &Visitor,
        social: &Social,
        callback: Callback,
    ) -> Landing {
        let outcome = Box::pin(self.come_back(visitor, social, callback)).await;
        let (subject, word) = match &outcome {
            Ok((subject, _)) => (subject.as_str(), "ok".to_owned()),
            Err(fault) => ("", fault.to_string()),
        };
        audit::record(visitor, Act::SocialSignIn, subject, &word);
        self.metrics.count(Act::SocialSignIn, &word);
        social.landing(outcome.map(|(_, token)| token))
    }

    /// What fails counts against the address that it comes from: each costs a mark in the cache
    /// and, with a state of ours, a call to the provider.
    async fn come_back(
        &self,
        visitor: &Visitor,
        social: &Social,
        callback: Callback,
    ) -> Result<(String, String), SocialFault> {
        let mut attempt = self.admit_stranger(Door::Social, visitor).await?;
        let outcome = self.social_token(visitor, social, callback).await;
        match outcome {
            Ok(_) => attempt.settle(),
            Err(_) => self.abuse.failed(&mut attempt).await,
        }
        outcome
    }

    async fn social_token(
        &self,
        visitor: &Visitor,
        social: &Social,
        callback: Callback,
    ) -> Result<(String, String), SocialFault> {
        let begun = self.take_state(callback.state.as_deref()).await?;
        let provider = social.provider().await?;
        if !provider.has_sent(callback.issuer.as_deref(), &social.config) {
            return Err(SocialFault::InvalidRequest);
        }
        let code = match (callback.code, callback.error.as_deref()) {
            (Some(code), None) => code,
            (_, Some("access_denied")) => return Err(SocialFault::AccessDenied),
            (_, Some("temporarily_unavailable" | "server_error")) => {
                return Err(SocialFault::ProviderUnavailable);
            }
            (_, Some(_)) => return Err(SocialFault::ProviderError),
            (None, None) => return Err(SocialFault::InvalidRequest),
        };
        let authorized = provider
            .redeem(social, code, &begun.pkce_verifier, &begun.nonce)
            .await?;
        let exchanged = self.recognise(visitor, social, &authorized).await?;
        let subject = exchanged.user.user_id.clone();
        Ok((
            subject,
            self.issue_temporary_token(exchanged, begun.code_challenge)
                .await?,
        ))
    }

    async fn recognise(
        &self,
        visitor: &Visitor,
        social: &Social,
        authorized: &Authorized,
    ) -> Result<Exchanged, SocialFault> {
        let id = &authorized.id;
        let identity = self.social_identity(visitor, social, id).await?;
        if let Some(token) = &authorized.refresh_token {
            self.keep_provider_token(social, id, &identity.user_id, token)
                .await?;
        }
        let (tokens, tokens_unavailable) = match self.social_tokens(&identity).await? {
            Ok(tokens) => (Some(tokens), None),
            Err(reason) => (None, Some(reason)),
        };
        let user = UserInfo {
            user_id: identity.user_id,
            email: id.email.clone().unwrap_or_default(),
            email_verified: id.email_verified,
            name: id.name.clone(),
            picture: id.picture.clone(),
            provider: social.config.provider.clone(),
        };
        Ok(Exchanged {
            user,
            tokens,
            tokens_unavailable,
        })
    }
}
