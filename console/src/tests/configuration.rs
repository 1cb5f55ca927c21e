//! The configuration of several gateways, each of which has its own file.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use http::{HeaderMap, Method, StatusCode, Uri};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use url::Url;

use crate::testing::{Answers, Console, HOSTILE, principal, stub};

/// How a gateway answers to a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gateway {
    Saves,
    /// Its file has changed since.
    Conflict,
    /// More would be accepted, which the change does not allow.
    Widened,
    /// It answers 500.
    Fails,
}

type Puts = Arc<Mutex<Vec<(String, Value, Option<String>)>>>;

/// Starts a gateway whose file has this text. Changes are recorded with its name.
async fn gateway(kind: Gateway, text: &'static str, puts: &Puts) -> (Url, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (name, puts) = (address.to_string(), Arc::clone(puts));
    let answering = name.clone();
    let handler = move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
        let (name, puts) = (answering.clone(), Arc::clone(&puts));
        async move {
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let operator = headers.get("x-postern-operator");
            let operator = operator.and_then(|it| it.to_str().ok()).map(str::to_owned);
            if method == Method::PUT {
                puts.lock().push((name.clone(), body.clone(), operator));
                return put(kind, &body);
            }
            let file = json!({
                "file": "proxy.toml", "text": text, "hash": format!("hash-{text}"), "editable": true,
            });
            match uri.path() {
                "/admin/principal" => principal(&body),
                "/admin/config/check" => Json(report()).into_response(),
                _ => Json(file).into_response(),
            }
        }
    };
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(handler)).await });
    let url = Url::parse(&format!("http://{name}")).expect("a URL");
    (url, name)
}

fn put(kind: Gateway, body: &Value) -> Response {
    let problem = |status: StatusCode, body: Value| (status, Json(body)).into_response();
    match kind {
        Gateway::Widened if body["refuseWidened"] == true => {
            let errors =
                json!([{ "pointer": "/text", "code": "access_widened", "detail": "wider" }]);
            let body = json!({ "code": "validation_failed", "errors": errors });
            problem(StatusCode::UNPROCESSABLE_ENTITY, body)
        }
        Gateway::Saves | Gateway::Widened => {
            Json(json!({ "version": 2, "restartNeeded": ["listen"] })).into_response()
        }
        Gateway::Conflict => problem(
            StatusCode::CONFLICT,
            json!({ "code": "configuration_changed" }),
        ),
        Gateway::Fails => problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            json!({ "code": "internal_error" }),
        ),
    }
}

/// Returns a report with one of each, which is hostile.
fn report() -> Value {
    let side = |decision: &str| json!({ "route": HOSTILE, "decision": decision, "status": 401, "detail": HOSTILE });
    json!({
        "errors": [], "tests": [{ "ok": true, "request": "GET /" }],
        "warnings": [{ "file": "proxy.toml", "line": 3, "key": HOSTILE, "message": HOSTILE }],
        "differences": [{
            "method": "GET", "host": HOSTILE, "target": HOSTILE, "headers": [[HOSTILE, HOSTILE]], "caller": HOSTILE,
            "client_address": "192.0.2.1", "old": side("user_required"), "new": side("allow"), "widened": true,
        }],
        "differenceCount": 70, "differencesError": null, "widened": true, "restartNeeded": ["listen"],
    })
}

struct Setup {
    console: Console,
    names: Vec<String>,
    puts: Puts,
}

async fn setup(gateways: &[(Gateway, &'static str)]) -> Setup {
    let received = Arc::default();
    let other = stub(Answers::Hostile, Arc::clone(&received)).await;
    let puts = Puts::default();
    let (mut urls, mut names) = (Vec::new(), Vec::new());
    for (kind, text) in gateways {
        let (url, name) = gateway(*kind, text, &puts).await;
        urls.push(url);
        names.push(name);
    }
    let console = Console::before(&other, urls, received, None).await;
    Setup {
        console,
        names,
        puts,
    }
}

impl Setup {
    async fn save(&self, bases: &Value, refuse_widened: bool) -> Vec<(bool, String)> {
        let body = json!({ "text": "new", "bases": bases, "refuseWidened": refuse_widened });
        let path = "/actions/configuration.save";
        let (status, answer) = self.console.post(path, "operator", &body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let outcomes = answer["outcomes"].as_array().expect("a list");
        let is_done = outcomes.iter().all(|outcome| outcome["isDone"] == true);
        assert_eq!(answer["isDone"], is_done);
        let text = |outcome: &Value| outcome["text"].as_str().expect("text").to_owned();
        let pair = |outcome: &Value| (outcome["isDone"] == true, text(outcome));
        outcomes.iter().map(pair).collect()
    }

    /// Returns the base of every gateway.
    fn bases(&self, text: &str) -> Value {
        let hashes = self
            .names
            .iter()
            .map(|name| (name.clone(), format!("hash-{text}")));
        json!(hashes.collect::<BTreeMap<_, _>>())
    }
}

#[tokio::test]
async fn every_gateway_gets_the_text_with_its_own_base() {
    let setup = setup(&[(Gateway::Saves, "one"), (Gateway::Saves, "two")]).await;
    let (_, html) = setup
        .console
        .get("/fragments/configuration", "operator")
        .await;
    assert!(html.contains("The gateways have different files"), "{html}");
    let mut bases = setup.bases("one");
    bases[&setup.names[1]] = json!("hash-two");
    let shown = html
        .split("data-bases=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let shown = shown.expect("bases").replace("&quot;", "\"");
    assert_eq!(serde_json::from_str::<Value>(&shown).expect("JSON"), bases);
    let outcomes = setup.save(&bases, true).await;
    let expected = (true, "saved; a restart is needed for listen".to_owned());
    assert_eq!(outcomes, [expected.clone(), expected]);
    let puts = setup.puts.lock().clone();
    let sent = |base: &str| json!({ "text": "new", "baseHash": base, "refuseWidened": true });
    let operator = Some("s-1".to_owned());
    let expected = [
        (setup.names[0].clone(), sent("hash-one"), operator.clone()),
        (setup.names[1].clone(), sent("hash-two"), operator),
    ];
    assert_eq!(puts, expected);
}

#[tokio::test]
async fn refusal_of_the_first_gateway_changes_none() {
    let setup = setup(&[(Gateway::Conflict, "one"), (Gateway::Saves, "one")]).await;
    let outcomes = setup.save(&setup.bases("one"), true).await;
    assert!(
        outcomes[0].1.contains("configuration_changed"),
        "{outcomes:?}"
    );
    assert!(outcomes[1].1.contains("not asked"), "{outcomes:?}");
    assert!(outcomes.iter().all(|(is_done, _)| !is_done));
    assert_eq!(setup.puts.lock().len(), 1);
}

#[tokio::test]
async fn later_failure_is_reported_and_others_are_changed() {
    let gateways = [
        (Gateway::Saves, "one"),
        (Gateway::Fails, "one"),
        (Gateway::Saves, "one"),
    ];
    let setup = setup(&gateways).await;
    let outcomes = setup.save(&setup.bases("one"), true).await;
    let done: Vec<bool> = outcomes.iter().map(|(is_done, _)| *is_done).collect();
    assert_eq!(done, [true, false, true], "{outcomes:?}");
    assert!(outcomes[1].1.contains("500 internal_error"), "{outcomes:?}");
    // A gateway that the page did not show is not overwritten.
    let mut bases = setup.bases("one");
    bases
        .as_object_mut()
        .expect("an object")
        .remove(&setup.names[2]);
    let outcomes = setup.save(&bases, true).await;
    assert!(
        outcomes[2].1.contains("load the page again"),
        "{outcomes:?}"
    );
}

#[tokio::test]
async fn wider_access_needs_consent() {
    let setup = setup(&[(Gateway::Widened, "one")]).await;
    let body = json!({ "text": "new" });
    let page = setup
        .console
        .client
        .post(format!("{}/check-configuration", setup.console.base));
    let page = page
        .bearer_auth("operator")
        .json(&body)
        .send()
        .await
        .expect("sent");
    let html = page.text().await.expect("a body");
    assert!(
        html.contains("id=\"allow-widened\"") && html.contains("data-tone=\"warn\""),
        "{html}"
    );
    assert!(html.contains("The first 50 of 70 are shown"), "{html}");
    assert!(
        !html.contains("<script") && !html.contains("<img"),
        "{html}"
    );
    let refused = setup.save(&setup.bases("one"), true).await;
    assert!(
        !refused[0].0 && refused[0].1.contains("wider"),
        "{refused:?}"
    );
    assert!(setup.save(&setup.bases("one"), false).await[0].0);
}

#[tokio::test]
async fn viewer_reads_the_configuration_only() {
    let setup = setup(&[(Gateway::Saves, "one")]).await;
    let (_, html) = setup
        .console
        .get("/fragments/configuration", "viewer")
        .await;
    assert!(
        html.contains("readonly") && !html.contains("type=\"submit\""),
        "{html}"
    );
    let change = json!({ "text": "x", "bases": {}, "refuseWidened": false });
    for (path, body) in [
        ("/check-configuration", json!({ "text": "x" })),
        ("/configuration/changes", json!({ "base": "x" })),
        ("/actions/configuration.save", change),
    ] {
        let (status, _) = setup.console.post(path, "viewer", &body).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}");
    }
    assert!(setup.puts.lock().is_empty());
}

#[tokio::test]
async fn changes_of_others_are_shown_with_the_new_base() {
    let setup = setup(&[(Gateway::Conflict, "a\nb\n<b>c\n")]).await;
    let body = json!({ "base": "a\nold\n" });
    let path = "/configuration/changes";
    let (status, answer) = setup.console.post(path, "operator", &body).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer["bases"], setup.bases("a\nb\n<b>c\n"));
    let html = answer["html"].as_str().expect("markup");
    for line in ["<del>- old", "<ins>+ b", "<ins>+ &lt;b&gt;c"] {
        assert!(html.contains(line), "{line}: {html}");
    }
    for body in [
        json!({ "text": "x", "bases": [], "refuseWidened": false }),
        json!({ "text": "x", "bases": {} }),
        json!({ "text": "x".repeat((1 << 20) + 1), "bases": {}, "refuseWidened": false }),
    ] {
        let (status, _) = setup
            .console
            .post("/actions/configuration.save", "operator", &body)
            .await;
        assert!([400, 422].contains(&status.as_u16()), "{status}");
    }
}
