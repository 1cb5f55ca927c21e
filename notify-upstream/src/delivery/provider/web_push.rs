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

use super::call::{call, guarded_client};
use super::{ErrorCodeTable, OutgoingMessage, ProviderAck, ProviderRefusal};
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
#[derive(Debug)]
pub(crate) struct WebPushProvider {
    key: VapidKey,
    http: reqwest::Client,
    clock: Clock,
    codes: ErrorCodeTable,
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
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub(crate) fn new(key: VapidKey, clock: Clock, codes: ErrorCodeTable) -> Result<Self, String> {
        Ok(Self {
            key,
            http: guarded_client()?,
            clock,
            codes,
        })
    }

    pub(super) async fn send(
        &self,
        message: &OutgoingMessage<'_>,
    ) -> Result<ProviderAck, ProviderRefusal> {
        let (Address::Subscription(subscription), MessageContent::Push { title, body }) =
            (message.to, message.content)
        else {
            return Err(ProviderRefusal::unsupported_message());
        };
        let request = self
            .request(message, subscription, title, body)
            .ok_or_else(|| ProviderRefusal {
                code: "subscription_not_usable".to_owned(),
                ..ProviderRefusal::unsupported_message()
            })?;
        let answer = call(&self.codes, "webpush", request).await?;
        if answer.is_success() {
            return Ok(ProviderAck {
                detail: Some(format!("http {}", answer.status)),
            });
        }
        Err(answer.refusal(&self.codes, "webpush", &[]))
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
    use crate::testing::outgoing;
    use postern_core::clock::Timestamp;

    /// The browser of RFC 8291 section 5.
    const BROWSER: [&str; 3] = [
        "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94",
        "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
        "BTBZMqHH6r4Tts7J_aSIgg",
    ];

    #[tokio::test]
    async fn independent_implementation_decrypts_messages() {
        let Some(_) =
            crate::testing::judge::installed("independent_implementation_decrypts_messages")
        else {
            return;
        };
        let [private, public, auth] = BROWSER;
        let key = Secret::from("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw");
        let key = VapidKey::new(&key, "mailto:ops@example.org".to_owned()).expect("a key");
        let push =
            WebPushProvider::new(key, Clock::manual(Timestamp(0)), ErrorCodeTable::shipped())
                .expect("client");
        let keys = SubscriptionKeys {
            p256dh: public.to_owned(),
            auth: auth.to_owned(),
        };
        let to = PushSubscription {
            endpoint: "https://push.example.com/x".to_owned(),
            keys,
        };
        let (address, content) = (
            Address::Subscription(to.clone()),
            MessageContent::Sms {
                text: String::new(),
            },
        );
        let message = outgoing(&address, &content);
        let request = push
            .request(&message, &to, "Grüße \u{1f44b}", "an Ada")
            .expect("the configuration is valid")
            .build()
            .expect("request");
        let body = request
            .body()
            .and_then(reqwest::Body::as_bytes)
            .expect("a body");
        let about = json!({
            "body": URL_SAFE_NO_PAD.encode(body), "privateKey": private, "publicKey": public, "auth": auth,
            "authorization": request.headers()["authorization"].to_str().expect("valid UTF-8"),
        });
        let opened = crate::testing::judge::ask(&[("web-push-open", about)])
            .await
            .remove(0);
        let text: serde_json::Value =
            serde_json::from_str(opened["text"].as_str().expect("valid UTF-8")).expect("JSON");
        assert_eq!(
            text,
            json!({"title": "Grüße \u{1f44b}", "body": "an Ada", "notificationId": message.id.to_string()})
        );
        let claims = json!({"aud": "https://push.example.com", "exp": 12 * 3600, "sub": "mailto:ops@example.org"});
        assert_eq!(opened["claims"], claims);
    }

    #[test]
    fn request_carries_vapid_and_private_addresses_are_not_called() {
        let private = Secret::from("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw");
        let key = VapidKey::new(&private, "mailto:ops@example.org".to_owned()).expect("a key");
        let push =
            WebPushProvider::new(key, Clock::manual(Timestamp(0)), ErrorCodeTable::shipped())
                .expect("client");
        let subscription = |endpoint: &str| PushSubscription {
            endpoint: endpoint.to_owned(),
            keys: SubscriptionKeys {
                p256dh: BROWSER[1].to_owned(),
                auth: BROWSER[2].to_owned(),
            },
        };
        let (to, content) = (
            subscription("https://push.example.com/x"),
            MessageContent::Sms {
                text: String::new(),
            },
        );
        let address = Address::Subscription(to.clone());
        let message = OutgoingMessage {
            expires_at: Some(Timestamp(60_000)),
            urgent: true,
            ..outgoing(&address, &content)
        };
        let request = push
            .request(&message, &to, "t", "b")
            .expect("the configuration is valid")
            .build()
            .expect("request");
        let header = |name: &str| {
            request.headers()[name]
                .to_str()
                .expect("valid UTF-8")
                .to_owned()
        };
        assert_eq!(
            (header("ttl"), header("urgency"), header("topic").len()),
            ("60".to_owned(), "high".to_owned(), 32)
        );
        let authorization = header("authorization");
        assert!(
            authorization.starts_with("vapid t=ey")
                && authorization.contains(", k=BP4z9KsN6nGRTbVY"),
            "{authorization}"
        );
        assert!(
            push.request(&message, &subscription("https://127.0.0.1/x"), "t", "b")
                .is_none()
        );
        assert!(VapidKey::new(&Secret::from("AAAA"), String::new()).is_err());
        let standard = Secret::from("yfWPiYE+n46HLnH0KqZOF1fJJU3MYrct3AELtAQ+oRw=");
        assert!(VapidKey::new(&standard, String::new()).is_ok());
    }
}
