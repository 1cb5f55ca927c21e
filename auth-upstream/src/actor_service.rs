//! The client of the actor service, which stores user profiles.
//!
//! Calls for `GET /auth/me` carry the user's token; all others this service's own, because a
//! registration has no user token yet.

use std::time::Duration;

use http::Method;
use postern_core::backoff::Backoff;
use postern_core::email::EmailAddress;
use reqwest::Response;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::service_endpoint::ServiceEndpoint;
use crate::telemetry::{log_consequence, log_limited};

/// Maximum number of attempts to save a profile.
const MAX_SAVE_ATTEMPTS: u32 = 3;
/// Delays between these attempts.
const RETRY_DELAYS: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_millis(400));
/// Maximum size of a profile.
const MAX_PROFILE_BYTES: usize = 64 << 10;
/// The time for which a message waits for the locale of its recipient.
const LOCALE_TIMEOUT: Duration = Duration::from_millis(300);

/// A client of the actor service.
#[derive(Debug)]
pub(crate) struct ActorService(pub(crate) ServiceEndpoint);

/// The reason for which a call to the actor service failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ActorServiceError {
    /// The service rejects the profile with this status.
    #[error("profile rejected with status {0}")]
    Rejected(u16),
    /// The service does not accept this caller or has no such endpoint.
    #[error("call not permitted, status {0}")]
    Misconfigured(u16),
    /// The service failed or did not answer.
    #[error("service unavailable")]
    Unavailable,
}

// === impl ActorService ===

impl ActorService {
    /// Timeout of one attempt.
    pub(crate) const TIMEOUT: Duration = Duration::from_secs(3);

    /// Renews the service token until shutdown.
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

    /// Returns whether the user has a profile.
    pub(crate) async fn has_profile(&self, subject: &str) -> Result<bool, ActorServiceError> {
        Ok(self.find_profile(subject).await?.is_some())
    }

    /// Returns the profile of a user, or `null`.
    pub(crate) async fn profile(&self, subject: &str) -> Result<Value, ActorServiceError> {
        let Some(mut response) = self.find_profile(subject).await? else {
            return Ok(Value::Null);
        };
        let mut body = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_PROFILE_BYTES {
                break;
            }
        }
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
