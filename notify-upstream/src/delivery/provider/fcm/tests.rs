//! Tests against a test server for the token endpoint and FCM; signatures are verified by an
//! independent library.

use std::sync::Arc;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::KeyPair as _;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use postern_core::clock::Timestamp;

use super::*;
use crate::address::DeviceToken;
use crate::testing::recorded_api::{ReceivedRequest, RecordedApi};
use crate::testing::{judge, outgoing};

struct StandIn {
    api: RecordedApi,
    /// The next responses to messages; afterwards messages are accepted.
    answers: Arc<Mutex<Vec<(u16, Value)>>>,
}

impl StandIn {
    /// Returns the number of requested tokens.
    fn tokens(&self) -> usize {
        token_requests(&self.api.requests.lock())
    }
}

fn token_requests(requests: &[ReceivedRequest]) -> usize {
    let is_token = |request: &&ReceivedRequest| request.path == "/token";
    requests.iter().filter(is_token).count()
}

async fn stand_in() -> StandIn {
    let answers = Arc::new(Mutex::new(Vec::<(u16, Value)>::new()));
    let scripted = Arc::clone(&answers);
    let respond = move |requests: &[ReceivedRequest]| {
        let number = token_requests(requests);
        let accepted = json!({"name": "projects/p/messages/1"});
        let (status, answer) = match requests.last() {
            Some(last) if last.path == "/token" => (
                200,
                json!({"access_token": format!("ya29.{number}"), "expires_in": 3599}),
            ),
            _ => scripted.lock().pop().unwrap_or((200, accepted)),
        };
        (status, answer.to_string())
    };
    StandIn {
        api: RecordedApi::start(respond).await,
        answers,
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        STANDARD.encode(der)
    )
}

/// Returns a client and the public key of its account.
fn fcm(stand_in: &StandIn, clock: &Clock) -> (FcmProvider, String) {
    let pair = KeyPair::generate(KeySize::Rsa2048).expect("a key");
    let private: Pkcs8V1Der<'_> = pair.as_der().expect("DER");
    let public: PublicKeyX509Der<'_> = pair.public_key().as_der().expect("DER");
    let account = FcmAccount {
        project: "p".to_owned(),
        email: "push@p.example".to_owned(),
        key: Secret::new(pem("PRIVATE KEY", private.as_ref())),
        token_uri: stand_in.api.base.join("token").expect("URL"),
        base: stand_in.api.base.clone(),
    };
    let fcm = FcmProvider::new(account, clock.clone());
    (fcm.expect("an account"), pem("PUBLIC KEY", public.as_ref()))
}

async fn send(fcm: &FcmProvider) -> SendResult {
    let to = Address::DeviceToken(DeviceToken::parse("device-1").expect("token"));
    let content = MessageContent::Push {
        title: "Hello".to_owned(),
        body: "Ada".to_owned(),
    };
    let message = OutgoingMessage {
        expires_at: Some(Timestamp(60_000)),
        urgent: true,
        ..outgoing(&to, &content)
    };
    fcm.send(&message).await
}

#[tokio::test]
async fn access_token_is_requested_once() {
    let (stand_in, clock) = (stand_in().await, Clock::manual(Timestamp(0)));
    let (fcm, public) = fcm(&stand_in, &clock);
    for _ in 0..2 {
        let name = send(&fcm).await.expect("no error");
        assert_eq!(name.as_deref(), Some("projects/p/messages/1"));
    }
    let heard = stand_in.api.requests.lock().clone();
    let paths: Vec<&str> = heard.iter().map(|it| it.path.as_str()).collect();
    let send = "/v1/projects/p/messages:send";
    assert_eq!(paths, ["/token", send, send]);
    assert_eq!(heard[1].authorization, "Bearer ya29.1");
    let message: Value = serde_json::from_str(&heard[1].body).expect("JSON");
    let field = |pointer: &str| message.pointer(pointer).cloned().unwrap_or_default();
    for (pointer, value) in [
        ("/message/token", "device-1"),
        ("/message/notification/title", "Hello"),
        ("/message/android/ttl", "60s"),
        ("/message/android/priority", "HIGH"),
    ] {
        assert_eq!(field(pointer), value, "{pointer}");
    }
    let id = field("/message/data/notificationId");
    assert_eq!(field("/message/android/collapse_key"), id);
    assert_eq!(
        field("/message/apns/headers"),
        json!({"apns-priority": "10", "apns-collapse-id": id, "apns-expiration": "60"})
    );
    let form = url::form_urlencoded::parse(heard[0].body.as_bytes());
    let form: Vec<(String, String)> = form.into_owned().collect();
    assert_eq!(form[0].1, "urn:ietf:params:oauth:grant-type:jwt-bearer");
    if judge::installed("access_token_is_requested_once").is_some() {
        let audience = stand_in.api.base.join("token").expect("URL").to_string();
        let about = json!({"assertion": form[1].1, "key": public, "audience": audience});
        let claims = judge::ask(&[("fcm-assertion", about)]).await.remove(0);
        let expected = json!({"iss": "push@p.example", "scope": SCOPE, "aud": audience, "iat": 0, "exp": 3600});
        assert_eq!(claims, expected);
    }
}

#[tokio::test]
async fn refusal_is_without_address_and_may_replace_the_token() {
    let (stand_in, clock) = (stand_in().await, Clock::manual(Timestamp(0)));
    let (fcm, _) = fcm(&stand_in, &clock);
    for (status, code) in [(429, "QUOTA_EXCEEDED"), (401, "UNAUTHENTICATED")] {
        let details = json!([{"errorCode": code}]);
        let error = json!({"error": {"message": "of device-1", "details": details}});
        stand_in.answers.lock().push((status, error));
        let refusal = send(&fcm).await.expect_err("refused");
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(30)));
        assert!(!refusal.detail.unwrap_or_default().contains("device-1"));
    }
    send(&fcm).await.expect("no error");
    assert_eq!(stand_in.tokens(), 2, "a rejected token is replaced");
    let heard = stand_in.api.requests.lock();
    let last = heard.last().expect("the call succeeds");
    assert_eq!(last.authorization, "Bearer ya29.2");
}

#[tokio::test]
async fn token_is_replaced_before_it_expires() {
    let (stand_in, clock) = (stand_in().await, Clock::manual(Timestamp(0)));
    let (fcm, _) = fcm(&stand_in, &clock);
    // The token is valid for 3599 s.
    for (second, asked) in [(0, 1), (1, 1), (3298, 1), (3299, 2), (3300, 2)] {
        clock.advance(Duration::from_secs(second).saturating_sub(clock.now().since(Timestamp(0))));
        send(&fcm).await.expect("no error");
        assert_eq!(stand_in.tokens(), asked, "at {second}");
    }
}
