use super::*;
use crate::delivery::retry::FailureClass;
use crate::testing::injection::naughty;
use crate::testing::outgoing;
use crate::testing::recorded_api::RecordedApi;

async fn stand_in(status: u16, answer: &'static str) -> RecordedApi {
    RecordedApi::start(move |_| (status, answer.to_owned())).await
}

fn twilio(base: Url) -> TwilioProvider {
    let config = TwilioConfig {
        base,
        account: "AC1".to_owned(),
        auth_token: Secret::from("12345"),
        sender: TwilioSender::Number(PhoneNumber::parse("+15005550006").expect("number")),
        callback: Some("https://gw.example/webhooks/twilio".parse().expect("URL")),
    };
    TwilioProvider::new(config).expect("client")
}

async fn send(api: &RecordedApi) -> SendResult {
    let to = Address::Phone(PhoneNumber::parse("+491701234567").expect("number"));
    let content = MessageContent::Sms {
        text: "Hello & welcome".to_owned(),
    };
    let message = outgoing(&to, &content);
    twilio(api.base.clone()).send(&message).await
}

#[tokio::test]
async fn message_has_a_callback_with_our_id() {
    let api = stand_in(201, r#"{"sid":"SM1","status":"queued"}"#).await;
    let taken = send(&api).await.expect("no error");
    assert_eq!(taken.as_deref(), Some("SM1"));
    let request = api.requests.lock().remove(0);
    assert_eq!(request.path, "/2010-04-01/Accounts/AC1/Messages.json");
    assert_eq!(request.authorization, "Basic QUMxOjEyMzQ1");
    let form: std::collections::HashMap<_, _> =
        url::form_urlencoded::parse(request.body.as_bytes()).collect();
    assert_eq!(form["To"], "+491701234567");
    assert_eq!(form["Body"], "Hello & welcome");
    let callback = "https://gw.example/webhooks/twilio?id=";
    assert!(form["StatusCallback"].starts_with(callback), "{form:?}");
}

#[tokio::test]
async fn refusals_are_classified_by_twilio_code() {
    let invalid = r#"{"code":21211,"message":"The number +491701234567 is not valid"}"#;
    let refusal = send(&stand_in(400, invalid).await).await;
    let refusal = refusal.expect_err("refused");
    let found = (refusal.class, refusal.code.as_str(), refusal.suppress);
    assert_eq!(found, (FailureClass::Permanent, "number_not_valid", true));
    assert!(!refusal.detail.expect("a text").contains("+49"));
    let after = Some(std::time::Duration::from_secs(30));
    assert_eq!(refusal.retry_after, after);
}

#[test]
fn hostile_strings_stay_text_of_one_message() {
    let twilio = twilio("https://api.twilio.example".parse().expect("URL"));
    let number = PhoneNumber::parse("+491701234567").expect("number");
    let to = Address::Phone(number.clone());
    for text in naughty() {
        let content = MessageContent::Sms { text: text.clone() };
        let message = outgoing(&to, &content);
        let request = twilio.request(&message, &number, &text).build();
        let request = request.expect("a request");
        let body = request.body().and_then(reqwest::Body::as_bytes);
        let form = url::form_urlencoded::parse(body.expect("a body"));
        let form: Vec<(String, String)> = form.into_owned().collect();
        let callback = format!("https://gw.example/webhooks/twilio?id={}", message.id);
        let expected = [
            ("To", "+491701234567"),
            ("Body", text.as_str()),
            ("From", "+15005550006"),
            ("StatusCallback", &callback),
        ];
        let found = form
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        assert_eq!(found.collect::<Vec<_>>(), expected, "{text:?}");
    }
}
