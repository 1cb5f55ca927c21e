use std::sync::Arc;

use postern_core::decode::{Mistakes, json};
use postern_core::token::{Caller, Claims, User};

use super::*;
use crate::principal::Principal;
use crate::testing::{draft, service_of, templates_of, user_of};

const NOW: Timestamp = Timestamp(1_763_600_000_000);

fn read(text: &str) -> Result<NotificationRequest, Vec<(String, &'static str)>> {
    let mistakes = Mistakes::default();
    let node = json(text.as_bytes(), &mistakes).expect("JSON");
    let value = mistakes.object(&node, |object| NotificationRequest::read(object, NOW));
    mistakes
        .finish(value)
        .map_err(|all| all.into_iter().map(|m| (m.pointer, m.code)).collect())
}

#[test]
fn complete_request_is_parsed() {
    let request = read(
        r#"{"channel":"email","recipient":{"email":"ada@example.com"},"template":"welcome","variables":{"name":"Ada"},
            "locale":"de-AT","priority":"HIGH","sendAt":"2025-11-20T02:00:00Z","expiresAt":"2025-11-21T02:00:00Z"}"#,
    )
    .expect("valid request");
    assert_eq!(
        (request.channel, request.priority),
        (Channel::Email, Priority::High)
    );
    assert_eq!(request.locale.as_ref().map(Locale::as_str), Some("de-AT"));
    assert!(request.send_at.is_some() && request.expires_at.is_some());
}

#[test]
fn fingerprint_does_not_depend_on_json_spelling() {
    let print = |text: &str| read(text).expect("valid request").fingerprint();
    let a =
        r#"{"channel":"sms","recipient":{"actorId":"a"},"template":"t","variables":{"x":1,"y":2}}"#;
    let b = r#"{"template":"t","variables":{"y":2,"x":1},"priority":"NORMAL","recipient":{"actorId":"a"},"channel":"sms"}"#;
    assert_eq!(print(a), print(b));
    assert_ne!(print(a), print(&a.replace(":2", ":3")));
}

#[test]
fn user_may_send_urgent_only_if_configured() {
    let (user, service) = (user_of("a"), service_of("auth"));
    for priority in Priority::ALL {
        let refusal = user.authorize_priority(priority, false).err();
        let refusal = refusal.map(|problem| problem.code());
        let expected = priority.is_urgent().then_some(Code::PriorityNotAllowed);
        assert_eq!(refusal, expected, "{priority:?}");
        assert!(user.authorize_priority(priority, true).is_ok());
        assert!(service.authorize_priority(priority, false).is_ok());
    }
}

/// Returns the code of the refusal of a request with this variable.
fn refusal(
    templates: &Templates,
    channel: Channel,
    name: &str,
    value: serde_json::Value,
) -> Option<Code> {
    let mut request = draft(Priority::Normal).request;
    request.channel = channel;
    request.variables.insert(name.to_owned(), value);
    let checked = request.check(templates, VariableAuthor::Service);
    let code = checked.err().map(|problem| problem.code());
    assert!(
        matches!(code, None | Some(Code::ValidationFailed)),
        "{code:?}"
    );
    code
}

#[test]
fn variable_of_wrong_type_is_rejected_at_validation() {
    let text = "{{ 10 // name }} {% for x in range(name) %}{{ x }}{% endfor %}";
    let files = [
        ("template.toml", "version = 1"),
        ("email.en.subject", "Hi"),
        ("email.en.txt", text),
    ];
    let templates = templates_of("welcome", &files);
    for (name, is_good) in [(2.into(), true), ("Ada".into(), false), (0.into(), false)] {
        let refusal = refusal(&templates, Channel::Email, "name", name);
        assert_eq!(refusal.is_none(), is_good, "{refusal:?}");
    }
}

#[test]
fn message_over_the_limit_of_its_channel_is_rejected() {
    let files = [
        ("template.toml", "version = 1"),
        ("sms.en.txt", "{{ text }}"),
        ("push.en.title", "t"),
        ("push.en.txt", "{{ text }}"),
    ];
    let templates = templates_of("welcome", &files);
    // A push message: `{"title":"t","body":"","notificationId":"…"}` has 79 bytes more.
    let push_room = 4096 - 103 - 79;
    for (channel, length, accepted) in [
        (Channel::Sms, 1530, true),
        (Channel::Sms, 1531, false),
        (Channel::Push, push_room, true),
        (Channel::Push, push_room + 1, false),
    ] {
        let refusal = refusal(&templates, channel, "text", "a".repeat(length).into());
        assert_eq!(refusal.is_none(), accepted, "{channel:?} {length}");
    }
}

#[test]
fn subject_of_another_issuer_is_not_an_actor() {
    let user = |issuer: &str| {
        Caller::User(Arc::new(User {
            issuer: issuer.into(),
            subject: "a".into(),
            username: "a".into(),
            client_id: "c".into(),
            scopes: Arc::new([]),
            groups: Arc::new([]),
            expires_at: 0,
            claims: Claims::default(),
        }))
    };
    let actors = "https://actors.test";
    let own = Principal::of(&user(actors), actors);
    let foreign = Principal::of(&user("https://partner.test"), actors);
    let recipient = Recipient::ActorId(ActorId::parse("a").expect("id"));
    assert!(own.authorize_recipient(&recipient, false).is_ok());
    assert!(own.may_read("service:auth", Some("a")));
    let refused = foreign.authorize_recipient(&recipient, false);
    let refused = refused.expect_err("another person").code();
    assert_eq!(refused, Code::RecipientNotAllowed);
    assert!(foreign.authorize_recipient(&recipient, true).is_ok());
    assert!(!foreign.may_read("service:auth", Some("a")));
    assert!(!foreign.may_read("service:auth", None));
    assert!(!foreign.may_read(&own.creator, Some("a")));
    assert!(foreign.may_read(&foreign.creator, None));
}
