//! Push messages to apps over Firebase Cloud Messaging, HTTP v1 API.

use std::time::Duration;

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use postern_core::clock::{Period, Timestamp};
use postern_core::{Clock, Secret};
use serde_json::{Value, json};
use url::Url;

use super::call::{ApiClient, ApiResponse};
use super::{FaultScope, OutgoingMessage, ProviderRefusal, SendResult, UNSUPPORTED};
use crate::address::Address;
use crate::delivery::retry::FailureClass;
use crate::templates::MessageContent;

/// A service account, from its JSON file.
#[derive(Clone, Debug)]
pub(crate) struct FcmAccount {
    /// `project_id`.
    pub(crate) project: String,
    /// `client_email`.
    pub(crate) email: String,
    /// `private_key`, PEM.
    pub(crate) key: Secret,
    /// `token_uri`.
    pub(crate) token_uri: Url,
    /// `https://fcm.googleapis.com`, or a test server.
    pub(crate) base: Url,
}

/// A client of FCM.
pub(crate) struct FcmProvider {
    account: FcmAccount,
    key: EncodingKey,
    api: ApiClient,
    /// The access token in use.
    token: Mutex<Option<AccessToken>>,
    clock: Clock,
}

/// An access token and the time of its use.
#[derive(Clone)]
struct AccessToken {
    secret: Secret,
    period: Period,
}

const SCOPE: &str = "https://www.googleapis.com/auth/firebase.messaging";
/// Lifetime of an access token in seconds, unless the response states another.
const TOKEN_LIFE_S: u64 = 3600;
/// Time before its expiry at which a token is replaced, so that calls in progress complete.
const TOKEN_RENEWAL_MARGIN: Duration = Duration::from_secs(300);
/// Maximum time in seconds for which FCM stores a message: four weeks.
const MAX_TTL_S: u64 = 28 * 86_400;

impl FcmProvider {
    /// Creates a client. No connection is opened.
    ///
    /// # Errors
    /// The key cannot be parsed, or TLS cannot be set up.
    pub(crate) fn new(account: FcmAccount, clock: Clock) -> Result<Self, String> {
        let key = EncodingKey::from_rsa_pem(account.key.expose().as_bytes())
            .map_err(|_| "the service account's private_key is not an RSA key in PEM".to_owned())?;
        Ok(Self {
            account,
            key,
            api: ApiClient::new("fcm")?,
            token: Mutex::default(),
            clock,
        })
    }

    /// Requests a token.
    pub(super) async fn probe(&self) -> Result<(), ProviderRefusal> {
        self.request_token().await.map(drop)
    }

    pub(super) async fn send(&self, message: &OutgoingMessage<'_>) -> SendResult {
        let (Address::DeviceToken(device), MessageContent::Push { title, body }) =
            (message.to, message.content)
        else {
            return Err(ProviderRefusal::not_sent(UNSUPPORTED));
        };
        let token = self.token().await?;
        let FcmAccount { project, base, .. } = &self.account;
        let mut url = base.clone();
        url.set_path(&format!("/v1/projects/{project}/messages:send"));
        let body = self.body(message, device.as_str(), title, body);
        let request = self.api.http.post(url).bearer_auth(token.expose());
        let answer = self.api.call(request.json(&body)).await?;
        if answer.is_success() {
            return Ok(answer.text("name"));
        }
        if answer.status == 401 {
            // The token was revoked; the next attempt requests a new one.
            *self.token.lock() = None;
        }
        Err(refusal(&answer))
    }

    fn body(&self, message: &OutgoingMessage<'_>, device: &str, title: &str, body: &str) -> Value {
        let id = message.id.to_string();
        let left = message.expires_at.map_or(MAX_TTL_S, |end| {
            end.since(self.clock.now()).as_secs().min(MAX_TTL_S)
        });
        let (android, apns) = match message.urgent {
            true => ("HIGH", "10"),
            false => ("NORMAL", "5"),
        };
        let expiration = self.clock.now().unix_seconds() + i64::try_from(left).unwrap_or(0);
        json!({"message": {
            "token": device,
            "notification": {"title": title, "body": body},
            "data": {"notificationId": id},
            "android": {"priority": android, "collapse_key": id, "ttl": format!("{left}s")},
            "apns": {"headers": {
                "apns-priority": apns, "apns-collapse-id": id, "apns-expiration": expiration.to_string()
            }},
        }})
    }

    /// Returns the token in use, or a new one.
    async fn token(&self) -> Result<Secret, ProviderRefusal> {
        let now = self.clock.now();
        let held = self.token.lock().clone();
        if let Some(held) = held.filter(|held| held.period.contains(now)) {
            return Ok(held.secret);
        }
        let token = self.request_token().await?;
        *self.token.lock() = Some(token.clone());
        Ok(token.secret)
    }

    /// Requests a token with a signed assertion (RFC 7523).
    async fn request_token(&self) -> Result<AccessToken, ProviderRefusal> {
        let now = self.clock.now().unix_seconds();
        let claims = json!({
            "iss": self.account.email, "scope": SCOPE, "aud": self.account.token_uri.as_str(), "iat": now, "exp": now + 3600
        });
        let assertion = jsonwebtoken::encode(&Header::new(Algorithm::RS256), &claims, &self.key)
            .map_err(|_| self.api.classify("UNAUTHENTICATED"))?;
        let form = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
            ("assertion", &assertion),
        ];
        let request = self.api.http.post(self.account.token_uri.clone());
        let answer = self.api.call(request.form(&form)).await;
        let answer = answer.map_err(|refusal| ProviderRefusal {
            // No message has been sent yet.
            class: FailureClass::Transient,
            scope: FaultScope::Provider,
            ..refusal
        })?;
        let (secret, life) = token_of(&answer).ok_or_else(|| {
            let code = match answer.status {
                400..=404 => "UNAUTHENTICATED",
                _ => "UNAVAILABLE",
            };
            self.api.classify(code).with_detail("no access token")
        })?;
        Ok(AccessToken {
            period: Period::new(Timestamp::from_unix_seconds(now), life),
            secret,
        })
    }
}

/// Returns the token of a response and the duration of its use.
fn token_of(answer: &ApiResponse) -> Option<(Secret, Duration)> {
    let body = answer.json();
    let secret = body.get("access_token").filter(|_| answer.is_success());
    let secret = Secret::from(secret?.as_str()?);
    let life_s = body.get("expires_in").and_then(Value::as_u64);
    let life = Duration::from_secs(life_s.unwrap_or(TOKEN_LIFE_S).min(TOKEN_LIFE_S));
    Some((secret, life.saturating_sub(TOKEN_RENEWAL_MARGIN)))
}

/// Classifies a response by `error.details[].errorCode` and `error.status`.
pub(super) fn refusal(answer: &ApiResponse) -> ProviderRefusal {
    let body = answer.json();
    let details = body.pointer("/error/details").and_then(Value::as_array);
    let details = details.into_iter().flatten();
    let detailed = details.filter_map(|detail| detail.get("errorCode")?.as_str());
    let status = body.pointer("/error/status").and_then(Value::as_str);
    let named: Vec<&str> = detailed.chain(status).collect();
    answer.refusal("fcm", &named)
}

#[cfg(test)]
mod tests;
