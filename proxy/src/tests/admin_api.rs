//! The routes under `/admin/` of the admin listener.

use reqwest::Method;
use serde_json::{Value, json};

use super::harness::{ADMIN_TOKEN, TestGateway};
use super::origin::OriginBehavior;

async fn start() -> TestGateway {
    TestGateway::start(OriginBehavior::Answer).await
}

/// Calls a route with the secret and an operator. Returns status and body.
async fn call(gateway: &TestGateway, method: Method, path: &str, body: &Value) -> (u16, Value) {
    let mut request = gateway.admin_request(method, path, "grace");
    if !body.is_null() {
        request = request.json(body);
    }
    let response = request.send().await.expect("a response");
    let status = response.status().as_u16();
    (status, response.json().await.unwrap_or_default())
}

async fn get(gateway: &TestGateway, path: &str) -> Value {
    let (status, body) = call(gateway, Method::GET, path, &Value::Null).await;
    assert_eq!(status, 200, "{path}: {body}");
    body
}

async fn post(gateway: &TestGateway, path: &str, body: Value) -> (u16, Value) {
    call(gateway, Method::POST, path, &body).await
}

#[tokio::test]
async fn admin_api_requires_secret_and_operator() {
    let gateway = start().await;
    for (method, path) in [
        (Method::POST, "/admin/principal"),
        (Method::GET, "/admin/info"),
        (Method::GET, "/admin/routes"),
        (Method::POST, "/admin/explain"),
        (Method::GET, "/admin/upstreams"),
        (Method::POST, "/admin/upstreams/origin/drain"),
        (Method::GET, "/admin/keys"),
        (Method::GET, "/admin/requests"),
    ] {
        let request = gateway.admin_request(method.clone(), path, "grace");
        let (client, request) = request.build_split();
        let mut request = request.expect("a request");
        let wrong = ADMIN_TOKEN.replace('f', "e");
        let header = format!("Bearer {wrong}").parse().expect("a value");
        request.headers_mut().insert("authorization", header);
        let response = client.execute(request).await.expect("a response");
        assert_eq!(response.status(), 401, "{path}");
    }
    let path = "/admin/upstreams/origin/drain";
    let body = json!({ "address": gateway.origin.address.to_string() });
    let request = gateway.admin_request(Method::POST, path, "").json(&body);
    let response = request.send().await.expect("a response");
    assert_eq!(response.status(), 400, "no operator");
    let drained = &get(&gateway, "/admin/upstreams").await["upstreams"][0]["endpoints"][0];
    assert_eq!(drained["draining"], false);
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
    assert_eq!(
        (&user["kind"], &user["subject"]),
        (&json!("user"), &json!("ada"))
    );
    assert_eq!(user["scopes"], json!(["read", "write"]));
    assert_eq!(user["issuer"], json!(gateway.user_issuer()));
    assert!(user["expiresAt"].is_string(), "{user}");
    let (_, service) = ask(&format!("Bearer {}", gateway.service("auth"))).await;
    assert_eq!(
        (&service["kind"], &service["service"]),
        (&json!("service"), &json!("auth"))
    );
    let expired = gateway.user_until(1_700_000_001);
    for (value, code) in [
        (format!("Bearer {expired}"), "token_expired"),
        ("Bearer x".to_owned(), "token_malformed"),
        ("Basic YTpi".to_owned(), "token_malformed"),
        (format!("Bearer {}", "a".repeat(60_000)), "token_malformed"),
    ] {
        let (status, problem) = ask(&value).await;
        assert_eq!(
            (status, &problem["code"]),
            (401, &json!(code)),
            "{value:.40}"
        );
    }
    // A header field cannot have such a value.
    let (status, _) = ask("Bearer a\r\nX-Postern-Kind: user").await;
    assert_eq!(status, 400);
    let (status, _) = post(&gateway, "/admin/principal", json!({ "token": "x" })).await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn actor_groups_are_those_of_the_actor_pool_only() {
    let gateway = start().await;
    let actors = gateway.user_issuer();
    let others = actors.replace("/actors", "/jobseekers");
    gateway.edit(|text| {
        format!("{text}\n[[identity.issuer]]\nkind = \"user\"\nissuer = \"{others}\"\nclients = [\"web\"]\n")
    });
    gateway
        .wait_for_config_status(|status| status["version"] == 2)
        .await;
    for (issuer, actor_groups) in [(&actors, json!(["admin"])), (&others, json!([]))] {
        let token = gateway.user_with(&json!({ "iss": issuer, "cognito:groups": ["admin"] }));
        let body = json!({ "authorization": format!("Bearer {token}") });
        let (status, user) = post(&gateway, "/admin/principal", body).await;
        assert_eq!((status, &user["issuer"]), (200, &json!(issuer)), "{user}");
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
    let status = gateway
        .wait_for_config_status(|status| status["version"] == 2)
        .await;
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
    assert_eq!(
        (&real["decision"], &real["caller"]),
        (&json!("allow"), &json!("user ada"))
    );
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
    for hostile in [
        json!({ "request": "GET" }),
        json!({ "request": "GET /a b" }),
        json!({ "request": request, "host": "a/any/1?" }),
        json!({ "request": request, "token": "x", "principal": "user" }),
        json!({ "request": request, "headers": { "a b": "c" } }),
        json!({ "request": request, "principal": "root" }),
        json!({ "request": request, "extra": 1 }),
    ] {
        let (status, answer) = post(&gateway, "/admin/explain", hostile.clone()).await;
        assert!([400, 422].contains(&status), "{hostile}: {status} {answer}");
    }
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
    let (status, drained) = change("drain").await;
    assert_eq!(
        (status, &drained["endpoint"]["draining"]),
        (200, &json!(true))
    );
    assert!(drained["notice"].is_string(), "{drained}");
    assert_eq!(gateway.get("/open", "").await.status, 503);
    let (status, restored) = change("restore").await;
    assert_eq!(
        (status, &restored["endpoint"]["draining"]),
        (200, &json!(false))
    );
    assert_eq!(gateway.get("/open", "").await.status, 200);
}

#[tokio::test]
async fn ejection_by_operator_has_end_and_cause() {
    let gateway = start().await;
    let address = gateway.origin.address.to_string();
    let path = "/admin/upstreams/origin/eject";
    let body = json!({ "address": address, "seconds": 60 });
    let (status, ejected) = post(&gateway, path, body).await;
    assert_eq!(status, 200, "{ejected}");
    assert_eq!(ejected["endpoint"]["ejected"]["cause"], "operator");
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
    post(
        &gateway,
        "/admin/upstreams/origin/restore",
        json!({ "address": address }),
    )
    .await;
    let listed = get(&gateway, "/admin/upstreams").await;
    assert_eq!(
        listed["upstreams"][0]["endpoints"][0]["ejected"],
        Value::Null
    );
    for (path, body, expected) in [
        (
            "/admin/upstreams/none/eject",
            json!({ "address": address }),
            404,
        ),
        (
            "/admin/upstreams/origin/delete",
            json!({ "address": address }),
            404,
        ),
        (path, json!({ "address": "192.0.2.1:1" }), 422),
        (path, json!({ "address": address, "seconds": 0 }), 400),
        (path, json!({ "address": address, "seconds": 86_401 }), 400),
        (path, json!({}), 400),
    ] {
        let (status, answer) = post(&gateway, path, body.clone()).await;
        assert_eq!(status, expected, "{path} {body}: {answer}");
    }
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
    assert_eq!((&key["kid"], &key["alg"]), (&json!("k1"), &json!("ES256")));
    assert_eq!((&key["kty"], &key["use"]), (&json!("EC"), &json!("sig")));
    assert!(
        key["jwk"]["x"].is_string() && key["firstSeen"].is_string(),
        "{key}"
    );
    assert!(issuer["lastRefresh"].is_string(), "{issuer}");
    assert!(issuer["nextRefresh"].is_string(), "{issuer}");
}
