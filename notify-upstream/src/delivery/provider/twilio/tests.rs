use axum::Router;
use axum::extract::Request;
use axum::routing::post;
use http::StatusCode;
use tokio::sync::mpsc;

use super::*;
use crate::delivery::retry::FailureClass;
use crate::testing::injection::naughty;
use crate::testing::outgoing;

/// Requests received by the test server: path, authorization, form.
type Heard = (String, String, Vec<(String, String)>);

async fn stand_in(status: u16, answer: &'static str) -> (Url, mpsc::UnboundedReceiver<Heard>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("port");
    let url = format!("http://{}", listener.local_addr().expect("address"))
        .parse()
        .expect("URL");
    let (sender, heard) = mpsc::unbounded_channel();
    let handler = move |request: Request| async move {
        let path = request.uri().path().to_owned();
        let authorization = request.headers()["authorization"]
            .to_str()
            .expect("valid UTF-8")
            .to_owned();
        let body = axum::body::to_bytes(request.into_body(), 1 << 16)
            .await
            .expect("body");
        let form = url::form_urlencoded::parse(&body).into_owned().collect();
        sender
            .send((path, authorization, form))
            .expect("a wake-up arrives");
        (
            StatusCode::from_u16(status).expect("status"),
            [("retry-after", "7")],
            answer,
        )
    };
    let router = Router::new().route("/{*path}", post(handler));
    tokio::spawn(async move { axum_serve(listener, router).await });
    (url, heard)
}

async fn axum_serve(listener: tokio::net::TcpListener, router: Router) {
    let limits = postern_service::http::Limits::default();
    postern_service::http::serve(
        listener,
        router,
        limits,
        tokio_util::sync::CancellationToken::new(),
    )
    .await;
}

fn twilio(base: Url) -> TwilioProvider {
    let config = TwilioConfig {
        base,
        account: "AC1".to_owned(),
        auth_token: Secret::from("12345"),
        sender: TwilioSender::Number(PhoneNumber::parse("+15005550006").expect("number")),
        callback: Some("https://gw.example/webhooks/twilio".parse().expect("URL")),
    };
    TwilioProvider::new(config, ErrorCodeTable::shipped()).expect("client")
}

async fn send(base: Url) -> Result<ProviderAck, ProviderRefusal> {
    let to = Address::Phone(PhoneNumber::parse("+491701234567").expect("number"));
    let content = MessageContent::Sms {
        text: "Hello & welcome".to_owned(),
    };
    let message = outgoing(&to, &content);
    twilio(base).send(&message).await
}

#[tokio::test]
async fn message_has_a_callback_with_our_id() {
    let (base, mut heard) = stand_in(201, r#"{"sid":"SM1","status":"queued"}"#).await;
    let taken = send(base).await.expect("no error");
    assert_eq!(taken.detail.as_deref(), Some("SM1 in 1 GSM-7 segment(s)"));
    let (path, authorization, form) = heard.recv().await.expect("a wake-up arrives");
    assert_eq!(path, "/2010-04-01/Accounts/AC1/Messages.json");
    assert_eq!(authorization, "Basic QUMxOjEyMzQ1");
    let field = |name: &str| {
        form.iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    };
    assert_eq!(
        (field("To"), field("Body")),
        (Some("+491701234567"), Some("Hello & welcome"))
    );
    assert!(
        field("StatusCallback")
            .expect("a callback")
            .starts_with("https://gw.example/webhooks/twilio?id=")
    );
}

#[tokio::test]
async fn refusals_are_classified_by_twilio_code() {
    let (base, _heard) = stand_in(
        400,
        r#"{"code":21211,"message":"The number +491701234567 is not valid"}"#,
    )
    .await;
    let refusal = send(base).await.expect_err("refused");
    assert_eq!(
        (refusal.class, refusal.code.as_str(), refusal.suppress),
        (FailureClass::Permanent, "number_not_valid", true)
    );
    assert!(!refusal.detail.expect("a text").contains("+49"));
    let (base, _heard) = stand_in(429, r#"{"code":20429,"message":"Too many requests"}"#).await;
    let refusal = send(base).await.expect_err("refused");
    assert_eq!(
        (refusal.class, refusal.retry_after),
        (
            FailureClass::Throttled,
            Some(std::time::Duration::from_secs(7))
        )
    );
}

#[test]
fn hostile_strings_stay_text_of_one_message() {
    let twilio = twilio("https://api.twilio.example".parse().expect("URL"));
    let number = PhoneNumber::parse("+491701234567").expect("number");
    let to = Address::Phone(number.clone());
    for text in naughty() {
        let content = MessageContent::Sms { text: text.clone() };
        let message = outgoing(&to, &content);
        let request = twilio
            .request(&message, &number, &text)
            .build()
            .expect("a request");
        let body = request
            .body()
            .and_then(reqwest::Body::as_bytes)
            .expect("a body");
        let form: Vec<(String, String)> = url::form_urlencoded::parse(body).into_owned().collect();
        let callback = format!("https://gw.example/webhooks/twilio?id={}", message.id);
        let expected = [
            ("To", "+491701234567"),
            ("Body", text.as_str()),
            ("From", "+15005550006"),
            ("StatusCallback", &callback),
        ];
        let found: Vec<_> = form
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(found, expected, "{text:?}");
    }
}
