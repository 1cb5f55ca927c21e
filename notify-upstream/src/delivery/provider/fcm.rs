//! Push messages to apps over Firebase Cloud Messaging, HTTP v1 API.

use std::time::Duration;

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use postern_common::cache::Cache;
use postern_common::clock::Timestamp;
use postern_common::seal::Seal;
use postern_common::{Clock, Secret};
use serde_json::{Value, json};
use url::Url;

use super::call::{ApiResponse, call, client};
use super::{ErrorCodeTable, FaultScope, OutgoingMessage, ProviderAck, ProviderRefusal};
use crate::address::Address;
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
    http: reqwest::Client,
    cache: Cache,
    /// Seals the copy in the cache with a key derived from the private key of the account.
    seal: Seal,
    /// The local copy of the access token.
    token_copy: Mutex<Option<AccessToken>>,
    clock: Clock,
    codes: ErrorCodeTable,
}

/// An access token and the end of its use.
#[derive(Clone)]
struct AccessToken {
    secret: Secret,
    expires_at: Timestamp,
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
    pub(crate) fn new(
        account: FcmAccount,
        cache: Cache,
        clock: Clock,
        codes: ErrorCodeTable,
    ) -> Result<Self, String> {
        let key = EncodingKey::from_rsa_pem(account.key.expose().as_bytes())
            .map_err(|_| "the service account's private_key is not an RSA key in PEM".to_owned())?;
        let seal = Seal::new(
            "postern FCM token v1",
            account.key.expose().as_bytes(),
            &cache_key(&account.project),
        );
        Ok(Self {
            account,
            key,
            http: client()?,
            cache,
            seal,
            token_copy: Mutex::default(),
            clock,
            codes,
        })
    }

    pub(super) async fn send(
        &self,
        message: &OutgoingMessage<'_>,
    ) -> Result<ProviderAck, ProviderRefusal> {
        let (Address::DeviceToken(device), MessageContent::Push { title, body }) =
            (message.to, message.content)
        else {
            return Err(ProviderRefusal::unsupported_message());
        };
        let token = self.token().await?;
        let mut url = self.account.base.clone();
        url.set_path(&format!(
            "/v1/projects/{}/messages:send",
            self.account.project
        ));
        let body = self.body(message, device.as_str(), title, body);
        let request = self.http.post(url).bearer_auth(token.expose()).json(&body);
        let answer = call(&self.codes, "fcm", request).await?;
        if answer.is_success() {
            return Ok(ProviderAck {
                detail: answer
                    .json()
                    .get("name")
                    .and_then(Value::as_str)
                    .map(str::to_owned),
            });
        }
        if answer.status == 401 {
            // The token was revoked; the next attempt requests a new one.
            self.set_token_copy(None);
            let _best_effort = self.cache.delete(&cache_key(&self.account.project)).await;
        }
        Err(refusal(&answer, &self.codes))
    }

    fn body(&self, message: &OutgoingMessage<'_>, device: &str, title: &str, body: &str) -> Value {
        let id = message.id.to_string();
        let left = message.expires_at.map_or(MAX_TTL_S, |end| {
            end.since(self.clock.now()).as_secs().min(MAX_TTL_S)
        });
        let (android, apns) = if message.urgent {
            ("HIGH", "10")
        } else {
            ("NORMAL", "5")
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

    /// Returns the local token, that of the shared cache, or a new one.
    async fn token(&self) -> Result<Secret, ProviderRefusal> {
        let now = self.clock.now();
        let token_copy = self.token_copy.lock().clone();
        let token = match token_copy.filter(|token_copy| token_copy.expires_at > now) {
            Some(token_copy) => return Ok(token_copy.secret),
            None => match self
                .cached_token()
                .await
                .filter(|cached_token| cached_token.expires_at > now)
            {
                Some(cached_token) => cached_token,
                None => self.request_token().await?,
            },
        };
        self.set_token_copy(Some(token.clone()));
        Ok(token.secret)
    }

    fn set_token_copy(&self, token: Option<AccessToken>) {
        *self.token_copy.lock() = token;
    }

    /// Reads the token that another replica has requested: its expiry in milliseconds, and the
    /// token.
    async fn cached_token(&self) -> Option<AccessToken> {
        let sealed = self
            .cache
            .get(&cache_key(&self.account.project))
            .await
            .ok()??;
        let plaintext = self.seal.open(&sealed)?;
        let (expires_at, secret) = plaintext.split_once(' ')?;
        Some(AccessToken {
            secret: Secret::from(secret),
            expires_at: Timestamp(expires_at.parse().ok()?),
        })
    }

    /// Requests a token with a signed assertion (RFC 7523).
    async fn request_token(&self) -> Result<AccessToken, ProviderRefusal> {
        let now = self.clock.now().unix_seconds();
        let claims = json!({
            "iss": self.account.email, "scope": SCOPE, "aud": self.account.token_uri.as_str(), "iat": now, "exp": now + 3600
        });
        let assertion = jsonwebtoken::encode(&Header::new(Algorithm::RS256), &claims, &self.key)
            .map_err(|_| self.codes.classify("fcm", "UNAUTHENTICATED"))?;
        let form = [
            ("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
            ("assertion", &assertion),
        ];
        let request = self.http.post(self.account.token_uri.clone()).form(&form);
        let answer =
            call(&self.codes, "fcm", request)
                .await
                .map_err(|refusal| ProviderRefusal {
                    // No message has been sent yet.
                    class: crate::delivery::retry::FailureClass::Transient,
                    scope: FaultScope::Provider,
                    ..refusal
                })?;
        let (secret, life) = token_of(&answer).ok_or_else(|| match answer.status {
            400..=404 => self
                .codes
                .classify("fcm", "UNAUTHENTICATED")
                .with_detail("no access token"),
            _ => self
                .codes
                .classify("fcm", "UNAVAILABLE")
                .with_detail("no access token"),
        })?;
        let token = AccessToken {
            expires_at: Timestamp::from_unix_seconds(now).plus(life),
            secret,
        };
        let plaintext = format!("{} {}", token.expires_at.0, token.secret.expose());
        let sealed = self.seal.close(&plaintext);
        let _best_effort = self
            .cache
            .set(&cache_key(&self.account.project), &sealed, life)
            .await;
        Ok(token)
    }
}

fn cache_key(project: &str) -> String {
    format!("notify:fcm-token:{project}")
}

/// Returns the token of a response and the duration of its use.
fn token_of(answer: &ApiResponse) -> Option<(Secret, Duration)> {
    let body = answer.json();
    let secret = answer
        .is_success()
        .then(|| body.get("access_token")?.as_str().map(Secret::from))
        .flatten()?;
    let life_s = body
        .get("expires_in")
        .and_then(Value::as_u64)
        .unwrap_or(TOKEN_LIFE_S)
        .min(TOKEN_LIFE_S);
    Some((
        secret,
        Duration::from_secs(life_s).saturating_sub(TOKEN_RENEWAL_MARGIN),
    ))
}

/// Classifies a response by `error.details[].errorCode` and `error.status`.
pub(super) fn refusal(answer: &ApiResponse, codes: &ErrorCodeTable) -> ProviderRefusal {
    let body = answer.json();
    let details = body.pointer("/error/details").and_then(Value::as_array);
    let detailed = details
        .into_iter()
        .flatten()
        .filter_map(|detail| detail.get("errorCode")?.as_str());
    let status = body.pointer("/error/status").and_then(Value::as_str);
    let named: Vec<&str> = detailed.chain(status).collect();
    answer.refusal(codes, "fcm", &named)
}

impl std::fmt::Debug for FcmProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FcmProvider")
            .field("project", &self.account.project)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
