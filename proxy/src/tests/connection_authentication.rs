//! Upstream connections on which a client has authenticated itself, as by NTLM.

use std::net::SocketAddr;

use super::harness::PATH_SELECTORS;
use super::scripted_origin::{gateway, start};

/// Starts an origin that authenticates connections. Its answer names the user of the connection and
/// the number of requests on it.
async fn authenticating_origin() -> SocketAddr {
    start(|mut connection| async move {
        let (mut user, mut count) = ("nobody", 0);
        while let Some(head) = connection.take_head().await {
            count += 1;
            let head = head.to_ascii_lowercase();
            if head.contains("authorization: ") && !head.contains("authorization: basic") {
                user = "ada";
            }
            let body = format!("{user} {count}");
            let (status, challenge) = match head.contains("x-challenge: ") {
                true => (
                    "401 Unauthorized",
                    "WWW-Authenticate: Basic realm=\"a, b\"\r\nWWW-Authenticate: Digest x, NTLM\r\n",
                ),
                false => ("200 OK", "WWW-Authenticate: Basic realm=\"a\"\r\n"),
            };
            let length = body.len();
            connection
                .send(format!(
                    "HTTP/1.1 {status}\r\n{challenge}Content-Length: {length}\r\n\r\n{body}"
                ))
                .await;
        }
    })
    .await
}

#[tokio::test]
async fn authenticated_connection_is_used_for_one_client() {
    let origin = authenticating_origin().await;
    for selector in PATH_SELECTORS {
        for (fields, is_reused) in [
            ("", true),
            ("Authorization: Basic bnRsbQ==\r\n", true),
            ("Authorization: NTLM TlRMTVNTUAAB\r\n", false),
            ("Authorization: ntlm\tTlRMTVNTUAAB\r\n", false),
            ("AUTHORIZATION: Negotiate YIIg\r\n", false),
            ("Authorization: Kerberos YIIg\r\n", false),
            ("Authorization: CredSSP TlRM\r\n", false),
            ("X-Challenge: 1\r\n", false),
        ] {
            let gateway = gateway(&[origin], "", "").await;
            let fields = format!("{fields}{selector}");
            let first = gateway.get("/open", &fields).await;
            assert!(first.body.ends_with(" 1"), "{fields}: {}", first.body);
            let second = gateway.get("/open", selector).await;
            let expected = if is_reused { "nobody 2" } else { "nobody 1" };
            assert_eq!(second.body, expected, "{fields}");
        }
    }
}
