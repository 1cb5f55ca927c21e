//! The actor service, which keeps the profiles. Called with our own service token: a registration
//! has no user token yet.

use std::time::Duration;
use tokio_util::sync::CancellationToken;

use http::{Method, StatusCode};
use postern_common::service::ServiceClient;
use serde_json::{Map, Value, json};
use url::Url;

use crate::email::Email;
use crate::log_limit::log_limited;

/// Waits before the second and the third try.
const BACKOFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(400)];
/// How long one try may take.
const DEADLINE: Duration = Duration::from_secs(3);

/// The actor service.
#[derive(Debug)]
pub(crate) struct ActorService {
    client: ServiceClient,
    base: Url,
}

/// Why a profile was not saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ActorFault {
    /// It reads the profile and does not take it.
    #[error("the actor service refused the profile with {0}")]
    Refused(u16),
    /// It does not let us in, or there is no such operation.
    #[error("the actor service does not let us in: {0}")]
    Misconfigured(u16),
    /// It is away, or failed.
    #[error("the actor service is away")]
    Away,
}

// === impl ActorService ===

impl ActorService {
    pub(crate) fn new(client: ServiceClient, base: Url) -> Self {
        Self { client, base }
    }

    /// Keeps our own service token fresh until the stop begins.
    pub(crate) async fn run(&self, shutdown: CancellationToken) {
        self.client.run(shutdown).await;
    }

    /// Saves a profile; repeating it is safe. Tries three times before it gives up.
    pub(crate) async fn register(
        &self,
        subject: &str,
        email: &Email,
        profile: &Map<String, Value>,
    ) -> Result<(), ActorFault> {
        let body = json!({ "actorId": subject, "email": email.as_str(), "profile": profile });
        let mut outcome = self.try_register(&body).await;
        for wait in BACKOFF {
            if outcome != Err(ActorFault::Away) {
                break;
            }
            tokio::time::sleep(wait).await;
            outcome = self.try_register(&body).await;
        }
        if let Err(fault) = outcome {
            log_limited!(warn, %fault, "a profile was not saved");
        }
        outcome
    }

    async fn try_register(&self, body: &Value) -> Result<(), ActorFault> {
        let status = self
            .call(Method::POST, &["actors", "register"], Some(body))
            .await?;
        match status.as_u16() {
            200 | 201 | 204 => Ok(()),
            refused @ (400 | 409 | 413 | 422) => Err(ActorFault::Refused(refused)),
            refused @ (401 | 403 | 404 | 405) => Err(ActorFault::Misconfigured(refused)),
            _ => Err(ActorFault::Away),
        }
    }

    /// Whether the actor service has a profile of this user.
    pub(crate) async fn has(&self, subject: &str) -> Result<bool, ActorFault> {
        match self
            .call(Method::GET, &["actors", subject], None)
            .await?
            .as_u16()
        {
            200 => Ok(true),
            404 => Ok(false),
            refused @ (401 | 403) => Err(ActorFault::Misconfigured(refused)),
            _ => Err(ActorFault::Away),
        }
    }

    async fn call(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
    ) -> Result<StatusCode, ActorFault> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| ActorFault::Misconfigured(0))?
            .pop_if_empty()
            .extend(path);
        let request = self.client.request(method, url).await.map_err(|error| {
            log_limited!(warn, %error, "no service token");
            ActorFault::Away
        })?;
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let answer = request
            .timeout(DEADLINE)
            .send()
            .await
            .map_err(|_| ActorFault::Away)?;
        Ok(answer.status())
    }
}
