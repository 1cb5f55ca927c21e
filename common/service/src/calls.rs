//! Calls from one service to another.
//!
//! While the request of a verified user is handled, every call carries the user's token. All other
//! calls carry this service's own token: those for requests of services and without a token, such
//! as a registration, and those of work that outlives its request, such as a delivery.
//!
//! ```no_run
//! # use postern_service::calls::ServiceClient;
//! # async fn example(calls: ServiceClient) -> Result<(), Box<dyn std::error::Error>> {
//! let url = "http://127.0.0.1:8504/actors/a1".parse()?;
//! let answer = calls.request(reqwest::Method::GET, url).await?;
//! let answer = postern_core::trace::send(answer).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Input: requests without credentials. Output: requests with the user's or the service's token.

mod sign_in;
mod token;
mod tokens;

use std::time::Duration;
use tokio_util::sync::CancellationToken;

use url::Url;

pub use self::tokens::ServiceTokens;
use postern_core::{Code, Problem};

/// A client for calls to other services.
#[derive(Clone, Debug)]
pub struct ServiceClient {
    tokens: ServiceTokens,
    http: reqwest::Client,
}

/// The reason why no service token is available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceTokenError {
    /// No service account is configured.
    #[error(
        "no service account is set: IDP_SERVICE_ACCOUNT_USERNAME and IDP_SERVICE_ACCOUNT_PASSWORD"
    )]
    NotConfigured,
    /// The service pool rejects the account, until an operator changes something.
    #[error("the service pool rejects the service account: {0}")]
    Refused(String),
    /// The service pool is unavailable, too slow or throttling, and the last token has expired.
    #[error("the service pool is not available: {0}")]
    Unavailable(String),
}

impl From<ServiceTokenError> for Problem {
    /// Returns the problem without the reason, which has been logged.
    fn from(error: ServiceTokenError) -> Self {
        let is_outage = matches!(error, ServiceTokenError::Unavailable(_));
        Self::new(match is_outage {
            true => Code::Unavailable,
            false => Code::IdpMisconfigured,
        })
    }
}

impl ServiceClient {
    /// Creates a client that uses `http`, which should not follow redirects, see [`http_client`].
    #[must_use]
    pub fn new(tokens: ServiceTokens, http: reqwest::Client) -> Self {
        Self { tokens, http }
    }

    /// Keeps the service token valid until shutdown, see [`ServiceTokens::run`].
    pub async fn run(&self, shutdown: CancellationToken) {
        self.tokens.run(shutdown).await;
    }

    /// Creates a request with a token in `Authorization`: of the user on whose behalf the current
    /// task handles a request, else of this service.
    pub async fn request(
        &self,
        method: http::Method,
        url: Url,
    ) -> Result<reqwest::RequestBuilder, ServiceTokenError> {
        let token = match crate::http::user_token() {
            Some(token) => token,
            None => self.tokens.token().await?,
        };
        Ok(self.http.request(method, url).bearer_auth(token.expose()))
    }
}

/// Creates an HTTP client for calls to other services. It connects within 1 s, waits at most 5 s
/// for a response, closes idle connections before servers do (Node.js after 5 s), follows no
/// redirects, which would leak the token, and uses no proxy from the environment.
#[must_use]
pub fn http_client() -> reqwest::Client {
    reqwest::Client::builder()
        .connect_timeout(Duration::from_secs(1))
        .timeout(Duration::from_secs(5))
        .pool_idle_timeout(Duration::from_secs(4))
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .user_agent("postern")
        .build()
        .expect("the TLS library accepts the constant settings")
}

#[cfg(test)]
mod tests;
