//! Push messages to browsers (RFC 8030), encrypted for them (RFC 8291), with VAPID (RFC 8292).

mod seal;

use aws_lc_rs::agreement;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_core::{Clock, Secret};
use serde_json::json;
use url::Url;

pub(super) use seal::MAX_PAYLOAD_BYTES;

use super::call::ApiClient;
use super::{OutgoingMessage, ProviderRefusal, SendResult, UNSUPPORTED};
use crate::address::{Address, PushSubscription, is_public_https, key_bytes};
use crate::templates::MessageContent;

/// The VAPID key, the identity of this service towards push services.
pub(crate) struct VapidKey {
    pair: EcdsaKeyPair,
    public: String,
    /// `mailto:` or `https:` address that a push service can contact.
    contact: String,
}

/// A client of push services, whose addresses are in the subscriptions.
pub(crate) struct WebPushProvider {
    key: VapidKey,
    api: ApiClient,
    clock: Clock,
}

/// Lifetime of a VAPID token in seconds: half a day; RFC 8292 section 2 allows a day.
const TOKEN_LIFE_S: i64 = 12 * 3600;
const MAX_TTL_S: u64 = 28 * 86_400;

impl VapidKey {
    /// Creates a key from the common form of a private key: 32 bytes in base64url.
    ///
    /// # Errors
    /// The value is not a private key on P-256.
    pub(crate) fn new(private: &Secret, contact: String) -> Result<Self, String> {
        let wrong = || "must be a private key on P-256: 32 bytes in base64url".to_owned();
        let bytes = key_bytes(private.expose(), 32).ok_or_else(wrong)?;
        let scalar = agreement::PrivateKey::from_private_key(&agreement::ECDH_P256, &bytes)
            .map_err(|_| wrong())?;
        let public = scalar.compute_public_key().map_err(|_| wrong())?;
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pair =
            EcdsaKeyPair::from_private_key_and_public_key(algorithm, &bytes, public.as_ref())
                .map_err(|_| wrong())?;
        Ok(Self {
            pair,
            public: URL_SAFE_NO_PAD.encode(public.as_ref()),
            contact,
        })
    }

    /// Returns the value of `Authorization` for a push service (RFC 8292 section 3).
    fn authorization(&self, endpoint: &Url, now_s: i64) -> Option<String> {
        let claims = json!({
            "aud": endpoint.origin().ascii_serialization(), "exp": now_s + TOKEN_LIFE_S, "sub": self.contact
        });
        let header = URL_SAFE_NO_PAD.encode(r#"{"typ":"JWT","alg":"ES256"}"#);
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = self
            .pair
            .sign(&SystemRandom::new(), signed.as_bytes())
            .ok()?;
        Some(format!(
            "vapid t={signed}.{}, k={}",
            URL_SAFE_NO_PAD.encode(signature),
            self.public
        ))
    }
}

impl WebPushProvider {
    /// Creates a client. No connection is opened.
    pub(crate) fn new(key: VapidKey, clock: Clock) -> Result<Self, String> {
        let api = ApiClient::guarded("webpush")?;
        Ok(Self { key, api, clock })
    }

    pub(super) async fn send(&self, message: &OutgoingMessage<'_>) -> SendResult {
        let (Address::Subscription(subscription), MessageContent::Push { title, body }) =
            (message.to, message.content)
        else {
            return Err(ProviderRefusal::not_sent(UNSUPPORTED));
        };
        let request = self.request(message, subscription, title, body);
        let unusable = || ProviderRefusal::not_sent("subscription_not_usable");
        self.api.send(request.ok_or_else(unusable)?).await
    }

    fn request(
        &self,
        message: &OutgoingMessage<'_>,
        to: &PushSubscription,
        title: &str,
        body: &str,
    ) -> Option<reqwest::RequestBuilder> {
        // The endpoint was checked at acceptance. It is checked again, because rows may have been
        // stored for days.
        let endpoint = Url::parse(&to.endpoint).ok().filter(is_public_https)?;
        let sealed = seal::seal(
            payload(&message.id.to_string(), title, body).as_bytes(),
            &to.keys.p256dh,
            &to.keys.auth,
        )?;
        let now = self.clock.now();
        let ttl = message
            .expires_at
            .map_or(MAX_TTL_S, |end| end.since(now).as_secs().min(MAX_TTL_S));
        let authorization = self.key.authorization(&endpoint, now.unix_seconds())?;
        let request = self
            .api
            .http
            .post(endpoint)
            .header("Authorization", authorization)
            .header("Content-Encoding", "aes128gcm")
            .header("Content-Type", "application/octet-stream")
            .header("TTL", ttl.to_string())
            .header("Urgency", if message.urgent { "high" } else { "normal" })
            // 32 characters of base64url: a repetition replaces the message before it (RFC 8030
            // section 5.4).
            .header("Topic", message.id.0.simple().to_string());
        Some(request.body(sealed))
    }
}

/// Returns the JSON that the service worker of the browser reads.
fn payload(id: &str, title: &str, body: &str) -> String {
    json!({"title": title, "body": body, "notificationId": id}).to_string()
}

/// Returns whether a push service must accept the message: 4,096 bytes (RFC 8030 section 7.2), which
/// is also the limit of FCM. Firefox for Android takes 3,070 and says 413; an endpoint does not tell
/// which browser it belongs to.
pub(super) fn fits(title: &str, body: &str) -> bool {
    let id = uuid::Uuid::nil().to_string();
    payload(&id, title, body).len() <= MAX_PAYLOAD_BYTES
}

impl std::fmt::Debug for VapidKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VapidKey")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::SubscriptionKeys;
    use crate::testing::{judge, outgoing};
    use postern_core::clock::Timestamp;

    /// The browser of RFC 8291 section 5.
    const BROWSER: [&str; 3] = [
        "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94",
        "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
        "BTBZMqHH6r4Tts7J_aSIgg",
    ];

    const KEY: &str = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw";

    fn subscription(endpoint: &str) -> PushSubscription {
        let [_, p256dh, auth] = BROWSER.map(str::to_owned);
        PushSubscription {
            endpoint: endpoint.to_owned(),
            keys: SubscriptionKeys { p256dh, auth },
        }
    }

    /// Returns the urgent request of one minute with a text to an endpoint, if it may be called,
    /// and the notification.
    fn request(endpoint: &str) -> (Option<reqwest::Request>, String) {
        let key = VapidKey::new(&Secret::from(KEY), "mailto:ops@example.org".to_owned());
        let (key, clock) = (key.expect("a key"), Clock::manual(Timestamp(0)));
        let push = WebPushProvider::new(key, clock).expect("client");
        let (to, text) = (subscription(endpoint), String::new());
        let (address, content) = (
            Address::Subscription(to.clone()),
            MessageContent::Sms { text },
        );
        let message = OutgoingMessage {
            expires_at: Some(Timestamp(60_000)),
            urgent: true,
            ..outgoing(&address, &content)
        };
        let request = push.request(&message, &to, "Grüße \u{1f44b}", "an Ada");
        let request = request.map(|request| request.build().expect("request"));
        (request, message.id.to_string())
    }

    #[tokio::test]
    async fn independent_implementation_decrypts_messages() {
        if judge::installed("independent_implementation_decrypts_messages").is_none() {
            return;
        }
        let [private, public, auth] = BROWSER;
        let (request, id) = request("https://push.example.com/x");
        let request = request.expect("a public address");
        let body = request.body().and_then(reqwest::Body::as_bytes);
        let about = json!({
            "body": URL_SAFE_NO_PAD.encode(body.expect("a body")),
            "privateKey": private, "publicKey": public, "auth": auth,
            "authorization": request.headers()["authorization"].to_str().expect("valid UTF-8"),
        });
        let opened = judge::ask(&[("web-push-open", about)]).await.remove(0);
        let text = opened["text"].as_str().expect("valid UTF-8");
        let text: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let expected = json!({"title": "Grüße \u{1f44b}", "body": "an Ada", "notificationId": id});
        assert_eq!(text, expected);
        let claims = json!({"aud": "https://push.example.com", "exp": 12 * 3600, "sub": "mailto:ops@example.org"});
        assert_eq!(opened["claims"], claims);
    }

    #[test]
    fn request_carries_vapid_and_private_addresses_are_not_called() {
        let (request, _) = request("https://push.example.com/x");
        let request = request.expect("a public address");
        let header = |name: &str| request.headers()[name].to_str().expect("valid UTF-8");
        let found = (header("ttl"), header("urgency"), header("topic").len());
        assert_eq!(found, ("60", "high", 32));
        let authorization = header("authorization");
        let has_key = authorization.contains(", k=BP4z9KsN6nGRTbVY");
        assert!(
            has_key && authorization.starts_with("vapid t=ey"),
            "{authorization}"
        );
        assert!(self::request("https://127.0.0.1/x").0.is_none());
        assert!(VapidKey::new(&Secret::from("AAAA"), String::new()).is_err());
        let standard = KEY.replace('-', "+") + "=";
        assert!(VapidKey::new(&Secret::new(standard), String::new()).is_ok());
    }
}
