//! Subjects as mail programs show them: what is shown is what was given.

use mail_parser::MessageParser;
use proptest::prelude::*;

use super::*;

/// Texts in which a mail program could find an encoded word (RFC 2047).
fn subject() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("=?utf-8?q?pay_now=3A_https=3A=2F=2Fevil=2Eexample?="),
        Just("=?utf-8?b?eA==?="),
        Just("=?utf-8?q?=0D=0ABcc=3A?="),
        Just("=?"),
        Just("?="),
        Just("="),
        Just("?"),
        Just("q?"),
        Just(" "),
        Just("Welcome,"),
        Just("Gr\u{fc}\u{df}e"),
        Just("\u{1f44b}"),
        Just("a_word_of_letters"),
    ];
    let text = proptest::collection::vec(part, 1..40).prop_map(|parts| parts.concat());
    // One line without blanks at its ends, as templates render it.
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.prop_map(words)
        .prop_filter("empty", |text| !text.is_empty())
}

fn formatted(subject: &str) -> Vec<u8> {
    let to = EmailAddress::parse("ada@example.com").expect("address");
    let (address, content) = (Address::Email(to.clone()), content(subject));
    let message = OutgoingMessage {
        id: id(),
        ..outgoing(&address, &content)
    };
    let mail = message::build(&smtp(25).config, &message, &to, (subject, "Hello", None));
    mail.expect("a message").formatted()
}

proptest! {
    #[test]
    fn decoded_subject_is_the_text_that_was_given(subject in subject()) {
        let mail = formatted(&subject);
        let parsed = MessageParser::default().parse(&mail).expect("a message");
        prop_assert_eq!(parsed.subject(), Some(subject.as_str()));
        let head = String::from_utf8(mail).expect("ASCII");
        prop_assert!(head.lines().all(|line| line.len() <= 998));
    }
}

#[test]
fn date_is_the_time_of_sending() {
    let mail = String::from_utf8(formatted("x")).expect("ASCII");
    assert!(
        mail.contains("Date: Thu, 20 Nov 2025 00:53:20 +0000"),
        "{mail}"
    );
}
