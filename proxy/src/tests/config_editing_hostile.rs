//! Hostile requests for the configuration file over the admin listener.

use reqwest::Method;

use super::admin_client::{call, get, start};
use super::config_editing::{CHECK, CONFIG, assert_unchanged, check, file_text};
use super::*;

#[tokio::test]
async fn hostile_texts_are_refused_without_effect() {
    let gateway = start().await;
    let before = file_text(&gateway);
    for text in [
        "include = [\"/etc/passwd\"]\n".to_owned(),
        "[".repeat(100_000),
        format!("x = {}1{}\n", "[".repeat(50_000), "]".repeat(50_000)),
        "a.".repeat(100_000),
        "[[route]]\n".repeat(20_000),
    ] {
        let report = check(&gateway, &text).await;
        let errors = report["errors"].as_array().expect("a list");
        assert!((1..=100).contains(&errors.len()), "{text:.40}: {report}");
        let holds = !report.to_string().contains("root:");
        assert!(holds, "{text:.40}: {report}");
    }
    let long = json!({ "text": "x".repeat((1 << 20) + 1) });
    assert_eq!(call(&gateway, Method::POST, CHECK, &long).await.0, 422);
    // The connection may be closed before the whole body is sent.
    let longer = json!({ "text": "x".repeat(3 << 20) });
    let request = gateway.admin_request(Method::POST, CHECK, "grace");
    if let Ok(response) = request.json(&longer).send().await {
        assert_eq!(response.status(), 413);
    }
    let unknown = json!({ "text": "", "path": "/etc/passwd" });
    let without_base = json!({ "text": before });
    for (method, path, body) in [
        (Method::POST, CHECK, json!({})),
        (Method::POST, CHECK, json!({ "text": 1 })),
        (Method::POST, CHECK, unknown),
        (Method::PUT, CONFIG, without_base),
    ] {
        let (status, _) = call(&gateway, method, path, &body).await;
        assert_eq!(status, 400, "{body}");
    }
    assert_unchanged(&gateway, &before).await;
}

#[tokio::test]
async fn unreadable_file_is_reported_and_not_written() {
    let gateway = start().await;
    let hash = get(&gateway, CONFIG).await["hash"].take();
    let file = gateway.log.path().join("proxy.toml");
    let text = file_text(&gateway);
    std::fs::remove_file(&file).expect("removed");
    let shown = get(&gateway, CONFIG).await;
    assert_members(&shown, &json!({ "editable": false, "text": null }));
    let reason = shown["readOnlyReason"].as_str().expect("a reason");
    assert!(reason.contains("cannot read"), "{reason}");
    let body = json!({ "text": text, "baseHash": hash });
    let (status, problem) = call(&gateway, Method::PUT, CONFIG, &body).await;
    assert_eq!(status, 409, "{problem}");
    assert_members(&problem, &json!({ "code": "configuration_read_only" }));
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
