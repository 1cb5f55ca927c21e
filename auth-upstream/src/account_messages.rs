//! Messages about an account, which the notification service delivers (`POST /notifications`).
//!
//! Calls carry this service's own token: the recipient of a code has no token yet. They also carry
//! the id of the request that caused them, so that both are found together.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use postern_core::backoff::Backoff;
use postern_core::clock::Timestamp;
use postern_core::email::EmailAddress;
use postern_core::{Code, Problem, trace};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::actor_service::ActorService;
use crate::client::ClientContext;
use crate::service_endpoint::ServiceEndpoint;
use crate::telemetry::{log_consequence, log_limited};

const MAX_ATTEMPTS: u32 = 2;
/// The delay before the second attempt.
const RETRY_DELAYS: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_millis(200));
/// `Retry-After` while the notification service is unavailable, in seconds.
const RETRY_AFTER_S: u32 = 5;

#[derive(Debug)]
pub(crate) struct AccountMessages {
    pub(crate) service: ServiceEndpoint,
    /// Knows the locales of the recipients.
    pub(crate) actor_service: Arc<ActorService>,
    /// Whether [`AccountMessages::notice`] sends anything (`notices`).
    pub(crate) sends_notices: bool,
}

named! {
    /// What has happened to an account without a code: the variable `event` of `account-notice`.
    AccountNotice {
        PasswordChanged = "password_changed",
        /// A sign-in from a network in which the owner has not signed in before.
        NewNetwork = "new_network",
        SocialLink = "social_link",
    }
}

// === impl AccountMessages ===

impl AccountMessages {
    /// Timeout of one attempt. A registration waits for two of them under the lock of its address.
    pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

    /// Returns the client of a request as it is known from the profile of this user.
    pub(crate) async fn client_of(&self, subject: &str, client: &ClientContext) -> ClientContext {
        let locale = self.actor_service.locale(subject).await;
        client.speaking(locale.as_deref())
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
        self.send(&body).await
    }

    /// Returns the status with which the notification service answers the service token.
    pub(crate) async fn probe(&self) -> Result<StatusCode, String> {
        let path = ["notifications"];
        let answered = self.service.call(Method::GET, &path, None, None).await;
        answered.map(|response| response.status())
    }

    /// Tells the owner of an account what has happened to it, in the background: the operation
    /// neither waits for the message nor fails with it.
    pub(crate) fn notice(
        self: &Arc<Self>,
        notice: AccountNotice,
        address: &EmailAddress,
        subject: Option<&str>,
        client: &ClientContext,
    ) {
        if !self.sends_notices {
            return;
        }
        let (messages, address) = (Arc::clone(self), address.clone());
        let (subject, client) = (subject.map(str::to_owned), client.clone());
        // A failure has been logged.
        drop(trace::spawn(async move {
            let client = match subject {
                Some(subject) => messages.client_of(&subject, &client).await,
                None => client,
            };
            let variables = json!({ "event": notice.name() });
            let body = body("account-notice", "HIGH", &address, &variables, &client);
            messages.send(&body).await
        }));
    }

    /// Submits a message in up to two attempts. The second one sends nothing twice.
    async fn send(&self, body: &Value) -> Result<(), Problem> {
        let key = Uuid::new_v4().to_string();
        let send = || async {
            let (method, path) = (Method::POST, ["notifications"]);
            let answered = self.service.call(method, &path, Some(body), Some(&key));
            answered.await.ok().map(|response| response.status())
        };
        let is_answer = |status: StatusCode| status.is_success() || status.is_client_error();
        let is_temporary = |status: &Option<StatusCode>| !status.is_some_and(is_answer);
        match RETRY_DELAYS.retry(MAX_ATTEMPTS, send, is_temporary).await {
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
                log_consequence!("account message not sent, notification service unavailable");
                Err(Problem::new(Code::Unavailable).retry_after(RETRY_AFTER_S))
            }
        }
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
