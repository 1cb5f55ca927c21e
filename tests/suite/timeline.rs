//! "Why did Ada not get her mail?": the time line of a person over the running services.

use postern_harness::Standalone;
use postern_harness::json;
use postern_harness::process::Ended;
use postern_harness::public_api::message;
use postern_harness::wait::answer;
use serde_json::Value;

/// Runs `postern timeline` over the data folder, while the services run.
async fn timeline(postern: &Standalone, arguments: &[&str]) -> Ended {
    let log = postern.folder().join("access.log").display().to_string();
    let all = [&["timeline", "--access-log", &log], arguments].concat();
    postern.command(&all).run().await
}

/// Repeats a query until its result has all parts: audit events, suppressions and the access log are
/// written soon after the response.
async fn timeline_with(postern: &Standalone, arguments: &[&str], parts: &[&str]) -> String {
    answer(async || {
        let ended = timeline(postern, arguments).await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        let text = ended.stdout;
        match parts.iter().find(|part| !text.contains(**part)) {
            None => Ok(text),
            Some(part) => Err(format!("no {part} in {text}")),
        }
    })
    .await
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
    let body = message("email", &json!({"email": email}));
    let created = service.posted("/notifications", &body, 201).await;
    let (id, request_id) = (
        created.string("/notificationId"),
        created.header("x-request-id"),
    );
    let view = service.settled(&format!("/notifications/{id}")).await;
    let of_notification = format!("notificationId={id}");
    let expected = [
        "register ok",
        "sign_in invalid_credentials",
        "FAILED",
        "SUPPRESSED",
        "POST /auth/login",
        "550 5.1.1 No such mailbox",
        "requestId=",
        "provider=password",
        &of_notification,
        &format!("subject={}", ada.id),
    ];
    let text = timeline_with(&postern, &["--email", email], &expected).await;
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
    let expected = ["password_reset_code ok", "template=account-reset", "SENT"];
    timeline_with(&postern, &["--request", &asked], &expected).await;
    // The person is found by subject as well, with the failed sign-in that named the address only.
    let by_user = timeline(&postern, &["--user", &ada.id]).await;
    assert_contains(&by_user.stdout, &["sign_in invalid_credentials"]);
    let nothing = timeline(&postern, &["--email", "%@bounce.invalid"]).await;
    assert_eq!(nothing.stdout, "no events found\n", "{}", nothing.stderr);
    let refused = timeline(&postern, &[]).await;
    assert_eq!(refused.status, Some(64), "{}", refused.stderr);
    postern.stop().await;
}
