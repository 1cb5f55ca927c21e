use postern_core::config::load;

use super::*;
use crate::config::TestToken;
use crate::{CallerSource, explain};

async fn gateway(limits: &str, route: &str) -> TestGateway {
    let route = format!(
        "[[route]]\nname = \"limited\"\npath = \"/limited\"\nmethods = [\"GET\"]\nupstream = \"origin\"\n\
         policy = {{ users = \"any\", services = \"any\" }}\n{route}"
    );
    TestGateway::routed(OriginBehavior::Answer, "", limits, &route).await
}

#[tokio::test]
async fn rates_are_limited_by_address() {
    let gateway = TestGateway::with(
        OriginBehavior::Answer,
        "address = { requests = 1, per = \"1h\", burst = 2 }",
        "",
    )
    .await;
    assert_eq!(gateway.get("/open", "").await.status, 200);
    assert_eq!(gateway.get("/open", "").await.status, 200);
    let answer = gateway.get("/open", "").await;
    assert_eq!(answer.problem(), "429 rate_limited");
    let wait: u32 = answer
        .header("retry-after")
        .expect("a time")
        .parse()
        .expect("seconds");
    assert!((3500..=3600).contains(&wait), "{wait}");
    assert_rate_limit_fields(&answer);
}

/// Checks the response when a burst of two and a rate of one per hour are exhausted.
fn assert_rate_limit_fields(answer: &RawResponse) {
    assert!(answer.header("retry-after").is_some(), "{answer:?}");
    assert_eq!(
        answer.header("ratelimit-policy"),
        Some("\"address\";q=2;w=7200")
    );
    let left = answer.header("ratelimit");
    assert!(
        left.is_some_and(|left| left.starts_with("\"address\";r=0;t=")),
        "{answer:?}"
    );
}

#[tokio::test]
async fn principals_are_limited_separately() {
    let limit = "limits = [{ by = \"principal\", requests = 1, per = \"1h\" }]";
    let gateway = gateway("", limit).await;
    let bearer = |token: String| format!("Authorization: Bearer {token}\r\n");
    assert_eq!(
        gateway
            .get("/limited", &bearer(gateway.user()))
            .await
            .status,
        200
    );
    assert_eq!(
        gateway
            .get("/limited", &bearer(gateway.user()))
            .await
            .status,
        429
    );
    assert_eq!(
        gateway
            .get("/limited", &bearer(gateway.service("auth")))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn policy_names_the_configured_window() {
    for (limit, policy) in [
        (
            "by = \"address\", requests = 3, per = \"10s\"",
            "\"address\";q=3;w=10",
        ),
        (
            "by = \"route\", requests = 7, per = \"1m\", burst = 14",
            "\"route\";q=14;w=120",
        ),
    ] {
        let gateway = gateway("", &format!("limits = [{{ {limit} }}]")).await;
        let bearer = format!("Authorization: Bearer {}\r\n", gateway.user());
        let answer = gateway.get("/limited", &bearer).await;
        assert_eq!(
            (answer.status, answer.header("ratelimit-policy")),
            (200, Some(policy)),
            "{limit}"
        );
    }
}

#[tokio::test]
async fn rejected_heads_count_for_their_address() {
    let limits = "address = { requests = 1, per = \"1h\", burst = 2 }";
    let gateway = TestGateway::with(OriginBehavior::Answer, limits, "").await;
    let broken = "GET /open HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n";
    assert_eq!(gateway.send(broken).await.status, 400);
    assert_eq!(gateway.get("/open", "").await.status, 200);
    let refused = gateway.send(broken).await;
    assert_eq!(
        (refused.code().as_str(), refused.header("connection")),
        ("rate_limited", Some("close"))
    );
    assert_rate_limit_fields(&refused);

    let front = TlsGateway::start(OriginBehavior::Answer, limits, "").await;
    let mut client = front.client().await;
    for code in ["invalid_target", "invalid_target", "rate_limited"] {
        assert_eq!(get(&mut client, "/open//twice", &[]).await.code(), code);
    }
    let refused = get(&mut client, "/open//twice", &[]).await;
    let field = |name| {
        refused
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    assert_eq!(field("ratelimit-policy"), Some("\"address\";q=2;w=7200"));
    assert!(
        field("ratelimit").is_some_and(|left| left.starts_with("\"address\";r=0;t=")),
        "{refused:?}"
    );
    assert_eq!(get(&mut client, "/open", &[]).await.code(), "rate_limited");
}

#[tokio::test]
async fn explain_names_the_path_that_is_forwarded() {
    for (path, rewrite, target, forwarded) in [
        ("/v1", "strip = \"/v1\", add = \"/api\"", "/v1", "/api"),
        (
            "/v1",
            "strip = \"/v1\", add = \"/api\"",
            "/v1?a=b",
            "/api?a=b",
        ),
        ("/v1", "strip = \"/v1\"", "/v1", "/"),
        ("/v1", "strip = \"/v1\"", "/v1?a=b", "/?a=b"),
        (
            "/v1/*",
            "strip = \"/v1\", add = \"/api\"",
            "/v1/a?b",
            "/api/a?b",
        ),
        ("/v1/*", "strip = \"/v1\"", "/v1/a", "/a"),
        ("/v1/*", "strip = \"/v1\"", "/v1?a", "/?a"),
        ("/V1/*", "strip = \"/V1\"", "/v1/A", "/A"),
        ("/v1", "add = \"/api\"", "/v1", "/api/v1"),
    ] {
        let route = format!(
            "[[route]]\npath = \"{path}\"\nmethods = [\"GET\"]\nupstream = \"origin\"\npolicy = \"public\"\n\
             rewrite = {{ {rewrite} }}\nignore_case = true\n"
        );
        let gateway = TestGateway::routed(OriginBehavior::Answer, "", "", &route).await;
        assert_eq!(gateway.get(target, "").await.status, 200, "{target}");
        let sent = gateway.origin.seen().pop().expect("a request");
        assert_eq!(sent.split(' ').nth(1), Some(forwarded), "{path} {rewrite}");
        let nobody = CallerSource::Assumed(TestToken::None);
        let env = Env::from([("ADMIN_TOKEN", ADMIN_TOKEN)]);
        let file = gateway.log.path().join("proxy.toml");
        let config = load(&file, |root| Config::read(root, &env)).expect("a valid configuration");
        let said = explain(&config, "GET", target, &HeaderMap::new(), &nobody, None);
        let named = forwarded.split('?').next().expect("a path");
        assert!(said.contains(&format!("forwarded  {named}\n")), "{said}");
    }
}

#[tokio::test]
async fn clients_behind_trusted_proxy_are_distinguished() {
    let limits = "trusted_proxies = [\"127.0.0.0/8\"]\naddress = { requests = 1, per = \"1h\" }";
    let gateway = TestGateway::with(OriginBehavior::Answer, limits, "").await;
    let from = |address: &str| {
        format!("X-Forwarded-For: 6.6.6.6, {address}:4711\r\nX-Forwarded-Proto: https, http\r\n")
    };
    assert_eq!(gateway.get("/open", &from("9.9.9.1")).await.status, 200);
    assert_eq!(gateway.get("/open", &from("9.9.9.1")).await.status, 429);
    assert_eq!(gateway.get("/open", &from("9.9.9.2")).await.status, 200);
    let seen = gateway.origin.seen();
    assert!(
        has_field(&seen[1], "X-Forwarded-For: 9.9.9.2")
            && has_field(&seen[1], "X-Forwarded-Proto: https")
    );
}
