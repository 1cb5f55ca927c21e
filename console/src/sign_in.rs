//! Sign-in at the authentication service on behalf of a browser.
//!
//! The service learns the address of the browser, so that its limits count people, not the console. It
//! trusts the console as it trusts a gateway: on the same machine by default, and else by its
//! `trusted_proxies`.
//! Input: credentials and the address of the browser. Output: a token. Depends on `processes`.

use std::net::IpAddr;
use std::time::Duration;

use http::header::HeaderName;
use postern_core::{Code, Problem, Secret};
use serde_json::Value;
use url::Url;

use crate::processes::Reply;

/// Maximum time of a sign-in.
const SIGN_IN_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum bytes of the response to a sign-in.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The listener of postern-auth.
#[derive(Debug)]
pub(crate) struct SignInService {
    client: reqwest::Client,
    base: Url,
}

// === impl SignInService ===

impl SignInService {
    pub(crate) fn new(client: reqwest::Client, base: Url) -> Self {
        Self { client, base }
    }

    /// Signs in. The answer to wrong credentials is passed on.
    ///
    /// # Errors
    /// The problem of the service, or 503 if it does not answer.
    pub(crate) async fn sign_in(
        &self,
        credentials: &Value,
        client_address: Option<IpAddr>,
    ) -> Result<Secret, Problem> {
        let url = self.base.join("auth/login").map_err(|_| unavailable())?;
        let mut request = self.client.post(url).timeout(SIGN_IN_TIMEOUT);
        if let Some(address) = client_address {
            request = request.header(FORWARDED_FOR, address.to_string());
        }
        let sent = request.json(credentials).send().await;
        let reply = Reply::read(sent.map_err(|_| unavailable())?, MAX_RESPONSE_BYTES).await;
        let reply = reply.map_err(|_| unavailable())?;
        let answer = reply.json();
        let token = answer["accessToken"].as_str();
        if let Some(token) = token.filter(|_| reply.is_success()) {
            return Ok(Secret::from(token));
        }
        let code = answer["code"].as_str().and_then(Code::named);
        let problem = Problem::new(code.unwrap_or(Code::Unavailable));
        Err(match code {
            Some(Code::ChallengeRequired) => problem.detail(
                "this account signs in with a second step: sign in elsewhere and use its access token",
            ),
            Some(_) | None => problem,
        })
    }
}

fn unavailable() -> Problem {
    Problem::new(Code::Unavailable).detail("the authentication service does not answer")
}
