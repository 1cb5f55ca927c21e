//! Identity headers: upstreams receive the verified identity, and none that a client sent.

use postern_harness::origin::Seen;
use postern_harness::{Gateway, Origin, Pools, RawClient};

/// Header names in which some server expects an identity or a client address.
const FORGED: &[&str] = &[
    "X-Postern-Kind",
    "x-postern-kind",
    "X_Postern_Kind",
    "X-POSTERN_SUBJECT",
    "x.postern.service",
    "X-Postern-Subject",
    "X-Postern-Service",
    "X-Postern-Issuer",
    "X-Postern-Scopes",
    "X-Postern-Anything",
    "X-Request-Id",
    "X_Request_Id",
    "X-Forwarded-For",
    "X_Forwarded_For",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "Forwarded",
    "X-Forwarded-User",
    "Remote-User",
    "X-Original-URL",
    "X-Real-IP",
    "traceparent",
];

fn forged_headers() -> String {
    let headers = FORGED.iter().map(|name| format!("{name}: forged\r\n"));
    headers.collect()
}

#[track_caller]
fn is_clean(seen: &Seen) {
    for (name, value) in &seen.headers {
        assert_ne!(value, "forged", "{name} reached the upstream");
    }
    for name in [
        "x-request-id",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "traceparent",
    ] {
        assert_eq!(seen.all(name).len(), 1, "{name} in {:?}", seen.headers);
    }
}

#[tokio::test]
async fn client_supplied_identity_headers_are_removed() {
    let pools = Pools::start().await;
    let upstream = Origin::start().await;
    let config = Gateway::config(upstream.address());
    let gateway = Gateway::start(&config, &pools.env()).await;
    let address = gateway.client().address();
    let (subject, user) = pools.user(&[]).await;
    let service = pools.service_token("document").await;
    for (number, token) in [user, service].into_iter().enumerate() {
        let head = format!(
            "GET /actors/{subject}?b=1&a=%20 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{}\r\n",
            forged_headers()
        );
        let answer = RawClient::send(address, head.as_bytes()).await.expect(200);
        let seen = upstream.wait_for(number + 1).await.remove(number);
        is_clean(&seen);
        assert_eq!(seen.target, format!("/actors/{subject}?b=1&a=%20"));
        assert_eq!(seen.all("authorization"), [format!("Bearer {token}")]);
        assert_eq!(seen.all("x-forwarded-host"), ["localhost"]);
        assert_eq!(seen.all("x-forwarded-for"), ["127.0.0.1"]);
        assert_eq!(seen.all("x-request-id"), [answer.header("x-request-id")]);
        assert_eq!(seen.all("x-postern-issuer").len(), 1, "{:?}", seen.headers);
        let (kind, name) = (seen.all("x-postern-kind"), seen.all("x-postern-service"));
        let text = str::to_owned;
        if number == 0 {
            assert_eq!((kind, name), (vec![text("user")], vec![]));
            assert_eq!(seen.all("x-postern-subject"), [&*subject]);
        } else {
            assert_eq!(
                (kind, name),
                (vec![text("service")], vec![text("document")])
            );
        }
    }
    // A public route has no identity headers, whatever token is sent.
    let (_, token) = pools.user(&[]).await;
    let body = "{}";
    let head = format!(
        "POST /auth/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Authorization: Bearer {token}\r\n{}\r\n{body}",
        body.len(),
        forged_headers()
    );
    let _ = RawClient::send(address, head.as_bytes()).await.expect(200);
    let seen = upstream.wait_for(3).await.remove(2);
    is_clean(&seen);
    let mut names = seen.headers.keys();
    let identity = names.find(|name| name.as_str().starts_with("x-postern-"));
    assert_eq!(identity, None);
    gateway.stop().await;
}
