//! "Why did Ada not get her mail?": the time line of a person over the running services.

use std::time::Duration;

use postern_harness::json;
use postern_harness::process::{Ended, Program};
use postern_harness::{Person, Standalone};
use serde_json::Value;

/// Maximum wait for an event.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Runs `postern timeline` over the data folder, while the services run.
async fn timeline(postern: &Standalone, arguments: &[&str]) -> Ended {
    let log = postern.folder().join("access.log").display().to_string();
    let folder = postern.folder().display().to_string();
    let fixed = ["timeline", "--data-dir", &folder, "--access-log", &log];
    let program = Program::of_workspace("postern", postern.folder()).args(fixed);
    program.args(arguments.iter().copied()).run().await
}

/// Repeats a query until its result is as expected: audit events, suppressions and the access log
/// are written soon after the response.
async fn timeline_until(
    postern: &Standalone,
    arguments: &[&str],
    is_complete: impl Fn(&str) -> bool,
) -> String {
    let complete = async {
        loop {
            let ended = timeline(postern, arguments).await;
            assert_eq!(ended.status, Some(0), "{}", ended.stderr);
            if is_complete(&ended.stdout) {
                return ended.stdout;
            }
        }
    };
    let complete = tokio::time::timeout(WAIT_LIMIT, complete).await;
    complete.expect("the events are stored in time")
}

async fn status_until_failed(person: &Person, id: &str) -> Value {
    let failed = async {
        loop {
            let path = format!("/notifications/{id}");
            let view = person.client.read(&path).await;
            if view["status"] == "FAILED" {
                return view;
            }
            tokio::task::yield_now().await;
        }
    };
    let failed = tokio::time::timeout(WAIT_LIMIT, failed).await;
    failed.expect("the mail server rejects the address")
}

fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

#[tokio::test]
async fn timeline_of_a_bounced_address_names_the_cause() {
    let postern = Standalone::start().await;
    let email = "ada@bounce.invalid";
    let surface = postern.surface();
    let ada = surface.register_as(email).await;
    let eve = surface.register().await;
    let wrong = json!({"email": "ADA@bounce.invalid", "password": "wrong"});
    let refused = surface.client().post_json("/auth/login", &wrong).await;
    let _ = refused.problem(401, "invalid_credentials");
    let service = postern.service("auth").await;
    let body = json!({"channel": "email", "recipient": {"email": email}, "template": "welcome",
        "variables": {"name": "Ada"}});
    let created = service.posted("/notifications", &body, 201).await;
    let (id, request_id) = (
        created.string("/notificationId"),
        created.header("x-request-id"),
    );
    let sender = Person {
        client: service,
        ..surface.person(&eve.email, eve.tokens.clone()).await
    };
    let view = status_until_failed(&sender, &id).await;
    let is_complete = |text: &str| {
        [
            "register ok",
            "sign_in invalid_credentials",
            "FAILED",
            "SUPPRESSED",
            "POST /auth/login",
        ]
        .iter()
        .all(|part| text.contains(part))
    };
    let text = timeline_until(&postern, &["--email", email], is_complete).await;
    let of_notification = format!("notificationId={id}");
    let expected = [
        "550 5.1.1 No such mailbox",
        "SUPPRESSED",
        "requestId=",
        "provider=password",
        &of_notification,
        &format!("subject={}", ada.id),
    ];
    assert_contains(&text, &expected);
    assert!(!text.contains(&eve.id), "another person's events:\n{text}");
    let times: Vec<_> = text.lines().map(|line| line.split(' ').next()).collect();
    assert!(times.is_sorted(), "in the order of time:\n{text}");
    // By notification and as JSON.
    let one = timeline(&postern, &["--notification", &id, "--json"]).await;
    let one: Value = serde_json::from_str(&one.stdout).expect("JSON");
    let failed = one["entries"].as_array().expect("a list").iter();
    let failed = failed.filter(|entry| entry["event"] == "FAILED").count();
    assert_eq!((failed, &view["status"]), (1, &json!("FAILED")));
    // By the request that created the notification.
    let by_request = timeline(&postern, &["--request", &request_id]).await.stdout;
    let expected = ["POST /notifications", &of_notification, "FAILED"];
    assert_contains(&by_request, &expected);
    // A code and the request for it have the same id.
    let forgot = json!({"email": eve.email});
    let asked = surface.client().post_json("/auth/password/forgot", &forgot);
    let asked = asked.await.expect(204).header("x-request-id");
    let is_complete = |text: &str| {
        ["password_reset_code ok", "template=account-reset", "SENT"]
            .iter()
            .all(|part| text.contains(part))
    };
    timeline_until(&postern, &["--request", &asked], is_complete).await;
    // The person is found by subject as well, with the failed sign-in that named the address only.
    let by_user = timeline(&postern, &["--user", &ada.id]).await;
    assert_contains(&by_user.stdout, &["sign_in invalid_credentials"]);
    let nothing = timeline(&postern, &["--email", "%@bounce.invalid"]).await;
    assert_eq!(nothing.stdout, "no events found\n", "{}", nothing.stderr);
    let refused = timeline(&postern, &[]).await;
    assert_eq!(refused.status, Some(64), "{}", refused.stderr);
    postern.stop().await;
}
