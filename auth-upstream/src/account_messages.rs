//! Messages about an account, which the notification service delivers (`POST /notifications`).
//!
//! Calls carry this service's own token: the recipient of a code has no token yet. They also carry
//! the id of the request that caused them, so that both are found together.

use std::time::Duration;

use http::{Method, StatusCode};
use postern_common::clock::Timestamp;
use postern_common::dependency::{Dependency, root_cause};
use postern_common::email::EmailAddress;
use postern_common::service::ServiceClient;
use postern_common::{Code, Problem, trace};
use serde_json::{Value, json};
use url::Url;
use uuid::Uuid;

use crate::client::ClientContext;
use crate::telemetry::log_limited;

/// Timeout of one attempt. A registration waits for two of them under the lock of its address.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// The delay before the second attempt.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// `Retry-After` while the notification service is unavailable, in seconds.
const RETRY_AFTER_S: u32 = 5;

/// Sends messages about accounts. Clones share the connections.
#[derive(Clone, Debug)]
pub(crate) struct AccountMessages(std::sync::Arc<MessageClient>);

#[derive(Debug)]
struct MessageClient {
    service: ServiceClient,
    url: Url,
    availability: Dependency,
    /// Whether [`AccountMessages::notice`] sends anything (`notices`).
    sends_notices: bool,
}

/// What has happened to an account without a code: the variable `event` of `account-notice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccountNotice {
    PasswordChanged,
    /// A sign-in from a network in which the owner has not signed in before.
    NewNetwork,
    /// A social identity was linked to the account.
    SocialLink,
}

// === impl AccountNotice ===

impl AccountNotice {
    fn name(self) -> &'static str {
        match self {
            Self::PasswordChanged => "password_changed",
            Self::NewNetwork => "new_network",
            Self::SocialLink => "social_link",
        }
    }
}

// === impl AccountMessages ===

impl AccountMessages {
    /// `base` is the URL of the notification service.
    pub(crate) fn new(
        service: ServiceClient,
        base: &Url,
        availability: Dependency,
        sends_notices: bool,
    ) -> Self {
        let mut url = base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().push("notifications");
        }
        Self(std::sync::Arc::new(MessageClient {
            service,
            url,
            availability,
            sends_notices,
        }))
    }

    /// Sends a code, which is of no use after `expires_at`. Returns when the notification service has stored the message.
    ///
    /// # Errors
    /// `unavailable` if the service does not take it, `internal` if it does not accept it.
    pub(crate) async fn code(
        &self,
        template: &str,
        address: &EmailAddress,
        code: &str,
        expires_at: Timestamp,
        client: &ClientContext,
    ) -> Result<(), Problem> {
        let variables = json!({ "code": code });
        let mut body = body(template, "CRITICAL", address, &variables, client);
        body["expiresAt"] = json!(expires_at);
        self.0.send(&body).await
    }

    /// Returns the status with which the notification service answers the service token.
    pub(crate) async fn probe(&self) -> Result<StatusCode, String> {
        let request = self.0.service.request(Method::GET, self.0.url.clone());
        let request = request.await.map_err(|error| error.to_string())?;
        let answer = trace::send(request.timeout(ATTEMPT_TIMEOUT)).await;
        answer
            .map(|response| response.status())
            .map_err(|error| root_cause(&error.without_url()).to_string())
    }

    /// Tells the owner of an account what has happened to it, in the background: the operation
    /// neither waits for the message nor fails with it.
    pub(crate) fn notice(
        &self,
        notice: AccountNotice,
        address: &EmailAddress,
        client: &ClientContext,
    ) {
        if !self.0.sends_notices {
            return;
        }
        let variables = json!({ "event": notice.name() });
        let body = body("account-notice", "HIGH", address, &variables, client);
        let messages = self.0.clone();
        // A failure has been logged.
        drop(trace::spawn(async move { messages.send(&body).await }));
    }
}

fn body(
    template: &str,
    priority: &str,
    address: &EmailAddress,
    variables: &Value,
    client: &ClientContext,
) -> Value {
    let mut body = json!({
        "channel": "email",
        "recipient": { "email": address.as_str() },
        "template": template,
        "variables": variables,
        "priority": priority,
    });
    if let Some(locale) = &client.locale {
        body["locale"] = json!(**locale);
    }
    body
}

// === impl MessageClient ===

impl MessageClient {
    /// Submits a message in up to two attempts. The second one sends nothing twice.
    async fn send(&self, body: &Value) -> Result<(), Problem> {
        let key = Uuid::new_v4().to_string();
        let mut status = self.try_send(body, &key).await;
        if !status.is_some_and(|status| status.is_success() || status.is_client_error()) {
            tokio::time::sleep(RETRY_DELAY).await;
            status = self.try_send(body, &key).await;
        }
        match status {
            Some(status) if status.is_success() => Ok(()),
            Some(status) if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS => {
                let status = status.as_u16();
                log_limited!(
                    error,
                    status,
                    "account message rejected by the notification service"
                );
                Err(Code::Internal.into())
            }
            Some(_) | None => {
                log_limited!(
                    warn,
                    "account message not sent, notification service unavailable"
                );
                Err(Problem::new(Code::Unavailable).retry_after(RETRY_AFTER_S))
            }
        }
    }

    async fn try_send(&self, body: &Value, key: &str) -> Option<StatusCode> {
        let request = self.service.request(Method::POST, self.url.clone()).await;
        let request = request
            .inspect_err(|error| log_limited!(warn, %error, "service token unavailable"))
            .ok()?;
        let request = request.header("idempotency-key", key).json(body);
        match trace::send(request.timeout(ATTEMPT_TIMEOUT)).await {
            Ok(response) => {
                let status = response.status();
                if status.is_server_error() {
                    let status = status.as_u16();
                    self.availability
                        .record_failure(format_args!("status {status}"));
                } else {
                    self.availability.record_success();
                }
                Some(status)
            }
            Err(error) => {
                let cause = root_cause(&error.without_url());
                self.availability.record_failure(cause);
                None
            }
        }
    }
}
