//! The routes under `/admin/` of the admin listener.

use postern_core::testing::assert_problem;
use reqwest::Method;

use super::admin_client::{call, get, post, start};
use super::*;

/// All routes: the method, the path, and whether it requires an operator.
const ROUTES: [(Method, &str, bool); 13] = [
    (Method::POST, "/admin/principal", false),
    (Method::GET, "/admin/info", false),
    (Method::GET, "/admin/routes", false),
    (Method::POST, "/admin/explain", false),
    (Method::GET, "/admin/upstreams", false),
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
    for (method, path, status, code) in [
        (Method::DELETE, "/admin/info", 405, "method_not_allowed"),
        (Method::GET, "/admin/none", 404, "not_found"),
    ] {
        let found = call(&gateway, method, path, &Value::Null).await;
        assert_problem(&found, status, code, None);
    }
    assert_eq!(get(&gateway, "/admin/config").await, before);
    assert_eq!(log.with(&["administrative action"]), 0, "{}", log.text());
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
    gateway.edit(|text| text.replace("path = \"/any/{id}\"", "path = \"/some/{id}\""));
    gateway.wait_for_version(2).await;
    let routes = get(&gateway, "/admin/routes").await;
    let route = |name: &str| {
        let mut all = routes.as_array().expect("a list").iter();
        all.find(|route| route["name"] == name).expect("listed")
    };
    assert_eq!(
        route("any")["path"],
        "/some/{id}",
        "of the configuration in force"
    );
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
    let is_401 = |answer: &Value| answer["decision"].to_string().starts_with("\"401 ");
    assert!(is_401(&open), "{open}");
    let user = explain(json!({ "request": request, "principal": "user" })).await;
    assert_eq!(user["decision"], "allow");
    assert_eq!(user["route"], "any: GET, POST /any/{id}");
    let real = json!({ "request": request, "token": gateway.user(), "host": "gate" });
    let real = explain(real).await;
    assert_members(&real, &json!({ "decision": "allow", "caller": "user ada" }));
    let expired = gateway.user_until(1_700_000_001);
    let expired = explain(json!({ "request": request, "token": expired })).await;
    assert_eq!(expired["decision"], "401 token_expired");
    let other = json!({ "request": "GET /auth-only", "principal": "service:other" });
    assert!(is_401(&explain(other).await));
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
        let expected = format!("/{name}").replace("headers", "headers/a b");
        assert_eq!(pointer, expected, "{hostile}: {}", found.1);
        assert_problem(&found, 400, "invalid_request", Some(&expected));
    }
}

#[tokio::test]
async fn ejection_is_listed_with_end_and_cause() {
    let gateway = TestGateway::with(OriginBehavior::Close, "", "outlier = { failures = 1 }").await;
    let listed = async || {
        let upstreams = get(&gateway, "/admin/upstreams").await;
        upstreams["upstreams"][0]["endpoints"][0]["ejected"].clone()
    };
    assert_eq!(listed().await, Value::Null);
    assert_eq!(gateway.get("/open", "").await.status, 502);
    let ejected = listed().await;
    assert_eq!(ejected["cause"], "reset", "{ejected}");
    assert!(ejected["until"].is_string(), "{ejected}");
}

#[tokio::test]
async fn keys_are_listed_with_their_public_members() {
    let gateway = start().await;
    let body = json!({ "authorization": format!("Bearer {}", gateway.user()) });
    assert_eq!(post(&gateway, "/admin/principal", body).await.0, 200);
    let keys = get(&gateway, "/admin/keys").await;
    let mut issuers = keys["issuers"].as_array().expect("a list").iter();
    let own = json!(gateway.user_issuer());
    let issuer = issuers.find(|it| it["issuer"] == own).expect("the pool");
    let key = &issuer["keys"][0];
    assert_members(key, &json!({ "kid": "k1", "alg": "ES256" }));
    assert_members(key, &json!({ "kty": "EC", "use": "sig" }));
    for text in [&key["jwk"]["x"], &key["firstSeen"], &issuer["lastRefresh"]] {
        assert!(text.is_string(), "{issuer}");
    }
    assert!(issuer["nextRefresh"].is_string(), "{issuer}");
}
