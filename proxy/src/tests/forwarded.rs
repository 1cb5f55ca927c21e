//! `Forwarded` (RFC 7239), from trusted proxies and to upstreams.

use super::harness::{ROUTES, TestGateway, has_field};
use super::origin::{OriginBehavior, TestOrigin};

const LISTED: &str = r#"
[[route]]
name = "listed"
path = "/listed"
methods = ["GET"]
upstream = "origin"
access = { allow = ["0.0.0.0/0", "::/0"] }
policy = "public"
"#;

async fn gateway(limits: &str, upstream: &str) -> TestGateway {
    let origin = TestOrigin::start(OriginBehavior::Answer).await;
    let upstream = format!("addresses = [\"{}\"]\n{upstream}", origin.address);
    TestGateway::before(origin, &upstream, limits, &format!("{ROUTES}{LISTED}")).await
}

const TRUSTED: &str = "trusted_proxies = [\"127.0.0.0/8\"]\nforwarded_header = \"forwarded\"";

#[tokio::test]
async fn forwarded_of_a_trusted_proxy_names_the_client() {
    let gateway = gateway(TRUSTED, "").await;
    let forged = "X-Forwarded-For: 203.0.113.1\r\n";
    for (value, client, scheme) in [
        ("for=192.0.2.1", "192.0.2.1", "http"),
        (
            "for=\"[2001:db8::1]:80\";proto=https",
            "2001:db8::1",
            "https",
        ),
        (
            "for=203.0.113.1;proto=https, for=192.0.2.1",
            "192.0.2.1",
            "http",
        ),
        (
            "for=192.0.2.1;proto=https, for=127.0.0.9",
            "192.0.2.1",
            "https",
        ),
    ] {
        let headers = format!("Forwarded: {value}\r\n{forged}");
        assert_eq!(
            gateway.get("/listed", &headers).await.status,
            200,
            "{value}"
        );
        let seen = gateway.origin.seen().pop().expect("a request");
        for expected in [
            format!("X-Forwarded-For: {client}"),
            format!("X-Forwarded-Proto: {scheme}"),
        ] {
            assert!(has_field(&seen, &expected), "{value}: {seen}");
        }
        assert!(
            !seen.to_ascii_lowercase().contains("\r\nforwarded:"),
            "{seen}"
        );
    }
}

#[tokio::test]
async fn unknown_client_is_refused_by_access_lists() {
    let gateway = gateway(TRUSTED, "").await;
    for value in [
        "for=unknown",
        "for=_hidden",
        "proto=https",
        "for=\"192.0.2.1, for=192.0.2.2",
        "for=192.0.2.1, for=unknown",
    ] {
        let headers = format!("Forwarded: {value}\r\n");
        let response = gateway.get("/listed", &headers).await;
        assert_eq!(response.code(), "address_not_allowed", "{value}");
        // Without a list, the address is that of the proxy.
        assert_eq!(gateway.get("/open", &headers).await.status, 200);
        let seen = gateway.origin.seen().pop().expect("a request");
        assert!(has_field(&seen, "X-Forwarded-For: 127.0.0.1"), "{seen}");
    }
}

#[tokio::test]
async fn field_that_is_not_configured_is_ignored() {
    let forwarded = "Forwarded: for=203.0.113.1;proto=https\r\n";
    let gateway = gateway("trusted_proxies = [\"127.0.0.0/8\"]", "").await;
    let headers = format!("{forwarded}X-Forwarded-For: 192.0.2.1\r\n");
    assert_eq!(gateway.get("/listed", &headers).await.status, 200);
    let malformed = "X-Forwarded-For: 192.0.2.1, nonsense\r\n";
    let response = gateway.get("/listed", malformed).await;
    assert_eq!(response.code(), "address_not_allowed");
    let seen = gateway.origin.only();
    assert!(has_field(&seen, "X-Forwarded-For: 192.0.2.1"), "{seen}");
    assert!(has_field(&seen, "X-Forwarded-Proto: http"), "{seen}");
}

#[tokio::test]
async fn upstream_receives_forwarded_if_configured() {
    let gateway = gateway(TRUSTED, "forwarded = true").await;
    for (sent, expected) in [
        ("for=192.0.2.1", "for=192.0.2.1;host=\"gate\";proto=http"),
        (
            "for=\"[2001:db8::1]\";proto=https",
            "for=\"[2001:db8::1]\";host=\"gate\";proto=https",
        ),
    ] {
        let headers = format!("Forwarded: {sent}\r\n");
        assert_eq!(gateway.get("/open", &headers).await.status, 200);
        let seen = gateway.origin.seen().pop().expect("a request");
        let field = format!("Forwarded: {expected}");
        assert!(has_field(&seen, &field), "{seen}");
        let count = seen.to_ascii_lowercase().matches("\r\nforwarded:").count();
        assert_eq!(count, 1, "{seen}");
    }
}

#[tokio::test]
async fn host_from_a_trusted_proxy_is_kept_if_a_route_accepts_it() {
    let origin = TestOrigin::start(OriginBehavior::Answer).await;
    let upstream = format!("addresses = [\"{}\"]", origin.address);
    let routes = LISTED.replace("policy", "hosts = [\"gate\", \"*.example.com\"]\npolicy");
    let gateway = TestGateway::before(origin, &upstream, TRUSTED, &routes).await;
    for (sent, expected) in [
        (
            "X-Forwarded-Host: www.example.com:8443\r\n",
            "www.example.com:8443",
        ),
        ("X-Forwarded-Host: evil.test\r\n", "gate"),
        ("X-Forwarded-Host: a.example.com, gate\r\n", "gate"),
        (
            "X-Forwarded-Host: a.example.com\r\nX-Forwarded-Host: gate\r\n",
            "gate",
        ),
        ("X_Forwarded_Host: a.example.com\r\n", "gate"),
    ] {
        let headers = format!("Forwarded: for=192.0.2.1\r\n{sent}");
        assert_eq!(gateway.get("/listed", &headers).await.status, 200);
        let seen = gateway.origin.seen().pop().expect("a request");
        let field = format!("x-forwarded-host: {expected}");
        assert!(has_field(&seen, &field), "{sent}: {seen}");
    }
}
