//! `X-Forwarded-For`, `-Proto` and `-Host` of trusted proxies.

use super::*;

/// Starts a gateway with these routes, and with one that has an access list and these lines.
async fn gateway(routes: &str, more: &str) -> TestGateway {
    let lines =
        format!("access = {{ allow = [\"0.0.0.0/0\", \"::/0\"] }}\npolicy = \"public\"\n{more}");
    let routes = format!("{routes}{}", route("listed", "/listed", &lines));
    TestGateway::routed(OriginBehavior::Answer, "", TRUSTED, &routes).await
}

const TRUSTED: &str = "trusted_proxies = [\"127.0.0.0/8\"]";

#[tokio::test]
async fn trusted_proxy_names_the_client() {
    let gateway = gateway(ROUTES, "").await;
    let forged = "Forwarded: for=203.0.113.1;proto=https\r\n";
    for (value, proto, client, scheme) in [
        ("192.0.2.1", "", "192.0.2.1", "http"),
        ("[2001:db8::1]:80", "https", "2001:db8::1", "https"),
        ("203.0.113.1, 192.0.2.1", "http", "192.0.2.1", "http"),
        ("192.0.2.1, 127.0.0.9", "https, http", "192.0.2.1", "https"),
    ] {
        let headers = format!("X-Forwarded-For: {value}\r\nX-Forwarded-Proto: {proto}\r\n{forged}");
        assert_eq!(gateway.status("/listed", &headers).await, 200, "{value}");
        let seen = gateway.origin.last();
        assert_fields(&seen, &[&format!("X-Forwarded-For: {client}")]);
        assert_fields(&seen, &[&format!("X-Forwarded-Proto: {scheme}")]);
        assert_eq!(values(&seen, "forwarded"), [""; 0], "{seen}");
    }
}

#[tokio::test]
async fn unknown_client_is_refused_by_access_lists() {
    let gateway = gateway(ROUTES, "").await;
    for value in "unknown|_hidden|192.0.2.1, nonsense|192.0.2.1, unknown".split('|') {
        let headers = format!("X-Forwarded-For: {value}\r\n");
        let response = gateway.get("/listed", &headers).await;
        assert_eq!(response.code(), "address_not_allowed", "{value}");
        // Without a list, the address is that of the proxy.
        assert_eq!(gateway.get("/open", &headers).await.status, 200);
        assert_fields(&gateway.origin.last(), &["X-Forwarded-For: 127.0.0.1"]);
    }
}

#[tokio::test]
async fn host_from_a_trusted_proxy_is_kept_if_a_route_accepts_it() {
    let gateway = gateway("", "hosts = [\"gate\", \"*.example.com\"]").await;
    for [sent, expected] in rows(
        r"X-Forwarded-Host: www.example.com:8443 | www.example.com:8443
         X-Forwarded-Host: evil.test | gate
         X-Forwarded-Host: a.example.com, gate | gate
         X-Forwarded-Host: a.example.com\r\nX-Forwarded-Host: gate | gate
         X_Forwarded_Host: a.example.com | gate",
    ) {
        let headers = format!("X-Forwarded-For: 192.0.2.1\r\n{sent}\r\n");
        assert_eq!(gateway.get("/listed", &headers).await.status, 200);
        let field = format!("x-forwarded-host: {expected}");
        assert_fields(&gateway.origin.last(), &[&field]);
    }
}
