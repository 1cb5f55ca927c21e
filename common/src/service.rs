//! A service calls a service.
//!
//! A call that is made for a user carries that user's token, so that the other service decides by the user. Any
//! other call carries our own service token. Which of the two it is, is said by the code that makes the call and
//! never guessed from a missing header: a request that came in without a token must not go out with ours
//! unless the handler means it to.
//!
//! ```no_run
//! # use postern_common::service::{BearerToken, ServiceClient};
//! # async fn example(calls: ServiceClient, caller: postern_common::token::Caller, headers: http::HeaderMap)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let user = BearerToken::of(&caller, &headers);
//! let url = "http://127.0.0.1:8504/actors/a1".parse()?;
//! let answer = calls.request(reqwest::Method::GET, url, user.as_ref()).await?.send().await?;
//! # Ok(())
//! # }
//! ```

mod held;
mod pool;
mod tokens;

use std::time::Duration;

use http::HeaderMap;
use url::Url;

pub use self::tokens::ServiceTokens;
use crate::token::Caller;
use crate::{Code, Problem, Secret, Shutdown};

/// The token of a user for whom a call is made.
#[derive(Clone, Debug)]
pub struct BearerToken(Secret);

/// Makes calls to other services.
#[derive(Clone, Debug)]
pub struct ServiceClient {
    tokens: ServiceTokens,
    http: reqwest::Client,
}

/// Why there is no service token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceTokenError {
    /// No service account is set.
    #[error("no service account is set: IDP_SERVICE_ACCOUNT_USERNAME and IDP_SERVICE_ACCOUNT_PASSWORD")]
    NotConfigured,
    /// The service pool answers, and will answer the same until an operator changes something.
    #[error("the service pool refuses the service account: {0}")]
    Refused(String),
    /// The service pool is away, too slow, or asks for patience, and the last token has expired.
    #[error("the service pool is not available: {0}")]
    Unavailable(String),
}

impl From<ServiceTokenError> for Problem {
    /// What the caller may know; the reason is logged where it arose.
    fn from(error: ServiceTokenError) -> Self {
        match error {
            ServiceTokenError::NotConfigured | ServiceTokenError::Refused(_) => {
                Self::new(Code::IdpMisconfigured)
            }
            ServiceTokenError::Unavailable(_) => Self::new(Code::Unavailable),
        }
    }
}

// === impl BearerToken ===

impl BearerToken {
    /// A token that was verified to be a user's.
    #[must_use]
    pub fn new(token: Secret) -> Self {
        Self(token)
    }

    /// The token of the request whose verified caller is `caller`, if that is a user. A service's token is not
    /// passed on: what that service may do is not ours to use.
    #[must_use]
    pub fn of(caller: &Caller, headers: &HeaderMap) -> Option<Self> {
        match caller {
            Caller::User(_) => crate::http::bearer(headers).ok().map(|token| Self(Secret::from(token))),
            Caller::Service(_) => None,
        }
    }

    /// The token itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose()
    }
}

// === impl ServiceClient ===

impl ServiceClient {
    /// A client that makes its calls through `http`, which should follow no redirect: [`http_client`].
    #[must_use]
    pub fn new(tokens: ServiceTokens, http: reqwest::Client) -> Self {
        Self { tokens, http }
    }

    /// Keeps our own token fresh until the stop begins: [`ServiceTokens::run`].
    pub async fn run(&self, shutdown: Shutdown) {
        self.tokens.run(shutdown).await;
    }

    /// A request with its `Authorization`: the user's, or with `None` our own service's.
    ///
    /// # Errors
    /// Only with `None`: there is no service token that is still valid.
    pub async fn request(
        &self,
        method: http::Method,
        url: Url,
        on_behalf_of: Option<&BearerToken>,
    ) -> Result<reqwest::RequestBuilder, ServiceTokenError> {
        let token = match on_behalf_of {
            Some(user) => user.0.clone(),
            None => self.tokens.token().await?,
        };
        Ok(self.http.request(method, url).bearer_auth(token.expose()))
    }
}

/// A client for calls to other services: connects within 1 s, waits 5 s for an answer, follows no redirect (it
/// would carry the token to where it was not meant to go) and takes no proxy from the environment.
///
/// # Panics
/// Never: the settings are fixed, and the TLS library accepts them.
#[must_use]
pub fn http_client() -> reqwest::Client {
    reqwest::Client::builder()
        .connect_timeout(Duration::from_secs(1))
        .timeout(Duration::from_secs(5))
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .user_agent("postern")
        .build()
        .expect("the settings are fixed, and the TLS library accepts them")
}

#[cfg(test)]
mod tests;
