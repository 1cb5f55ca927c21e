//! The routes under `/admin/` of the admin listener.

use reqwest::Method;

use super::admin_client::{assert_problem, call, get, post, start};
use super::*;

/// All routes: the method, the path, and whether it requires an operator.
const ROUTES: [(Method, &str, bool); 16] = [
    (Method::POST, "/admin/principal", false),
    (Method::GET, "/admin/info", false),
    (Method::GET, "/admin/routes", false),
    (Method::POST, "/admin/explain", false),
    (Method::GET, "/admin/upstreams", false),
    (Method::POST, "/admin/upstreams/origin/eject", true),
    (Method::POST, "/admin/upstreams/origin/drain", true),
    (Method::POST, "/admin/upstreams/origin/restore", true),
    (Method::GET, "/admin/keys", false),
    (Method::GET, "/admin/requests", false),
    (Method::GET, "/admin/config", false),
    (Method::PUT, "/admin/config", true),
    (Method::POST, "/admin/config/check", false),
    (Method::GET, "/admin/config/history", false),
    (Method::GET, "/admin/config/history/1", false),
    (Method::POST, "/admin/config/history/1/restore", true),
];

/// Sends a request with this token and this operator; without the field if it is empty.
async fn call_as(
    gateway: &TestGateway,
    (method, path): (Method, &str),
    (token, operator): (&str, &str),
    body: &Value,
) -> (u16, Value) {
    let request = gateway.admin_request(method, path, operator).json(body);
    let (client, request) = request.build_split();
    let mut request = request.expect("a request");
    let fields = request.headers_mut();
    match token {
        "" => drop(fields.remove("authorization")),
        token => {
            let value = format!("Bearer {token}").parse().expect("a value");
            fields.insert("authorization", value);
        }
    }
    let response = client.execute(request).await.expect("a response");
    let status = response.status().as_u16();
    (status, response.json().await.unwrap_or_default())
}

#[tokio::test]
async fn admin_api_requires_secret_and_operator() {
    let (log, _guard) = CapturedLog::start();
    let gateway = start().await;
    let before = get(&gateway, "/admin/config").await;
    let body = json!({
        "address": gateway.origin.address.to_string(),
        "text": "", "baseHash": before["hash"],
    });
    let wrong = ADMIN_TOKEN.replace('f', "e");
    for (method, path, is_change) in ROUTES {
        for token in ["", &wrong] {
            let found = call_as(&gateway, (method.clone(), path), (token, "grace"), &body).await;
            assert_problem(&found, 401, "authentication_required", None);
        }
        if is_change {
            let found = call_as(&gateway, (method, path), (ADMIN_TOKEN, ""), &body).await;
            assert_problem(&found, 400, "invalid_header", None);
        }
    }
    let endpoint = &get(&gateway, "/admin/upstreams").await["upstreams"][0]["endpoints"][0];
    let state = (&endpoint["draining"], &endpoint["ejected"]);
    assert_eq!(state, (&json!(false), &Value::Null), "{endpoint}");
    assert_eq!(get(&gateway, "/admin/config").await, before);
    assert_eq!(log.with(&["administrative action"]), 0, "{}", log.text());
}

#[tokio::test]
async fn admin_routes_refuse_other_methods() {
    let gateway = start().await;
    for (method, path, _) in ROUTES {
        let others = [Method::GET, Method::POST, Method::PUT, Method::DELETE];
        let is_route = |other: &Method| ROUTES.iter().any(|(of, at, _)| *at == path && of == other);
        for other in others.into_iter().filter(|other| !is_route(other)) {
            let found = call(&gateway, other, path, &Value::Null).await;
            assert_problem(&found, 405, "method_not_allowed", None);
        }
        assert_ne!(method, Method::DELETE);
    }
    let found = call(&gateway, Method::GET, "/admin/none", &Value::Null).await;
    assert_problem(&found, 404, "not_found", None);
}

#[tokio::test]
async fn principal_is_that_of_a_request() {
    let gateway = start().await;
    let ask = async |authorization: &str| {
        let body = json!({ "authorization": authorization });
        post(&gateway, "/admin/principal", body).await
    };
    let (status, user) = ask(&format!("Bearer {}", gateway.user())).await;
    assert_eq!(status, 200, "{user}");
    assert_members(&user, &json!({ "kind": "user", "subject": "ada" }));
    assert_eq!(user["scopes"], json!(["read", "write"]));
    assert_eq!(user["issuer"], json!(gateway.user_issuer()));
    assert!(user["expiresAt"].is_string(), "{user}");
    let (_, service) = ask(&format!("Bearer {}", gateway.service("auth"))).await;
    assert_members(&service, &json!({ "kind": "service", "service": "auth" }));
    let expired = gateway.user_until(1_700_000_001);
    for (value, code) in [
        (format!("Bearer {expired}"), "token_expired"),
        ("Bearer x".to_owned(), "token_malformed"),
        ("Basic YTpi".to_owned(), "token_malformed"),
        (format!("Bearer {}", "a".repeat(60_000)), "token_malformed"),
    ] {
        let (status, problem) = ask(&value).await;
        assert_eq!(status, 401, "{problem}");
        assert_members(&problem, &json!({ "code": code }));
    }
    // A header field cannot have such a value.
    let found = ask("Bearer a\r\nX-Postern-Kind: user").await;
    assert_problem(&found, 400, "invalid_request", Some("/authorization"));
    let found = post(&gateway, "/admin/principal", json!({ "token": "x" })).await;
    assert_problem(&found, 400, "invalid_request", Some("/authorization"));
    assert_eq!(found.1["errors"][1]["pointer"], "/token");
}

#[tokio::test]
async fn actor_groups_are_those_of_the_actor_pool_only() {
    let gateway = start().await;
    let actors = gateway.user_issuer();
    let others = actors.replace("/actors", "/jobseekers");
    gateway.edit(|text| {
        format!("{text}\n[[identity.issuer]]\nkind = \"user\"\nissuer = \"{others}\"\nclients = [\"web\"]\n")
    });
    gateway.wait_for_version(2).await;
    for (issuer, actor_groups) in [(&actors, json!(["admin"])), (&others, json!([]))] {
        let token = gateway.user_with(&json!({ "iss": issuer, "cognito:groups": ["admin"] }));
        let body = json!({ "authorization": format!("Bearer {token}") });
        let (status, user) = post(&gateway, "/admin/principal", body).await;
        assert_eq!(status, 200, "{user}");
        assert_members(&user, &json!({ "issuer": issuer }));
        assert_eq!(user["groups"], json!(["admin"]), "{user}");
        assert_eq!(user["actorGroups"], actor_groups, "{user}");
    }
}

#[tokio::test]
async fn info_has_the_hash_of_the_configuration_in_force() {
    let gateway = start().await;
    let first = get(&gateway, "/admin/info").await;
    assert_eq!(first["service"], "postern-proxy");
    assert!(first["startedAt"].is_string(), "{first}");
    gateway.edit(|text| text.replace("path = \"/open\"", "path = \"/opened\""));
    let status = gateway.wait_for_version(2).await;
    let second = get(&gateway, "/admin/info").await;
    assert_eq!(second["configHash"], status["hash"]);
    assert_ne!(first["configHash"], second["configHash"]);
    assert_eq!(first["startedAt"], second["startedAt"]);
}

#[tokio::test]
async fn routes_have_counts_by_status_class() {
    let gateway = start().await;
    gateway.get("/open", "").await;
    gateway.get("/open", "").await;
    gateway.get("/any/1", "").await;
    let routes = get(&gateway, "/admin/routes").await;
    let route = |name: &str| {
        let mut all = routes.as_array().expect("a list").iter();
        all.find(|route| route["name"] == name).expect("listed")
    };
    assert_eq!(route("open")["requests"], json!({ "2xx": 2 }));
    assert_eq!(route("open")["latency"]["count"], 2);
    assert_eq!(route("any")["requests"], json!({ "4xx": 1 }));
    assert_eq!(route("socket")["requests"], json!({}));
    assert_eq!(route("open")["policy"], "public");
}

#[tokio::test]
async fn explain_decides_as_the_configuration_in_force() {
    let gateway = start().await;
    let explain = async |body: Value| {
        let (status, answer) = post(&gateway, "/admin/explain", body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let request = "GET /any/42";
    let open = explain(json!({ "request": request })).await;
    assert!(
        open["decision"].as_str().expect("text").starts_with("401 "),
        "{open}"
    );
    let user = explain(json!({ "request": request, "principal": "user" })).await;
    assert_eq!(user["decision"], "allow");
    assert_eq!(user["route"], "any: GET, POST /any/{id}");
    let real =
        explain(json!({ "request": request, "token": gateway.user(), "host": "gate" })).await;
    assert_members(&real, &json!({ "decision": "allow", "caller": "user ada" }));
    let expired = gateway.user_until(1_700_000_001);
    let expired = explain(json!({ "request": request, "token": expired })).await;
    assert_eq!(expired["decision"], "401 token_expired");
    let other = json!({ "request": "GET /auth-only", "principal": "service:other" });
    assert!(
        explain(other).await["decision"]
            .as_str()
            .expect("text")
            .starts_with("401 ")
    );
    let traversal = explain(json!({ "request": "GET /a/../b" })).await;
    assert_eq!(traversal["decision"], "400 invalid_target");
    for (name, value) in [
        ("request", json!("GET")),
        ("request", json!("GET /a b")),
        ("host", json!("a/any/1?")),
        ("token", json!("x")),
        ("headers", json!({ "a b": "c" })),
        ("principal", json!("root")),
        ("clientAddress", json!("nowhere")),
        ("extra", json!(1)),
    ] {
        let mut hostile = json!({ "request": request });
        if name == "token" {
            hostile["principal"] = json!("user");
        }
        hostile[name] = value;
        let found = post(&gateway, "/admin/explain", hostile.clone()).await;
        let pointer = found.1["errors"][0]["pointer"].as_str().unwrap_or_default();
        let expected = if name == "headers" {
            "/headers/a b".to_owned()
        } else {
            format!("/{name}")
        };
        assert_eq!(pointer, expected, "{hostile}: {}", found.1);
        assert_problem(&found, 400, "invalid_request", Some(&expected));
    }
}

/// Asserts that one event has these facts of a change by the operator `grace`.
#[track_caller]
fn assert_logged(log: &CapturedLog, action: &str, address: &str, [before, after]: [&str; 2]) {
    let action = format!("action=\"{action}\"");
    let operator = "administrative action operator=\"grace\" request_id=\"";
    let text = log.text();
    let mut events = text.lines().filter(|line| line.contains(&action));
    let event = events.next().unwrap_or_else(|| panic!("{action}: {text}"));
    assert!(events.next().is_none(), "one event: {text}");
    assert!(
        event.contains(operator) && event.contains(address),
        "{event}"
    );
    let (_, states) = event.split_once(" before=").expect("the state before");
    let (old, new) = states.split_once(" after=").expect("the state after");
    assert!(old.contains(before) && new.contains(after), "{event}");
}

#[tokio::test]
async fn drained_address_gets_no_requests_until_restored() {
    let gateway = start().await;
    let address = gateway.origin.address.to_string();
    let change = async |action: &str| {
        let path = format!("/admin/upstreams/origin/{action}");
        post(&gateway, &path, json!({ "address": address })).await
    };
    assert_eq!(gateway.get("/open", "").await.status, 200);
    let (log, _guard) = CapturedLog::start();
    let (status, drained) = change("drain").await;
    assert_eq!(status, 200);
    assert_members(&drained["endpoint"], &json!({ "draining": true }));
    assert_eq!(drained["upstream"], "origin");
    assert!(drained["notice"].is_string(), "{drained}");
    assert_logged(
        &log,
        "upstream.drain",
        &address,
        ["\"draining\":false", "\"draining\":true"],
    );
    assert_eq!(
        gateway.get("/open", "").await.code(),
        "upstream_unavailable"
    );
    let (status, restored) = change("restore").await;
    assert_eq!(status, 200);
    assert_members(&restored["endpoint"], &json!({ "draining": false }));
    assert_logged(
        &log,
        "upstream.restore",
        &address,
        ["\"draining\":true", "\"draining\":false"],
    );
    assert_eq!(gateway.get("/open", "").await.status, 200);
}

#[tokio::test]
async fn ejection_by_operator_has_end_and_cause() {
    let gateway = start().await;
    let address = gateway.origin.address.to_string();
    let path = "/admin/upstreams/origin/eject";
    let body = json!({ "address": address, "seconds": 60 });
    let (log, _guard) = CapturedLog::start();
    let (status, ejected) = post(&gateway, path, body).await;
    assert_eq!(status, 200, "{ejected}");
    assert_eq!(ejected["endpoint"]["ejected"]["cause"], "operator");
    assert!(
        ejected["endpoint"]["ejected"]["until"].is_string(),
        "{ejected}"
    );
    assert_logged(
        &log,
        "upstream.eject",
        &address,
        ["\"ejected\":null", "\"cause\":\"operator\""],
    );
    assert_eq!(ejected["panic"], true, "the only address");
    assert!(
        ejected["notice"]
            .as_str()
            .expect("a notice")
            .contains("panic mode")
    );
    for _ in 0..8 {
        assert_eq!(gateway.get("/open", "").await.status, 200, "panic mode");
    }
    let listed = get(&gateway, "/admin/upstreams").await;
    let endpoint = &listed["upstreams"][0]["endpoints"][0];
    assert_eq!(
        endpoint["ejected"]["cause"], "operator",
        "not ended by a success"
    );
    let named = json!({ "address": address });
    post(&gateway, "/admin/upstreams/origin/restore", named.clone()).await;
    let listed = get(&gateway, "/admin/upstreams").await;
    let endpoint = &listed["upstreams"][0]["endpoints"][0];
    assert_eq!(endpoint["ejected"], Value::Null);
    for path in [
        "/admin/upstreams/none/eject",
        "/admin/upstreams/origin/delete",
    ] {
        let found = post(&gateway, path, named.clone()).await;
        assert_problem(&found, 404, "not_found", None);
    }
    let found = post(&gateway, path, json!({ "address": "192.0.2.1:1" })).await;
    assert_problem(&found, 422, "validation_failed", Some("/address"));
    assert_eq!(found.1["errors"][0]["code"], "unknown_address");
    for (body, pointer) in [
        (json!({ "address": address, "seconds": 0 }), "/seconds"),
        (json!({ "address": address, "seconds": 86_401 }), "/seconds"),
        (json!({ "address": address, "until": "1h" }), "/until"),
        (json!({}), "/address"),
    ] {
        let found = post(&gateway, path, body).await;
        assert_problem(&found, 400, "invalid_request", Some(pointer));
    }
    assert_eq!(log.with(&["administrative action"]), 2, "{}", log.text());
}

#[tokio::test]
async fn keys_are_listed_with_their_public_members() {
    let gateway = start().await;
    let body = json!({ "authorization": format!("Bearer {}", gateway.user()) });
    assert_eq!(post(&gateway, "/admin/principal", body).await.0, 200);
    let keys = get(&gateway, "/admin/keys").await;
    let mut issuers = keys["issuers"].as_array().expect("a list").iter();
    let issuer = issuers
        .find(|issuer| issuer["issuer"] == json!(gateway.user_issuer()))
        .expect("the pool");
    let key = &issuer["keys"][0];
    assert_members(key, &json!({ "kid": "k1", "alg": "ES256" }));
    assert_members(key, &json!({ "kty": "EC", "use": "sig" }));
    assert!(
        key["jwk"]["x"].is_string() && key["firstSeen"].is_string(),
        "{key}"
    );
    assert!(issuer["lastRefresh"].is_string(), "{issuer}");
    assert!(issuer["nextRefresh"].is_string(), "{issuer}");
}
