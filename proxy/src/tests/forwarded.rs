//! `X-Forwarded-For`, `-Proto` and `-Host` of trusted proxies.

use super::*;

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
    TestGateway::routed(
        OriginBehavior::Answer,
        upstream,
        limits,
        &format!("{ROUTES}{LISTED}"),
    )
    .await
}

const TRUSTED: &str = "trusted_proxies = [\"127.0.0.0/8\"]";

#[tokio::test]
async fn trusted_proxy_names_the_client() {
    let gateway = gateway(TRUSTED, "").await;
    let forged = "Forwarded: for=203.0.113.1;proto=https\r\n";
    for (value, proto, client, scheme) in [
        ("192.0.2.1", "", "192.0.2.1", "http"),
        ("[2001:db8::1]:80", "https", "2001:db8::1", "https"),
        ("203.0.113.1, 192.0.2.1", "http", "192.0.2.1", "http"),
        ("192.0.2.1, 127.0.0.9", "https, http", "192.0.2.1", "https"),
    ] {
        let headers = format!("X-Forwarded-For: {value}\r\nX-Forwarded-Proto: {proto}\r\n{forged}");
        let answer = gateway.get("/listed", &headers).await;
        assert_eq!(answer.status, 200, "{value}");
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
    for value in "unknown|_hidden|192.0.2.1, nonsense|192.0.2.1, unknown".split('|') {
        let headers = format!("X-Forwarded-For: {value}\r\n");
        let response = gateway.get("/listed", &headers).await;
        assert_eq!(response.code(), "address_not_allowed", "{value}");
        // Without a list, the address is that of the proxy.
        assert_eq!(gateway.get("/open", &headers).await.status, 200);
        let seen = gateway.origin.seen().pop().expect("a request");
        assert!(has_field(&seen, "X-Forwarded-For: 127.0.0.1"), "{seen}");
    }
}

#[tokio::test]
async fn host_from_a_trusted_proxy_is_kept_if_a_route_accepts_it() {
    let routes = LISTED.replace("policy", "hosts = [\"gate\", \"*.example.com\"]\npolicy");
    let gateway = TestGateway::routed(OriginBehavior::Answer, "", TRUSTED, &routes).await;
    for [sent, expected] in rows(
        r"X-Forwarded-Host: www.example.com:8443 | www.example.com:8443
         X-Forwarded-Host: evil.test | gate
         X-Forwarded-Host: a.example.com, gate | gate
         X-Forwarded-Host: a.example.com\r\nX-Forwarded-Host: gate | gate
         X_Forwarded_Host: a.example.com | gate",
    ) {
        let headers = format!("X-Forwarded-For: 192.0.2.1\r\n{sent}\r\n");
        assert_eq!(gateway.get("/listed", &headers).await.status, 200);
        let seen = gateway.origin.seen().pop().expect("a request");
        let field = format!("x-forwarded-host: {expected}");
        assert!(has_field(&seen, &field), "{sent}: {seen}");
    }
}
