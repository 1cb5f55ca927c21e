//! The client of the actor service, which stores user profiles.
//!
//! Calls carry this service's own token, because a registration has no user token yet.

use std::time::Duration;

use http::{Method, StatusCode};
use postern_common::dependency::{Dependency, root_cause};
use postern_common::email::EmailAddress;
use postern_common::service::ServiceClient;
use postern_common::trace;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::telemetry::log_limited;

/// Delays before the second and the third attempt.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];
/// Timeout of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);

/// A client of the actor service.
#[derive(Debug)]
pub(crate) struct ActorService {
    client: ServiceClient,
    base: Url,
    availability: Dependency,
}

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
    pub(crate) fn new(client: ServiceClient, base: Url, availability: Dependency) -> Self {
        Self {
            client,
            base,
            availability,
        }
    }

    /// Renews the service token until shutdown.
    pub(crate) async fn run(&self, shutdown: CancellationToken) {
        self.client.run(shutdown).await;
    }

    /// Saves a profile, in up to three attempts. Idempotent.
    pub(crate) async fn save_profile(
        &self,
        subject: &str,
        email: &EmailAddress,
        profile: &Map<String, Value>,
    ) -> Result<(), ActorServiceError> {
        let body = json!({ "actorId": subject, "email": email.as_str(), "profile": profile });
        let mut outcome = self.try_save_profile(&body).await;
        for delay in RETRY_DELAYS {
            if outcome != Err(ActorServiceError::Unavailable) {
                break;
            }
            tokio::time::sleep(delay).await;
            outcome = self.try_save_profile(&body).await;
        }
        if let Err(error) = outcome {
            log_limited!(warn, %error, "profile not saved");
        }
        outcome
    }

    async fn try_save_profile(&self, body: &Value) -> Result<(), ActorServiceError> {
        let status = self
            .call(Method::POST, &["actors", "register"], Some(body))
            .await?;
        match status.as_u16() {
            200 | 201 | 204 => Ok(()),
            status @ (400 | 409 | 413 | 422) => Err(ActorServiceError::Rejected(status)),
            status @ (401 | 403 | 404 | 405) => Err(ActorServiceError::Misconfigured(status)),
            _ => Err(ActorServiceError::Unavailable),
        }
    }

    /// Returns whether the user has a profile.
    pub(crate) async fn has_profile(&self, subject: &str) -> Result<bool, ActorServiceError> {
        let status = self.call(Method::GET, &["actors", subject], None).await?;
        match status.as_u16() {
            200 => Ok(true),
            404 => Ok(false),
            status @ (401 | 403) => Err(ActorServiceError::Misconfigured(status)),
            _ => Err(ActorServiceError::Unavailable),
        }
    }

    async fn call(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
    ) -> Result<StatusCode, ActorServiceError> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| ActorServiceError::Misconfigured(0))?
            .pop_if_empty()
            .extend(path);
        let request = self.client.request(method, url).await.map_err(|error| {
            log_limited!(warn, %error, "service token unavailable");
            ActorServiceError::Unavailable
        })?;
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let response = trace::send(request.timeout(ATTEMPT_TIMEOUT))
            .await
            .map_err(|error| {
                let cause = root_cause(&error.without_url());
                self.availability.record_failure(cause);
                ActorServiceError::Unavailable
            })?;
        let status = response.status();
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            let status = status.as_u16();
            self.availability
                .record_failure(format_args!("status {status}"));
        } else {
            self.availability.record_success();
        }
        Ok(status)
    }
}
