use postern_core::decode::{Mistakes, json};
use proptest::prelude::*;

use super::*;

/// Texts that are nearly addresses: parts that are valid, too long, empty or not allowed.
fn nearly_address() -> impl Strategy<Value = String> {
    let label = prop_oneof![
        "[a-zA-Z0-9]{1,3}",
        "[0-9]{1,3}",
        "-?[a-z]{0,3}-?",
        "[a-z]{62,65}"
    ];
    let host = proptest::collection::vec(label, 1..5).prop_map(|labels| labels.join("."));
    let local = prop_oneof!["[!-~]{0,4}", "[a-z.+']{1,6}", "[a-z]{63,66}"];
    (local, prop_oneof![Just("@"), Just("")], host)
        .prop_map(|(local, at, host)| format!("{local}{at}{host}"))
}

proptest! {
    #[test]
    fn address_that_can_register_can_be_mailed(text in nearly_address()) {
        let can_register = EmailAddress::parse(&text);
        let body = serde_json::json!({ "email": text }).to_string();
        let accepted = recipient(&body, Channel::Email).ok();
        prop_assert_eq!(
            accepted,
            can_register.clone().map(|email| Address::Email(email).into())
        );
        if let Some((local, host)) = can_register.as_ref().map(EmailAddress::parts) {
            prop_assert!(lettre::Address::new(local, host).is_ok(), "{}", text);
        }
    }
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
        "https://permanently-removed.invalid/fcm/send/x",
        "https://localhost./x",
        "https://printer.local./x",
        "https://push.example.com./x",
        "https://push.example/",
        "https://a.test/",
        "https://a.onion/",
        "https://router.home.arpa/",
        "https://a.localhost/",
        "https://user@push.example.com/",
        "https://192.88.99.1/",
        "https://[2001:0:7f00:1::]/",
        "https://[3fff::1]/",
    ] {
        assert!(!public(bad), "{bad}");
    }
}

#[test]
fn contact_must_be_reachable() {
    for good in ["mailto:ops@example.com", "https://example.com/contact"] {
        assert!(is_public_contact(good), "{good}");
    }
    for bad in [
        "mailto: ops@example.com",
        "mailto:",
        "mailto:ops@localhost",
        "mailto:ops@host.local",
        "mailto:ops",
        "https://",
        "https://localhost/",
        "http://example.com/",
        "ops@example.com",
    ] {
        assert!(!is_public_contact(bad), "{bad}");
    }
}

#[test]
fn keys_are_accepted_in_both_alphabets() {
    for (text, bytes) in [("-_-_", "_w"), ("+/+/", "/w==")] {
        assert_eq!(key_bytes(text, 3), Some(vec![0xfb, 0xff, 0xbf]));
        assert_eq!(key_bytes(bytes, 1), Some(vec![0xff]));
    }
    assert_eq!((key_bytes("AAAA", 2), key_bytes("?", 1)), (None, None));
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
    let both = r#"{"email":"a@x.com","actorId":"b"}"#;
    for (text, channel, codes) in [
        ("{}", Channel::Email, &["missing_field"][..]),
        (both, Channel::Email, &["ambiguous_recipient"]),
        (
            r#"{"email":"a@x.com"}"#,
            Channel::Sms,
            &["recipient_mismatch"],
        ),
        (
            r#"{"actorId":"../admin"}"#,
            Channel::Email,
            &["invalid_format"],
        ),
        (
            r#"{"emial":"a@x.com"}"#,
            Channel::Email,
            &["missing_field", "unknown_field"],
        ),
    ] {
        assert_eq!(recipient(text, channel).expect_err(text), codes);
    }
}

#[test]
fn international_domain_is_compared_in_ascii() {
    let ascii = hash("a@xn--bcher-kva.example");
    assert_eq!(hash("A@B\u{fc}cher.example"), ascii);
    assert_eq!(canonical("+491701234567"), "+491701234567");
}
