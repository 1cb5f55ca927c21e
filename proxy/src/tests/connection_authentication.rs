//! Upstream connections on which a client has authenticated itself, as by NTLM.

use super::scripted_origin::{gateway, start};
use super::*;

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
            let challenge = match head.contains("x-challenge: ") {
                true => "401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"a, b\"\r\nWWW-Authenticate: Digest x, NTLM",
                false => "200 OK\r\nWWW-Authenticate: Basic realm=\"a\"",
            };
            let end = format!("Content-Length: {}\r\n\r\n{body}", body.len());
            connection.send(format!("HTTP/1.1 {challenge}\r\n{end}")).await;
        }
    })
    .await
}

#[tokio::test]
async fn authenticated_connection_is_used_for_one_client() {
    let origin = authenticating_origin().await;
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
        let first = gateway.get("/open", fields).await;
        assert!(first.body.ends_with(" 1"), "{fields}: {}", first.body);
        let second = gateway.get("/open", "").await;
        let expected = if is_reused { "nobody 2" } else { "nobody 1" };
        assert_eq!(second.body, expected, "{fields}");
    }
}

/// Starts an origin that needs two messages on one connection, as NTLM does. Its answer names the
/// number of the connection.
async fn ntlm_origin() -> SocketAddr {
    let connections = Arc::new(AtomicUsize::new(0));
    start(move |mut connection| {
        let number = connections.fetch_add(1, Ordering::Relaxed);
        async move {
            let mut messages = 0;
            while let Some(head) = connection.take_head().await {
                let is_message = head.to_ascii_lowercase().contains("authorization: ntlm");
                messages += usize::from(is_message || messages == 2);
                let answer = match messages {
                    0 => "401 Unauthorized\r\nWWW-Authenticate: NTLM",
                    1 => "401 Unauthorized\r\nWWW-Authenticate: NTLM TlRMTVNTUAAC",
                    _ => "200 OK",
                };
                let length = number.to_string().len();
                let end = format!("Content-Length: {length}\r\n\r\n{number}");
                connection.send(format!("HTTP/1.1 {answer}\r\n{end}")).await;
            }
        }
    })
    .await
}

#[tokio::test]
async fn authenticated_connection_belongs_to_its_client_connection() {
    // With several addresses, all messages reach the same one.
    let origins = [
        ntlm_origin().await,
        ntlm_origin().await,
        ntlm_origin().await,
    ];
    let get = |fields: &str| format!("GET /open HTTP/1.1\r\nHost: gate\r\n{fields}\r\n");
    let (first, second) = (
        get("Authorization: NTLM TlRMTVNTUAAB\r\n"),
        get("Authorization: NTLM TlRMTVNTUAAD\r\n"),
    );
    let steps = [
        (get(""), 401),
        (first, 401),
        (second, 200),
        (get(""), 200),
        (get(""), 200),
    ];
    for (limits, is_bound) in [("", true), ("trusted_proxies = [\"127.0.0.1/32\"]", false)] {
        let gateway = gateway(&origins, "", limits).await;
        let mut client = gateway.connect().await;
        let mut other = gateway.connect().await;
        for (request, status) in &steps {
            let response = client.ask(request).await;
            let expected = if is_bound { *status } else { 401 };
            assert_eq!(response.status, expected, "{request}");
            assert_eq!(other.ask(&get("")).await.status, 401, "another connection");
        }
        drop(client);
        for _ in 0..9 {
            assert_eq!(gateway.get("/open", "").await.status, 401);
        }
    }
}

#[tokio::test]
async fn bound_connection_is_closed_with_its_client_connection() {
    let (closed, mut is_closed) = tokio::sync::mpsc::channel(1);
    let origin = start(move |mut connection| {
        let closed = closed.clone();
        async move {
            while connection.take_head().await.is_some() {
                connection.send(OK).await;
            }
            let _last = closed.send(()).await;
        }
    })
    .await;
    let gateway = gateway(&[origin], "idle_timeout = \"1h\"", "").await;
    let mut client = gateway.connect().await;
    let request = "GET /open HTTP/1.1\r\nHost: gate\r\nAuthorization: NTLM x\r\n\r\n";
    assert_eq!(client.ask(request).await.status, 200);
    drop(client);
    in_time(is_closed.recv()).await;
}

#[tokio::test]
async fn authenticated_http2_connection_is_used_for_one_request() {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let origin = start(move |connection| {
        count.fetch_add(1, Ordering::Relaxed);
        async move {
            let streams = h2::server::handshake(connection.stream).await;
            let mut streams = streams.expect("a handshake");
            while let Some(Ok((_, answer))) = streams.accept().await {
                answer_http2(answer, &[]);
            }
        }
    })
    .await;
    let gateway = gateway(&[origin], "http2 = true", "").await;
    opened.store(0, Ordering::Relaxed);
    for (scheme, connections) in [("Basic", 1), ("NTLM", 2), ("ntlm", 3), ("Basic", 3)] {
        let fields = format!("Authorization: {scheme} TlRMTVNTUAAB\r\n");
        assert_eq!(gateway.get("/open", &fields).await.status, 200);
        assert_eq!(opened.load(Ordering::Relaxed), connections, "{fields}");
    }
}
