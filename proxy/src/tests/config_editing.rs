//! The configuration file over the admin listener.

use reqwest::Method;

use super::admin_client::{call, get, start};
use super::*;

pub(super) const CONFIG: &str = "/admin/config";
pub(super) const CHECK: &str = "/admin/config/check";
pub(super) const HISTORY: &str = "/admin/config/history";

pub(super) async fn check(gateway: &TestGateway, text: &str) -> Value {
    let (status, report) = call(gateway, Method::POST, CHECK, &json!({ "text": text })).await;
    assert_eq!(status, 200, "{report}");
    report
}

async fn save(gateway: &TestGateway, change: impl FnOnce(&str) -> String) -> (u16, Value) {
    let present = get(gateway, CONFIG).await;
    let text = change(present["text"].as_str().expect("a text"));
    let body = json!({ "text": text, "baseHash": present["hash"] });
    call(gateway, Method::PUT, CONFIG, &body).await
}

pub(super) fn file_text(gateway: &TestGateway) -> String {
    std::fs::read_to_string(gateway.log.path().join("proxy.toml")).expect("a file")
}

/// Waits until the history has this many entries.
pub(super) async fn wait_for_history(gateway: &TestGateway, count: usize) -> Value {
    let asking = async || {
        let history = get(gateway, HISTORY).await["history"].take();
        let is_complete = history.as_array().is_some_and(|all| all.len() == count);
        is_complete.then_some(history)
    };
    wait_for(asking).await
}

/// Asserts that the first configuration is in force, and in the file.
pub(super) async fn assert_unchanged(gateway: &TestGateway, before: &str) {
    assert_eq!(file_text(gateway), before);
    assert_eq!(get(gateway, CONFIG).await["version"], 1);
}

pub(super) fn moved(text: &str) -> String {
    text.replace("path = \"/open\"", "path = \"/opened\"")
}

#[tokio::test]
async fn saved_text_is_in_force_logged_and_recorded() {
    let (log, _guard) = CapturedLog::start();
    let gateway = start().await;
    wait_for_history(&gateway, 1).await;
    let first = get(&gateway, CONFIG).await;
    assert_eq!(first["text"], file_text(&gateway));
    assert_eq!(first["hash"], first["hashInForce"]);
    assert_members(&first, &json!({ "editable": true, "version": 1 }));
    let (status, saved) = save(&gateway, moved).await;
    assert_eq!(status, 200, "{saved}");
    let expected = json!({ "version": 2, "restartNeeded": [], "unchanged": false });
    assert_members(&saved, &expected);
    // No further reload is waited for.
    assert_eq!(gateway.get("/opened", "").await.status, 200);
    assert_eq!(gateway.get("/open", "").await.status, 401);
    let history = get(&gateway, HISTORY).await["history"].take();
    let newest = &history[0];
    let expected = json!({ "operator": "grace", "hash": saved["hash"] });
    assert_members(newest, &expected);
    let expected = json!({ "operator": "file", "hash": first["hash"] });
    assert_members(&history[1], &expected);
    assert!(newest["summary"]["widened"].as_u64() >= Some(1), "{newest}");
    let stored = get(&gateway, &format!("{HISTORY}/{}", newest["number"])).await;
    assert_eq!(stored["text"], file_text(&gateway));
    let hash = first["hash"].as_str().expect("a hash");
    let event = ["administrative action", "grace", "config.save"];
    let words = [&event[..], &["proxy.toml", hash]].concat();
    assert_eq!(log.with(&words), 1, "{}", log.text());
}

#[tokio::test]
async fn change_of_the_file_itself_is_recorded_as_such() {
    let gateway = start().await;
    wait_for_history(&gateway, 1).await;
    gateway.edit(|text| moved(&text));
    let history = wait_for_history(&gateway, 2).await;
    assert_eq!(history[0]["operator"], "file");
    let holds = history[0]["summary"]["changes"].as_u64() >= Some(2);
    assert!(holds, "{history}");
    // A file that is not accepted is shown, but not recorded.
    gateway.edit(|text| format!("{text}\n[nothing]\n"));
    gateway.wait_for_config_error().await;
    let shown = get(&gateway, CONFIG).await;
    assert_eq!(shown["text"], file_text(&gateway));
    let holds = shown["lastError"].to_string().contains("nothing");
    assert!(holds, "{shown}");
    assert_ne!(shown["hash"], shown["hashInForce"]);
    wait_for_history(&gateway, 2).await;
}

#[tokio::test]
async fn one_of_two_concurrent_changes_is_refused() {
    let gateway = start().await;
    let present = get(&gateway, CONFIG).await;
    let text = present["text"].as_str().expect("a text");
    let put = async |path: &str| {
        let text = text.replace("path = \"/open\"", &format!("path = \"{path}\""));
        let body = json!({ "text": text, "baseHash": present["hash"] });
        call(&gateway, Method::PUT, CONFIG, &body).await
    };
    let (one, two) = tokio::join!(put("/one"), put("/two"));
    let (done, refused) = if one.0 == 200 { (one, two) } else { (two, one) };
    assert_eq!((done.0, refused.0), (200, 409), "{done:?} {refused:?}");
    assert_eq!(refused.1["code"], "configuration_changed");
    assert_eq!(refused.1["hash"], done.1["hash"], "the hash to start from");
    // The same text again is no change, for gateways that share a file.
    let body = json!({ "text": file_text(&gateway), "baseHash": present["hash"] });
    let (status, again) = call(&gateway, Method::PUT, CONFIG, &body).await;
    assert_eq!(status, 200, "{again}");
    assert_members(&again, &json!({ "unchanged": true }));
    assert_eq!(again["version"], done.1["version"]);
}

#[tokio::test]
async fn text_that_does_not_load_is_refused_with_its_lines() {
    let gateway = start().await;
    let before = file_text(&gateway);
    let test = "\n[[test]]\nrequest = \"GET /open\"\ndecision = \"not_found\"\n";
    for (case, text) in [
        ("syntax", before.replace("[limits]", "[limits")),
        ("key", format!("nothing = 1\n{before}")),
        ("test", format!("{before}{test}")),
        ("lockout", before.replace("token_env = \"ADMIN_TOKEN\"", "")),
        ("empty", String::new()),
    ] {
        let code = match case {
            "test" => "test_failed",
            _ => "invalid_configuration",
        };
        let (status, problem) = save(&gateway, |_| text).await;
        assert_eq!(status, 422, "{problem}");
        assert_members(&problem, &json!({ "code": "validation_failed" }));
        assert_eq!(problem["errors"][0]["code"], code, "{case}: {problem}");
        let detail = problem["errors"][0]["detail"].to_string();
        assert!(detail.contains("proxy.toml:"), "{case}: {detail}");
        assert_eq!(file_text(&gateway), before, "{case}");
    }
    assert_unchanged(&gateway, &before).await;
}

#[tokio::test]
async fn check_does_not_wait_for_a_named_pipe() {
    let gateway = start().await;
    let pipe = gateway.log.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    let (before, pipe) = (file_text(&gateway), pipe.display());
    for [key, table] in rows(
        r#"
        api_keys | [api_keys]\nfile = "PIPE"
        upstream.piped | [upstream.piped]\naddresses = ["127.0.0.1:9"]\ntls = { name = "a.test", ca = "PIPE" }
        "#,
    ) {
        let table = table.replace("PIPE", &pipe.to_string());
        let report = check(&gateway, &format!("{before}{table}\n")).await;
        let error = &report["errors"][0];
        let (place, message) = (error["key"].to_string(), error["message"].to_string());
        assert!(place.starts_with(&format!("\"{key}")), "{report}");
        assert!(message.contains("is not a regular file"), "{report}");
    }
}

#[tokio::test]
async fn check_reports_lines_tests_and_witnesses() {
    let gateway = start().await;
    let before = file_text(&gateway);
    let report = check(&gateway, &format!("nothing = 1\nworkers = 0\n{before}")).await;
    let errors = report["errors"].as_array().expect("a list");
    let places = errors.iter().map(|it| json!([it["line"], it["key"]]));
    let expected = [json!([1, "nothing"]), json!([2, "workers"])];
    assert_eq!(places.collect::<Vec<_>>(), expected);
    assert_eq!(report["tests"], json!([]));
    let lines = before.lines().count();
    let tests = "[[test]]\nrequest = \"GET /open\"\ndecision = \"allow\"\n\
                 [[test]]\nrequest = \"GET /any/1\"\ndecision = \"allow\"\n";
    let text = before.replace("policy = { services = [\"auth\"] }", "policy = \"public\"");
    let text =
        format!("workers = 2\n{text}{tests}[upstream.spare]\naddresses = [\"127.0.0.1:9\"]\n");
    let report = check(&gateway, &text).await;
    assert_eq!(report["errors"], json!([]), "{report}");
    let line = lines as u64 + 2;
    let file = gateway.log.path().join("proxy.toml").display().to_string();
    let (passed, failed) = (&report["tests"][0], &report["tests"][1]);
    assert_members(passed, &json!({ "ok": true, "line": line, "file": file }));
    assert_members(failed, &json!({ "ok": false, "line": line + 3 }));
    let holds = failed["detail"].to_string().contains("not allow");
    assert!(holds, "{failed}");
    assert_eq!(report["restartNeeded"], json!(["workers"]));
    let warnings = report["warnings"].as_array().expect("a list");
    let spare = warnings.iter().find(|it| it["key"] == "upstream.spare");
    assert_eq!(spare.expect("a warning")["line"], json!(line + 6));
    assert_eq!(report["widened"], true);
    let witness = &report["differences"][0];
    assert_members(witness, &json!({ "target": "/auth-only", "widened": true }));
    assert_eq!(witness["new"]["decision"], "allow");
    assert_unchanged(&gateway, &before).await;
}

#[tokio::test]
async fn wider_access_is_refused_if_asked_for() {
    let gateway = start().await;
    let before = file_text(&gateway);
    let text = before.replace("policy = { services = [\"auth\"] }", "policy = \"public\"");
    let hash = get(&gateway, CONFIG).await["hash"].take();
    let uncompared = "[limits]\ntrusted_proxies = [\"10.0.0.0/8\"]\n";
    let uncompared = before.replace("[limits]\n", uncompared);
    for (text, target) in [(&text, json!("/auth-only")), (&uncompared, Value::Null)] {
        let body = json!({ "text": text, "baseHash": hash, "refuseWidened": true });
        let (status, problem) = call(&gateway, Method::PUT, CONFIG, &body).await;
        assert_eq!(status, 422);
        assert_members(&problem["errors"][0], &json!({ "code": "access_widened" }));
        assert_eq!(problem["check"]["differences"][0]["target"], target);
        assert_eq!(file_text(&gateway), before);
    }
    let body = json!({ "text": text, "baseHash": hash });
    let (status, saved) = call(&gateway, Method::PUT, CONFIG, &body).await;
    assert_eq!(status, 200, "{saved}");
    assert_members(&saved, &json!({ "widened": true }));
    // A narrower one needs no consent.
    let body = json!({ "text": before, "baseHash": saved["hash"], "refuseWidened": true });
    assert_eq!(call(&gateway, Method::PUT, CONFIG, &body).await.0, 200);
}

#[tokio::test]
async fn earlier_configuration_is_restored_as_a_change() {
    let gateway = start().await;
    wait_for_history(&gateway, 1).await;
    let before = file_text(&gateway);
    let (_, saved) = save(&gateway, moved).await;
    let path = format!("{HISTORY}/1/restore");
    let stale = json!({ "baseHash": "0000000000000000" });
    assert_eq!(call(&gateway, Method::POST, &path, &stale).await.0, 409);
    let body = json!({ "baseHash": saved["hash"] });
    let (status, restored) = call(&gateway, Method::POST, &path, &body).await;
    assert_eq!(status, 200, "{restored}");
    assert_members(&restored, &json!({ "version": 3 }));
    assert_eq!(file_text(&gateway), before);
    assert_eq!(gateway.get("/open", "").await.status, 200);
    let history = get(&gateway, HISTORY).await["history"].take();
    assert_members(&history[0], &json!({ "operator": "grace", "number": 3 }));
    for number in "9 0 -1 x ..%2F1 1%2F..%2F2 18446744073709551616".split(' ') {
        let path = format!("{HISTORY}/{number}");
        let (status, _) = call(&gateway, Method::GET, &path, &Value::Null).await;
        assert_eq!(status, 404, "{number}");
        let (status, _) = call(&gateway, Method::POST, &format!("{path}/restore"), &body).await;
        assert_eq!(status, 404, "{number}");
    }
}
