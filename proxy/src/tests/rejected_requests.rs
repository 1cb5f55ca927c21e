use super::*;

/// Requests that are rejected before anything is forwarded, and after which the connection is
/// closed.
#[tokio::test]
async fn malformed_request_closes_the_connection() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    // All forms are in the tests of heads.
    for raw in [
        "POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "GET /open HTTP/1.1\nHost: h\n\n",
        "GET /open HTTP/1.1\r\n\r\n",
        "\r\n\r\nGET /open HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /open\r\nHost: h\r\n\r\n",
        "CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n",
        "GET /any/1 HTTP/1.1\r\nHost: h\r\nConnection: Authorization\r\n\r\n",
    ] {
        let mut client = gateway.connect().await;
        let answer = client.ask(raw).await;
        assert_eq!(answer.status, 400, "{raw:?} {answer:?}");
        assert_eq!(answer.header("connection"), Some("close"), "{raw:?}");
        assert!(answer.code().starts_with("invalid_"), "{answer:?}");
        assert!(client.is_closed().await, "{raw:?}");
    }
    assert_eq!(gateway.origin.seen(), [""; 0]);
}

/// RFC 9112 sections 2.2, 3.2 and 3.2.2.
#[tokio::test]
async fn unusual_request_forms_are_accepted() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let local = format!("host: {}", gateway.address);
    for [raw, line, host] in rows(
        r"
        GET /open HTTP/1.0\r\n\r\n | GET /open | LOCAL
        \r\nGET http://H:80/open HTTP/1.1\r\nHost: h\r\n\r\n | GET /open | host: h
        POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\na\r\nGET /open?b HTTP/1.1\r\nHost: h\r\n\r\n | GET /open?b | host: h
        GET /open?c HTTP/1.1\r\nHost: h\r\nConnection: X-Hop\r\nX-Hop: a\r\n\r\n | GET /open?c | host: h
        ",
    ) {
        let mut client = gateway.begin(&raw).await;
        for _ in 0..raw.matches(" HTTP/1").count() {
            let answer = client.answer().await;
            assert_eq!(answer.status, 200, "{raw:?} {answer:?}");
        }
        let seen = gateway.origin.last();
        assert!(seen.starts_with(&format!("{line} HTTP/1.")), "{seen}");
        assert_fields(&seen, &[&host.replace("LOCAL", &local)]);
        assert!(!seen.to_ascii_lowercase().contains("x-hop"), "{seen}");
    }
}

#[tokio::test]
async fn head_size_is_limited() {
    let limits = "head_bytes = 4096\ntarget_bytes = 512\nhead_fields = 20";
    let gateway = TestGateway::with(OriginBehavior::Answer, limits, "").await;
    let (long, large) = ("x".repeat(600), "x".repeat(4096));
    for (target, fields, code) in [
        ("/open", format!("X: {large}\r\n"), "head_too_large"),
        ("/open", "X: y\r\n".repeat(20), "head_too_large"),
        (&format!("/open?{long}"), String::new(), "target_too_long"),
    ] {
        assert_eq!(gateway.get(target, &fields).await.code(), code);
    }
    assert_eq!(gateway.send(&"x".repeat(8192)).await.status, 431);
}

#[tokio::test]
async fn malformed_chunk_ends_the_request() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let head = "POST /open HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    // All forms are in the tests of framing.
    for body in ["x\r\n", "3\r\nabcX0\r\n\r\n", "0\r\nHost : evil\r\n\r\n"] {
        let mut client = gateway.connect().await;
        let answer = client.ask(&format!("{head}{body}{GET}")).await;
        assert_eq!(answer.problem(), "400 invalid_request", "{body:?}");
        assert!(client.is_closed().await, "{body:?}");
    }
    let mut client = gateway.connect().await;
    let trailers = "0\r\nHost: evil\r\nX-Postern-Kind: evil\r\n\r\n";
    client.write(&format!("{head}{trailers}{NEXT}")).await;
    for _ in 0..2 {
        assert_eq!(client.answer().await.status, 200, "trailers are dropped");
    }
    let seen = gateway.origin.seen();
    let last = seen.last().expect("a request");
    assert!(last.starts_with("GET /open?next"), "{last}");
    assert!(seen.iter().all(|it| !it.contains("evil")), "{seen:?}");
}

/// The request after a rejected one.
const NEXT: &str = "GET /open?next HTTP/1.1\r\nHost: h\r\n\r\n";

/// A body that looks like a request and must not be treated as one.
const SMUGGLED_REQUEST: &str = "GET /open?hidden HTTP/1.1\r\nHost: h\r\n\r\n";

/// Requests that are rejected before their body is read: the body contains requests. Returns
/// status, head and body.
fn refused(gateway: &TestGateway, times: usize) -> [(u16, String, String); 3] {
    let token = gateway.bearer();
    let body = SMUGGLED_REQUEST.repeat(times);
    let rest = format!("HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n", body.len());
    let request = |(status, line, token): (u16, &str, &str)| {
        (status, format!("{line} {rest}{token}\r\n"), body.clone())
    };
    let token = token.as_str();
    let other = [(404, "POST /nowhere", token), (405, "BREW /any/1", token)];
    [(401, "POST /any/1", ""), other[0], other[1]].map(request)
}

/// A long body is handled by Pingora, which closes the connection instead of reading it.
#[tokio::test]
async fn late_body_of_rejected_request_is_not_a_request() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    for (times, connection) in [(1, "keep-alive"), (500, "close")] {
        for (status, head, body) in refused(&gateway, times) {
            for cut in [0, 1, SMUGGLED_REQUEST.len() - 1, body.len()] {
                let before = gateway.origin.seen().len();
                let (early, late) = body.split_at(cut);
                let mut client = gateway.begin(&format!("{head}{early}")).await;
                // Before the body.
                let answer = client.answer().await;
                assert_eq!(answer.status, status, "{head}");
                assert_eq!(answer.header("connection"), Some(connection), "{head}");
                client.write(&format!("{late}{NEXT}")).await;
                match connection {
                    "close" => assert!(client.is_closed().await, "{head}"),
                    _ => assert_eq!(client.answer().await.status, 200, "{head}"),
                }
                let reached = gateway.origin.seen().split_off(before);
                let is_next = |request: &String| request.starts_with("GET /open?next ");
                assert!(reached.iter().all(is_next), "{reached:?}");
                let count = usize::from(connection != "close");
                assert_eq!(reached.len(), count, "{head} {reached:?}");
            }
        }
    }
}

#[tokio::test]
async fn body_of_rejected_request_has_the_same_limits() {
    for limits in ["stall_timeout = \"150ms\"", "deadline = \"150ms\""] {
        let gateway = TestGateway::with(OriginBehavior::Answer, limits, "").await;
        let requests = refused(&gateway, 1);
        for (status, head, body) in &requests {
            let began = Instant::now();
            let mut client = gateway.connect().await;
            assert_eq!(client.ask(head).await.status, *status, "{head}");
            assert!(client.is_closed().await, "{limits} {head}");
            let limits_ms = 100..2_000;
            assert!(limits_ms.contains(&began.elapsed().as_millis()), "{head}");
            // The body is not read.
            client.write(body).await;
        }
        assert_eq!(gateway.finish().await.len(), requests.len(), "{limits}");
    }
}

#[tokio::test]
async fn admin_listener_rejects_foreign_hosts() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    for (host, status) in [
        ("localhost", 200),
        ("127.0.0.1:8509", 200),
        ("evil.example", 400),
        ("10.0.0.5", 400),
    ] {
        let mut client = RawClient::connect(gateway.admin).await;
        let request = format!("GET /config/status HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(client.ask(&request).await.status, status, "{host}");
    }
}
