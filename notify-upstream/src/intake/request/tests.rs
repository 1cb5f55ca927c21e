use postern_core::decode::{Mistakes, json};
use postern_core::token::{Caller, Claims, User};

use super::*;
use crate::principal::Principal;

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
    let a = read(
        r#"{"channel":"sms","recipient":{"actorId":"a"},"template":"t","variables":{"x":1,"y":2}}"#,
    );
    let b = read(
        r#"{"template":"t","variables":{"y":2,"x":1},"priority":"NORMAL","recipient":{"actorId":"a"},"channel":"sms"}"#,
    );
    let c = read(
        r#"{"channel":"sms","recipient":{"actorId":"a"},"template":"t","variables":{"x":1,"y":3}}"#,
    );
    let print =
        |request: Result<NotificationRequest, _>| request.expect("valid request").fingerprint();
    let (a, b, c) = (print(a), print(b), print(c));
    assert_eq!(a, b);
    assert_ne!(a, c);
}

#[test]
fn user_may_send_urgent_only_if_configured() {
    let user = Principal {
        creator: "user:i|a".into(),
        actor: Some("a".to_owned()),
    };
    let service = Principal {
        creator: "service:auth".into(),
        actor: None,
    };
    for priority in Priority::ALL {
        let allowed = user
            .authorize_priority(priority, false)
            .map_err(|problem| problem.code());
        let expected = if priority.is_urgent() {
            Err(Code::PriorityNotAllowed)
        } else {
            Ok(())
        };
        assert_eq!(allowed, expected, "{priority:?}");
        assert!(
            user.authorize_priority(priority, true).is_ok()
                && service.authorize_priority(priority, false).is_ok()
        );
    }
}

#[test]
fn variable_of_wrong_type_is_rejected_at_validation() {
    let templates = crate::testing::templates_of(
        "welcome",
        &[
            ("template.toml", "version = 1"),
            ("email.en.subject", "Hi"),
            (
                "email.en.txt",
                "{{ 10 // name }} {% for x in range(name) %}{{ x }}{% endfor %}",
            ),
        ],
    );
    let check = |name: serde_json::Value| {
        let mut request = crate::testing::draft(Priority::Normal).request;
        request.variables.insert("name".to_owned(), name);
        request
            .check(&templates, VariableAuthor::Service)
            .map(|_| ())
            .map_err(|problem| problem.code())
    };
    assert_eq!(check(serde_json::json!(2)), Ok(()));
    for wrong in [serde_json::json!("Ada"), serde_json::json!(0)] {
        assert_eq!(check(wrong.clone()), Err(Code::ValidationFailed), "{wrong}");
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
    let templates = crate::testing::templates_of("welcome", &files);
    // A push message: `{"title":"t","body":"","notificationId":"…"}` has 79 bytes more.
    let push_room = 4096 - 103 - 79;
    for (channel, length, accepted) in [
        (Channel::Sms, 1530, true),
        (Channel::Sms, 1531, false),
        (Channel::Push, push_room, true),
        (Channel::Push, push_room + 1, false),
    ] {
        let mut request = crate::testing::draft(Priority::Normal).request;
        request.channel = channel;
        let text = serde_json::json!("a".repeat(length));
        request.variables.insert("text".to_owned(), text);
        let checked = request.check(&templates, VariableAuthor::Service);
        let code = checked.map(|_| ()).map_err(|problem| problem.code());
        let expected = if accepted {
            Ok(())
        } else {
            Err(Code::ValidationFailed)
        };
        assert_eq!(code, expected, "{channel:?} {length}");
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
    assert!(
        own.authorize_recipient(&recipient, false).is_ok()
            && own.may_read("service:auth", Some("a"))
    );
    let refused = foreign
        .authorize_recipient(&recipient, false)
        .map_err(|problem| problem.code());
    assert_eq!(refused, Err(Code::RecipientNotAllowed));
    assert!(foreign.authorize_recipient(&recipient, true).is_ok());
    assert!(
        !foreign.may_read("service:auth", Some("a")) && !foreign.may_read("service:auth", None)
    );
    assert!(!foreign.may_read(&own.creator, Some("a")) && foreign.may_read(&foreign.creator, None));
}
