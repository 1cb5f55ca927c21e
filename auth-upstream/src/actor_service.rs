//! The client of the actor service, which stores user profiles.
//!
//! Calls for `GET /auth/me` carry the user's token; all others this service's own, because a
//! registration has no user token yet.

use std::time::Duration;

use http::Method;
use postern_core::backoff::Backoff;
use postern_core::email::EmailAddress;
use postern_core::network;
use reqwest::Response;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::service_endpoint::ServiceEndpoint;
use crate::telemetry::{log_consequence, log_limited};

const MAX_SAVE_ATTEMPTS: u32 = 3;
/// Delays between these attempts.
const RETRY_DELAYS: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_millis(400));
const MAX_PROFILE_BYTES: usize = 64 << 10;
/// The time for which a message waits for the locale of its recipient.
const LOCALE_TIMEOUT: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub(crate) struct ActorService(pub(crate) ServiceEndpoint);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ActorServiceError {
    #[error("profile rejected with status {0}")]
    Rejected(u16),
    /// The service does not accept this caller or has no such endpoint.
    #[error("call not permitted, status {0}")]
    Misconfigured(u16),
    #[error("service unavailable")]
    Unavailable,
}

// === impl ActorService ===

impl ActorService {
    pub(crate) const TIMEOUT: Duration = Duration::from_secs(3);

    pub(crate) async fn run(&self, shutdown: CancellationToken) {
        self.0.client.run(shutdown).await;
    }

    /// Saves a profile, in up to three attempts. Idempotent. `is_verified` says whether the pool
    /// knows that the address is the user's, which lets the user have messages sent there.
    pub(crate) async fn save_profile(
        &self,
        subject: &str,
        email: &EmailAddress,
        is_verified: bool,
        profile: &Map<String, Value>,
    ) -> Result<(), ActorServiceError> {
        let mut profile = profile.clone();
        if is_verified {
            profile.insert("emailVerified".to_owned(), true.into());
        }
        let body = json!({ "actorId": subject, "email": email.as_str(), "profile": profile });
        let save = || self.try_save_profile(&body);
        let is_temporary =
            |outcome: &Result<(), _>| *outcome == Err(ActorServiceError::Unavailable);
        let saving = RETRY_DELAYS.retry(MAX_SAVE_ATTEMPTS, save, is_temporary);
        let outcome = saving.await;
        match outcome {
            Ok(()) => {}
            Err(error @ ActorServiceError::Unavailable) => {
                log_consequence!(%error, "profile not saved");
            }
            Err(error) => log_limited!(warn, %error, "profile not saved"),
        }
        outcome
    }

    async fn try_save_profile(&self, body: &Value) -> Result<(), ActorServiceError> {
        let status = self
            .call(Method::POST, &["actors", "register"], Some(body))
            .await?
            .status();
        match status.as_u16() {
            200 | 201 | 204 => Ok(()),
            status @ (400 | 409 | 413 | 422) => Err(ActorServiceError::Rejected(status)),
            status @ (401 | 403 | 404 | 405) => Err(ActorServiceError::Misconfigured(status)),
            _ => Err(ActorServiceError::Unavailable),
        }
    }

    pub(crate) async fn has_profile(&self, subject: &str) -> Result<bool, ActorServiceError> {
        Ok(self.find_profile(subject).await?.is_some())
    }

    pub(crate) async fn profile(&self, subject: &str) -> Result<Value, ActorServiceError> {
        let Some(response) = self.find_profile(subject).await? else {
            return Ok(Value::Null);
        };
        let body = network::read_body(response, MAX_PROFILE_BYTES).await;
        let body = body.ok().flatten().unwrap_or_default();
        serde_json::from_slice(&body).map_err(|_| ActorServiceError::Unavailable)
    }

    async fn find_profile(&self, subject: &str) -> Result<Option<Response>, ActorServiceError> {
        let response = self.call(Method::GET, &["actors", subject], None).await?;
        match response.status().as_u16() {
            200 => Ok(Some(response)),
            404 => Ok(None),
            status @ (401 | 403) => Err(ActorServiceError::Misconfigured(status)),
            _ => Err(ActorServiceError::Unavailable),
        }
    }

    /// Returns the field `locale` of the user's profile, if it is answered soon.
    pub(crate) async fn locale(&self, subject: &str) -> Option<String> {
        let read = tokio::time::timeout(LOCALE_TIMEOUT, self.profile(subject));
        let actor = read.await.ok()?.ok()?;
        let fields = [&actor["locale"], &actor["profile"]["locale"]];
        let locale = fields.into_iter().find_map(Value::as_str);
        locale.map(str::to_owned)
    }

    async fn call(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
    ) -> Result<Response, ActorServiceError> {
        let answered = self.0.call(method, path, body, None).await;
        answered.map_err(|_| ActorServiceError::Unavailable)
    }
}
