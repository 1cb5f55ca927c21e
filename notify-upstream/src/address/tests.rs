use postern_common::decode::{Mistakes, json};

use super::*;

#[test]
fn unusual_email_addresses_are_rejected() {
    for good in [
        "ada@example.com",
        "a.b+c@Example.COM",
        "o'neil@x-y.example",
        "a@localhost",
    ] {
        assert!(EmailAddress::parse(good).is_some(), "{good}");
    }
    let long = format!("{}@example.com", "a".repeat(65));
    for bad in [
        "",
        "@",
        "ada",
        "ada@",
        "@x.com",
        "a b@x.com",
        "ada@x..com",
        ".a@x.com",
        "a.@x.com",
        "\"a\"@x.com",
        "a@x.com\r\nRCPT TO:<b@x.com>",
        "a@x.com>",
        "<a@x.com>",
        "a,b@x.com",
        "a@-x.com",
        "a@127.0.0.1",
        "a@[::1]",
        "ü@x.com",
        "a@ü.com",
        "a@x.com\0",
        "a@b@c\n",
        &long,
    ] {
        assert!(EmailAddress::parse(bad).is_none(), "{bad:?}");
    }
    assert_eq!(
        EmailAddress::parse("A@Example.COM")
            .map(|a| a.as_str().to_owned())
            .as_deref(),
        Some("A@example.com")
    );
}

#[test]
fn phone_numbers_must_be_e164() {
    assert!(PhoneNumber::parse("+491701234567").is_some());
    for bad in [
        "491701234567",
        "+0491701234",
        "+49 170 123",
        "+123456",
        "+1234567890123456",
        "+49170123456a",
    ] {
        assert!(PhoneNumber::parse(bad).is_none(), "{bad}");
    }
}

#[test]
fn private_urls_are_rejected() {
    let public = |text: &str| is_public_https(&Url::parse(text).expect("URL"));
    assert!(public("https://fcm.googleapis.com/fcm/send/x"));
    assert!(public("https://93.184.216.34/"));
    for bad in [
        "http://push.example/",
        "https://127.0.0.1/",
        "https://10.0.0.1/",
        "https://169.254.169.254/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://localhost/",
        "https://0.0.0.0/",
        "https://2130706433/",
        "https://push.example:8443/",
        "https://[fd00::1]/",
        "https://[2002:7f00:1::]/",
        "https://db.internal/",
    ] {
        assert!(!public(bad), "{bad}");
    }
}

fn recipient(text: &str, channel: Channel) -> Result<Recipient, Vec<&'static str>> {
    let mistakes = Mistakes::default();
    let node = json(text.as_bytes(), &mistakes).expect("JSON");
    let value = Recipient::read(&mistakes.field(&node), Some(channel));
    mistakes
        .finish(value)
        .map_err(|all| all.into_iter().map(|mistake| mistake.code).collect())
}

#[test]
fn recipient_must_have_exactly_one_address() {
    assert!(recipient(r#"{"email":"a@x.com"}"#, Channel::Email).is_ok());
    assert!(recipient(r#"{"actorId":"a-1"}"#, Channel::Push).is_ok());
    let refused = |text, channel| recipient(text, channel).expect_err("invalid recipient");
    assert_eq!(refused("{}", Channel::Email), ["missing_field"]);
    assert_eq!(
        refused(r#"{"email":"a@x.com","actorId":"b"}"#, Channel::Email),
        ["ambiguous_recipient"]
    );
    assert_eq!(
        refused(r#"{"email":"a@x.com"}"#, Channel::Sms),
        ["recipient_mismatch"]
    );
    assert_eq!(
        refused(r#"{"actorId":"../admin"}"#, Channel::Email),
        ["invalid_format"]
    );
    assert_eq!(
        refused(r#"{"emial":"a@x.com"}"#, Channel::Email),
        ["missing_field", "unknown_field"]
    );
}

#[test]
fn recipient_round_trips_through_the_store() {
    for text in [r#"{"actorId":"a-1"}"#, r#"{"email":"a@x.com"}"#] {
        let recipient = recipient(text, Channel::Email).expect("valid recipient");
        let stored = serde_json::to_string(&recipient).expect("JSON");
        assert_eq!(stored, text);
        assert_eq!(
            serde_json::from_str::<Recipient>(&stored).expect("stored"),
            recipient
        );
    }
}
