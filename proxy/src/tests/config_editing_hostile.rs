//! Hostile requests for the configuration file over the admin listener.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::admin_client::{call, get, start};
use super::config_editing::{CHECK, CONFIG, HISTORY, check, file_text, moved, wait_for_history};
use super::harness::ADMIN_TOKEN;

#[tokio::test]
async fn hostile_texts_are_refused_without_effect() {
    let gateway = start().await;
    let before = file_text(&gateway);
    for text in [
        "include = [\"/dev/zero\", \"/etc/passwd\", \"../../../../etc/shadow\"]\n".to_owned(),
        "include = [\"/**/*\"]\n".to_owned(),
        "[".repeat(100_000),
        format!("x = {}1{}\n", "[".repeat(50_000), "]".repeat(50_000)),
        "a.".repeat(100_000),
        "[[route]]\n".repeat(20_000),
    ] {
        let report = check(&gateway, &text).await;
        let errors = report["errors"].as_array().expect("a list");
        assert!((1..=100).contains(&errors.len()), "{text:.40}: {report}");
        assert!(
            !report.to_string().contains("root:"),
            "{text:.40}: {report}"
        );
    }
    let long = json!({ "text": "x".repeat((1 << 20) + 1) });
    assert_eq!(call(&gateway, Method::POST, CHECK, &long).await.0, 422);
    // The connection may be closed before the whole body is sent.
    let longer = json!({ "text": "x".repeat(3 << 20) });
    let request = gateway.admin_request(Method::POST, CHECK, "grace");
    if let Ok(response) = request.json(&longer).send().await {
        assert_eq!(response.status(), 413);
    }
    for body in [
        json!({}),
        json!({ "text": 1 }),
        json!({ "text": "", "path": "/etc/passwd" }),
    ] {
        assert_eq!(
            call(&gateway, Method::POST, CHECK, &body).await.0,
            400,
            "{body}"
        );
    }
    let unread = json!({ "text": before });
    assert_eq!(
        call(&gateway, Method::PUT, CONFIG, &unread).await.0,
        400,
        "without a base"
    );
    assert_eq!(
        (
            file_text(&gateway),
            get(&gateway, CONFIG).await["version"].as_u64()
        ),
        (before, Some(1))
    );
}

#[tokio::test]
async fn configuration_requires_secret_and_operator() {
    let gateway = start().await;
    let before = file_text(&gateway);
    let body = json!({ "text": moved(&before), "baseHash": get(&gateway, CONFIG).await["hash"] });
    wait_for_history(&gateway, 1).await;
    for (method, path) in [
        (Method::GET, CONFIG.to_owned()),
        (Method::PUT, CONFIG.to_owned()),
        (Method::POST, CHECK.to_owned()),
        (Method::GET, HISTORY.to_owned()),
        (Method::GET, format!("{HISTORY}/1")),
        (Method::POST, format!("{HISTORY}/1/restore")),
    ] {
        let wrong = format!("Bearer {}", ADMIN_TOKEN.replace('f', "e"));
        let request = gateway
            .admin_request(method.clone(), &path, "grace")
            .json(&body);
        let (client, request) = request.build_split();
        let mut request = request.expect("a request");
        request
            .headers_mut()
            .insert("authorization", wrong.parse().expect("a value"));
        let response = client.execute(request).await.expect("a response");
        assert_eq!(response.status(), 401, "{method} {path}");
    }
    for (method, path) in [
        (Method::PUT, CONFIG),
        (Method::POST, "/admin/config/history/1/restore"),
    ] {
        let request = gateway.admin_request(method, path, "").json(&body);
        assert_eq!(
            request.send().await.expect("a response").status(),
            400,
            "{path}"
        );
    }
    assert_eq!(file_text(&gateway), before);
}

#[tokio::test]
async fn unreadable_file_is_reported_and_not_written() {
    let gateway = start().await;
    let hash = get(&gateway, CONFIG).await["hash"].take();
    let file = gateway.log.path().join("proxy.toml");
    let text = file_text(&gateway);
    std::fs::remove_file(&file).expect("removed");
    let shown = get(&gateway, CONFIG).await;
    assert_eq!(
        (&shown["editable"], &shown["text"]),
        (&json!(false), &Value::Null)
    );
    let reason = shown["readOnlyReason"].as_str().expect("a reason");
    assert!(reason.contains("cannot read"), "{reason}");
    let body = json!({ "text": text, "baseHash": hash });
    let (status, problem) = call(&gateway, Method::PUT, CONFIG, &body).await;
    assert_eq!(
        (status, &problem["code"]),
        (409, &json!("configuration_read_only")),
        "{problem}"
    );
    assert!(!file.exists());
}

#[tokio::test]
async fn requests_are_answered_during_a_long_check() {
    let gateway = start().await;
    // Conditions of which every combination is another kind of request.
    let route = |number: usize| {
        format!(
            "[[route]]\nname = \"r{number}\"\npath = \"/c\"\nmethods = [\"GET\"]\nupstream = \"origin\"\n\
             policy = \"public\"\nheaders = {{ x-{number} = \"1\" }}\n"
        )
    };
    let many: String = (0..12).map(route).collect();
    let text = format!("{}\n{many}", file_text(&gateway));
    let body = json!({ "text": text });
    let checking = call(&gateway, Method::POST, CHECK, &body);
    tokio::pin!(checking);
    let mut answered = 0;
    let (status, report) = loop {
        tokio::select! {
            checked = &mut checking => break checked,
            response = gateway.get("/open", "") => {
                assert_eq!(response.status, 200);
                answered += 1;
            }
            () = tokio::time::sleep(Duration::from_secs(20)) => panic!("no answer"),
        }
    };
    assert!(answered > 0);
    // A slow machine does not compare all combinations in time.
    match status {
        200 => assert!(report["differenceCount"].as_u64() > Some(0), "{report}"),
        _ => assert_eq!((status, &report["code"]), (503, &json!("unavailable"))),
    }
}
