//! Push messages to apps by Firebase Cloud Messaging, HTTP v1.

use std::time::Duration;

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use postern_common::cache::Cache;
use postern_common::{Clock, Secret};
use serde_json::{Value, json};
use url::Url;

use super::call::{Answer, call, client};
use super::{Codes, Message, Refusal, Taken};
use crate::address::Address;
use crate::template::Content;

/// A service account, as its JSON file tells.
#[derive(Clone, Debug)]
pub struct FcmAccount {
    /// `project_id`.
    pub project: String,
    /// `client_email`.
    pub email: String,
    /// `private_key`, PEM.
    pub key: Secret,
    /// `token_uri`.
    pub token_uri: Url,
    /// `https://fcm.googleapis.com`, or a stand-in.
    pub base: Url,
}

/// FCM with its account.
pub struct Fcm {
    account: FcmAccount,
    key: EncodingKey,
    http: reqwest::Client,
    cache: Cache,
    clock: Clock,
    codes: Codes,
}

const SCOPE: &str = "https://www.googleapis.com/auth/firebase.messaging";
/// Google's tokens live an hour.
const TOKEN_LIFE: Duration = Duration::from_secs(50 * 60);
/// FCM keeps a message at most four weeks.
const MAX_TTL_S: u64 = 28 * 86_400;

impl Fcm {
    /// An account; no connection is made yet.
    ///
    /// # Errors
    /// The key cannot be read, or TLS cannot be set up.
    pub fn new(account: FcmAccount, cache: Cache, clock: Clock, codes: Codes) -> Result<Self, String> {
        let key = EncodingKey::from_rsa_pem(account.key.expose().as_bytes())
            .map_err(|_| "the service account's private_key is not an RSA key in PEM".to_owned())?;
        Ok(Self { account, key, http: client()?, cache, clock, codes })
    }

    pub(super) async fn send(&self, message: &Message<'_>) -> Result<Taken, Refusal> {
        let (Address::DeviceToken(device), Content::Push { title, body }) = (message.to, message.content)
        else {
            return Err(Refusal::unfit());
        };
        let token = self.token().await?;
        let mut url = self.account.base.clone();
        url.set_path(&format!("/v1/projects/{}/messages:send", self.account.project));
        let body = self.body(message, device.as_str(), title, body);
        let request = self.http.post(url).bearer_auth(token.expose()).json(&body);
        let answer = call(&self.codes, "fcm", request).await?;
        let said = answer.json();
        if answer.is_success() {
            return Ok(Taken { detail: said.get("name").and_then(Value::as_str).map(str::to_owned) });
        }
        if answer.status == 401 {
            // A token that was revoked; the next attempt asks for a new one.
            let _best_effort = self.cache.delete(&self.cache_key()).await;
        }
        Err(answer.refusal(&self.codes, "fcm", error_code(&said).as_deref()))
    }

    fn body(&self, message: &Message<'_>, device: &str, title: &str, body: &str) -> Value {
        let id = message.id.to_string();
        let left =
            message.expires_at.map_or(MAX_TTL_S, |end| end.since(self.clock.now()).as_secs().min(MAX_TTL_S));
        let (android, apns) = if message.urgent { ("HIGH", "10") } else { ("NORMAL", "5") };
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

    fn cache_key(&self) -> String {
        format!("notify:fcm:{}", self.account.project)
    }

    /// From the shared cache, else by a signed assertion (RFC 7523).
    async fn token(&self) -> Result<Secret, Refusal> {
        if let Ok(Some(token)) = self.cache.get(&self.cache_key()).await
            && let Ok(token) = String::from_utf8(token)
        {
            return Ok(Secret::new(token));
        }
        let now = self.clock.now().unix_seconds();
        let claims = json!({
            "iss": self.account.email, "scope": SCOPE, "aud": self.account.token_uri.as_str(), "iat": now, "exp": now + 3600
        });
        let assertion = jsonwebtoken::encode(&Header::new(Algorithm::RS256), &claims, &self.key)
            .map_err(|_| self.codes.judge("fcm", "THIRD_PARTY_AUTH_ERROR"))?;
        let form = [("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"), ("assertion", &assertion)];
        let request = self.http.post(self.account.token_uri.clone()).form(&form);
        let answer = call(&self.codes, "fcm", request).await.map_err(|refusal| Refusal {
            // No message was handed over yet.
            class: crate::retry::Class::Transient,
            ..refusal
        })?;
        let token = token_of(&answer).ok_or_else(|| match answer.status {
            400..=404 => self.codes.judge("fcm", "THIRD_PARTY_AUTH_ERROR").with_detail("no access token"),
            _ => self.codes.judge("fcm", "UNAVAILABLE").with_detail("no access token"),
        })?;
        let _best_effort = self.cache.set(&self.cache_key(), token.expose().as_bytes(), TOKEN_LIFE).await;
        Ok(token)
    }
}

fn token_of(answer: &Answer) -> Option<Secret> {
    let body = answer.json();
    answer.is_success().then(|| body.get("access_token")?.as_str().map(Secret::from)).flatten()
}

/// `error.details[].errorCode`, else `error.status`.
fn error_code(answer: &Value) -> Option<String> {
    let details = answer.pointer("/error/details").and_then(Value::as_array);
    let detailed = details.into_iter().flatten().find_map(|detail| detail.get("errorCode")?.as_str());
    detailed.or_else(|| answer.pointer("/error/status")?.as_str()).map(str::to_owned)
}

impl std::fmt::Debug for Fcm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fcm").field("project", &self.account.project).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
