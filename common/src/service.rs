//! A service calls a service.
//!
//! Every call carries our own service token, and no user's. The interface says to forward the
//! user's token where one is present; none is present where we call. A profile is saved at
//! registration before its user has a token. The address of an actor is looked up when the
//! notification is delivered, which may be days after the request: a user's token would have to be
//! stored, and would have expired. What the user may have sent is decided from its verified token
//! at acceptance.
//!
//! ```no_run
//! # use postern_common::service::ServiceClient;
//! # async fn example(calls: ServiceClient) -> Result<(), Box<dyn std::error::Error>> {
//! let url = "http://127.0.0.1:8504/actors/a1".parse()?;
//! let answer = calls.request(reqwest::Method::GET, url).await?.send().await?;
//! # Ok(())
//! # }
//! ```

mod held;
mod pool;
mod tokens;

use std::time::Duration;
use tokio_util::sync::CancellationToken;

use url::Url;

pub use self::tokens::ServiceTokens;
use crate::{Code, Problem};

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
    #[error(
        "no service account is set: IDP_SERVICE_ACCOUNT_USERNAME and IDP_SERVICE_ACCOUNT_PASSWORD"
    )]
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

// === impl ServiceClient ===

impl ServiceClient {
    /// A client that makes its calls through `http`, which should follow no redirect:
    /// [`http_client`].
    #[must_use]
    pub fn new(tokens: ServiceTokens, http: reqwest::Client) -> Self {
        Self { tokens, http }
    }

    /// Keeps our own token fresh until the stop begins: [`ServiceTokens::run`].
    pub async fn run(&self, shutdown: CancellationToken) {
        self.tokens.run(shutdown).await;
    }

    /// A request with our own service token as its `Authorization`.
    ///
    /// # Errors
    /// There is no service token that is still valid.
    pub async fn request(
        &self,
        method: http::Method,
        url: Url,
    ) -> Result<reqwest::RequestBuilder, ServiceTokenError> {
        let token = self.tokens.token().await?;
        Ok(self.http.request(method, url).bearer_auth(token.expose()))
    }
}

/// A client for calls to other services: connects within 1 s, waits 5 s for an answer, follows no
/// redirect (it would carry the token to where it was not meant to go) and takes no proxy from the
/// environment.
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
