//! HTTP/2 requests: the same deadlines, limits and checks as for HTTP/1.

use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use super::harness::{STEP_TIMEOUT, TestGateway, has_field};
use super::origin::OriginBehavior;
use super::tls_gateway::{TlsGateway, get, head, reply, send};

#[tokio::test]
async fn stalled_body_is_rejected() {
    let front = TlsGateway::start(OriginBehavior::Answer, "stall_timeout = \"150ms\"", "").await;
    let mut client = front.client().await;
    let (answer, mut body) = send(
        &mut client,
        head("POST", "/open", &[("content-length", "9")]),
        false,
    );
    body.send_data(Bytes::from_static(b"a"), false)
        .expect("sends");
    let reply = reply(answer).await.expect("a response");
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (400, "request_timeout")
    );
    assert_eq!(
        get(&mut client, "/open", &[]).await.status,
        200,
        "other streams are not affected"
    );
    let events = front.gateway.finish().await;
    assert_eq!(
        (&events[0]["code"], &events[0]["protocol"]),
        (&"request_timeout".into(), &"HTTP/2".into())
    );
}

#[tokio::test]
async fn stream_of_a_stalled_reader_is_reset() {
    let front = TlsGateway::start(OriginBehavior::Flood, "stall_timeout = \"150ms\"", "").await;
    let mut client = front.client().await;
    let (answer, _) = send(&mut client, head("GET", "/open", &[]), true);
    let mut body = answer.await.expect("a head").into_body();
    let reading = async {
        // Flow-control capacity is not released, so that the window is exhausted.
        while let Some(part) = body.data().await {
            if part.is_err() {
                return true;
            }
        }
        false
    };
    assert!(
        tokio::time::timeout(STEP_TIMEOUT, reading)
            .await
            .expect("the end in time"),
        "truncated"
    );
    let events = front.gateway.finish().await;
    assert_eq!(events[0]["code"], "request_timeout");
}

#[tokio::test]
async fn request_and_upstream_deadlines_apply() {
    let front = TlsGateway::start(OriginBehavior::Hang, "deadline = \"150ms\"", "").await;
    let slow = get(&mut front.client().await, "/open", &[]).await;
    assert_eq!(
        (slow.status, slow.code().as_str()),
        (504, "upstream_timeout")
    );
    // The connect timeout does not add to the read timeout once a connection is established;
    // otherwise STEP_TIMEOUT would be exceeded.
    let timeouts = "connect_timeout = \"30s\"\nread_timeout = \"150ms\"";
    let front = TlsGateway::start(OriginBehavior::Hang, "", timeouts).await;
    let silent = get(&mut front.client().await, "/open", &[]).await;
    assert_eq!(
        (silent.status, silent.code().as_str()),
        (504, "upstream_timeout")
    );
    let silent = TestGateway::with(OriginBehavior::Hang, "", timeouts)
        .await
        .get("/open", "")
        .await;
    assert_eq!(
        (silent.status, silent.code().as_str()),
        (504, "upstream_timeout")
    );
}

#[tokio::test]
async fn upload_may_exceed_the_read_timeout() {
    let front =
        TlsGateway::start(OriginBehavior::AnswerPosts, "", "read_timeout = \"150ms\"").await;
    let mut client = front.client().await;
    let (answer, mut body) = send(&mut client, head("POST", "/open", &[]), false);
    body.send_data(Bytes::from_static(b"first "), false)
        .expect("sends");
    // This request starts later, and its deadline passes first.
    assert_eq!(
        get(&mut client, "/open", &[]).await.code(),
        "upstream_timeout"
    );
    body.send_data(Bytes::from_static(b"second"), true)
        .expect("sends");
    assert_eq!(reply(answer).await.expect("a response").status, 200);
    let seen = front.gateway.origin.seen().concat();
    assert!(seen.contains("first ") && seen.contains("second"), "{seen}");
}

/// More data than announced is a stream error, before any of it is forwarded.
#[tokio::test]
async fn data_beyond_content_length_resets_the_stream() {
    let front = TlsGateway::start(OriginBehavior::AnswerPosts, "", "").await;
    let mut client = front.client().await;
    for (length, streams) in [(5, false), (5, true), (40_000, false)] {
        let digits = length.to_string();
        let mut fields = vec![("content-length", digits.as_str())];
        if streams {
            fields.push(("expect", "100-continue"));
        }
        let (answer, mut body) = send(&mut client, head("POST", "/open", &fields), false);
        body.send_data(vec![b'x'; length].into(), false)
            .expect("sends");
        let (other, _) = send(&mut client, head("POST", "/open", &[]), true);
        assert_eq!(reply(other).await.expect("a response").status, 200);
        body.send_data(Bytes::from_static(b"yy"), false)
            .expect("sends");
        let error = reply(answer).await.expect_err("a reset");
        assert_eq!(error.reason(), Some(h2::Reason::PROTOCOL_ERROR), "{length}");
    }
    let seen = front.gateway.origin.seen();
    assert!(
        seen.iter()
            .all(|it| !it.contains("x\0") && !it.contains("yy")),
        "{seen:?}"
    );
}

/// The body is read, so that the response is not followed by a reset.
#[tokio::test]
async fn short_body_of_a_rejected_request_is_read() {
    let front = TlsGateway::start(OriginBehavior::Answer, "", "").await;
    let mut client = front.client().await;
    let long = "x".repeat(40_000);
    let cases = [
        ("/any/1", &[("content-length", "5")][..], 401),
        ("/any/1", &[][..], 401),
        ("/open//1", &[("content-length", "5")][..], 400),
        ("/open//1", &[][..], 400),
        ("/open", &[("x-long", long.as_str())][..], 431),
    ];
    for (path, fields, status) in cases {
        let (answer, mut body) = send(&mut client, head("POST", path, fields), false);
        assert_eq!(reply(answer).await.expect("a response").status, status);
        body.send_data(Bytes::from_static(b"12345"), true)
            .expect("sends");
        // The next response arrives after a reset of the first stream would have.
        assert_eq!(get(&mut client, "/open", &[]).await.status, 200);
        let reset = std::future::poll_fn(|cx| Poll::Ready(body.poll_reset(cx))).await;
        assert!(!matches!(reset, Poll::Ready(Ok(_))), "{path} {reset:?}");
    }
}

#[tokio::test]
async fn upload_with_trailers_is_complete() {
    let front =
        TlsGateway::start(OriginBehavior::AnswerPosts, "", "read_timeout = \"150ms\"").await;
    let mut client = front.client().await;
    let (answer, mut body) = send(&mut client, head("POST", "/open", &[]), false);
    body.send_data(Bytes::from_static(b"whole"), false)
        .expect("sends");
    // This request starts later, and its deadline passes first.
    assert_eq!(
        get(&mut client, "/open", &[]).await.code(),
        "upstream_timeout"
    );
    let trailers = [("x-sum".parse().expect("a name"), "1".parse().expect("text"))]
        .into_iter()
        .collect();
    body.send_trailers(trailers).expect("sends");
    assert_eq!(reply(answer).await.expect("a response").status, 200);
    let (answer, mut body) = send(&mut client, head("POST", "/open", &[]), false);
    body.send_trailers(http::HeaderMap::new()).expect("sends");
    assert_eq!(
        reply(answer).await.expect("a response").status,
        200,
        "without a body"
    );
}

/// Uploads `sent` bytes and trailers. Returns the status, or the reason of a reset.
async fn upload_with_trailers(length: usize, sent: usize) -> Result<u16, Option<h2::Reason>> {
    let front = TlsGateway::start(OriginBehavior::AnswerPosts, "", "").await;
    let length = length.to_string();
    let request = head("POST", "/open", &[("content-length", &length)]);
    let (answer, mut body) = send(&mut front.client().await, request, false);
    body.send_data(vec![b'x'; sent].into(), false)
        .expect("sends");
    let trailers = [("x-sum".parse().expect("a name"), "1".parse().expect("text"))];
    body.send_trailers(trailers.into_iter().collect())
        .expect("sends");
    let reply = reply(answer).await;
    reply
        .map(|reply| reply.status)
        .map_err(|error| error.reason())
}

/// Runs outside of the runtime, which a busy loop would occupy.
#[test]
fn trailers_end_a_streamed_body_of_known_length() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let outcomes = runtime.block_on(async {
        let limited = |length, sent| {
            let upload = tokio::spawn(upload_with_trailers(length, sent));
            async move { Ok(tokio::time::timeout(STEP_TIMEOUT, upload).await??) }
        };
        let whole: Result<_, std::io::Error> = limited(40_000, 40_000).await;
        (whole, limited(40_000, 20_000).await)
    });
    runtime.shutdown_background();
    assert_eq!(outcomes.0.expect("in time"), Ok(200));
    assert_eq!(
        outcomes.1.expect("in time"),
        Err(Some(h2::Reason::PROTOCOL_ERROR)),
        "shorter than its length"
    );
}

#[tokio::test]
async fn idle_connection_is_closed() {
    let front = TlsGateway::start(
        OriginBehavior::Answer,
        "head_timeout = \"150ms\"\nidle_timeout = \"150ms\"",
        "",
    )
    .await;
    for requests in 0..2 {
        let (client, connection) = h2::client::handshake(front.connect().await)
            .await
            .expect("a handshake");
        let ended = tokio::spawn(connection);
        let mut client = client.ready().await.expect("ready");
        for _ in 0..requests {
            assert_eq!(get(&mut client, "/open", &[]).await.status, 200);
        }
        let ended = tokio::time::timeout(STEP_TIMEOUT, ended)
            .await
            .expect("the end in time");
        assert!(
            ended.expect("does not panic").is_ok(),
            "GOAWAY with NO_ERROR"
        );
    }
}

#[tokio::test]
async fn concurrent_streams_are_limited() {
    let front = TlsGateway::start(OriginBehavior::Answer, "streams = 2", "").await;
    let mut client = front.client().await;
    assert_eq!(get(&mut client, "/open", &[]).await.status, 200);
    assert_eq!(client.current_max_send_streams(), 2);
}

#[tokio::test]
async fn repeated_resets_close_the_connection() {
    let front = TlsGateway::start(OriginBehavior::Hang, "", "").await;
    let (client, connection) = h2::client::handshake(front.connect().await)
        .await
        .expect("a handshake");
    let ended = tokio::spawn(connection);
    let attack = async {
        let mut client = client;
        for number in 1..=400 {
            client = match client.ready().await {
                Ok(client) => client,
                Err(error) => return (number, error),
            };
            let Ok((_answer, mut stream)) = client.send_request(head("GET", "/open", &[]), true)
            else {
                continue;
            };
            // Each request is forwarded to the origin, which is the most expensive case.
            while front.gateway.origin.seen().len() < number && !ended.is_finished() {
                tokio::task::yield_now().await;
            }
            stream.send_reset(h2::Reason::CANCEL);
        }
        panic!("400 streams were begun and given up");
    };
    let (number, error) = tokio::time::timeout(STEP_TIMEOUT, attack)
        .await
        .expect("the end in time");
    assert!((100..140).contains(&number), "{number}");
    assert_eq!(
        error.reason(),
        Some(h2::Reason::ENHANCE_YOUR_CALM),
        "{error}"
    );
    assert!(
        front
            .gateway
            .admin_get("/metrics")
            .await
            .contains("postern_http2_rapid_resets_total 1")
    );
    front.client().await;
}

#[tokio::test]
async fn http2_targets_are_checked_as_strictly() {
    let front = TlsGateway::start(OriginBehavior::Answer, "", "").await;
    let mut client = front.client().await;
    let bearer = format!("Bearer {}", front.gateway.user());
    for target in [
        "/any/a%2fb",
        "/any/%2e%2e/open",
        "//open",
        "/any//x",
        "/any/x;y",
        "/any/%ff",
        "/%6fpen",
    ] {
        let reply = get(&mut client, target, &[("authorization", &bearer)]).await;
        assert_eq!(
            (reply.status, reply.code().as_str()),
            (400, "invalid_target"),
            "{target}"
        );
    }
    assert!(front.gateway.origin.seen().is_empty());
    check_rejected_heads(&front.gateway.finish().await);
}

/// Checks that no event contains a path.
fn check_rejected_heads(events: &[Value]) {
    assert!(!events.is_empty());
    assert!(
        events
            .iter()
            .all(|event| event["protocol"] == "HTTP/2" && event["path"].is_null()),
        "{events:?}"
    );
}

#[tokio::test]
async fn http2_heads_are_checked_as_strictly() {
    let front = TlsGateway::start(
        OriginBehavior::Answer,
        "target_bytes = 64\nhead_fields = 10",
        "",
    )
    .await;
    let mut client = front.client().await;
    let long = format!("/open?{}", "x".repeat(64));
    assert_eq!(get(&mut client, &long, &[]).await.code(), "target_too_long");
    assert_eq!(
        get(&mut client, "/open", &[("x", "y"); 11]).await.code(),
        "head_too_large"
    );
    let elsewhere = get(&mut client, "/open", &[("host", "elsewhere")]).await;
    assert_eq!(elsewhere.code(), "invalid_target");
    let twice = [("content-length", "0"), ("content-length", "0")];
    assert_eq!(
        get(&mut client, "/open", &twice).await.code(),
        "invalid_header"
    );
    assert!(front.gateway.origin.seen().is_empty());
    assert!(
        front
            .gateway
            .admin_get("/metrics")
            .await
            .contains("postern_proxy_rejected_before_routing_total{code=\"target_too_long\"} 1")
    );
    check_rejected_heads(&front.gateway.finish().await);
}

#[tokio::test]
async fn oversized_http2_head_is_answered_with_431() {
    let front = TlsGateway::start(OriginBehavior::Answer, "head_bytes = \"2KiB\"", "").await;
    let mut client = front.client().await;
    let large = get(&mut client, "/open", &[("x", &"y".repeat(2048))]).await;
    assert_eq!(
        (large.status, large.code().as_str()),
        (431, "head_too_large")
    );
    assert_eq!(
        get(&mut client, "/open", &[("x", &"y".repeat(1800))])
            .await
            .status,
        200
    );
    let events = front.gateway.finish().await;
    assert_eq!(
        (&events[0]["code"], &events[0]["protocol"]),
        (&"head_too_large".into(), &"HTTP/2".into())
    );
}

#[tokio::test]
async fn identity_is_removed_and_cookies_are_joined() {
    let front = TlsGateway::start(OriginBehavior::Answer, "", "").await;
    let mut client = front.client().await;
    let forged = [
        ("x-postern-kind", "service"),
        ("x_postern_service", "auth"),
        ("x.postern.subject", "eve"),
        ("x-forwarded-for", "6.6.6.6"),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
    ];
    assert_eq!(get(&mut client, "/open", &forged).await.status, 200);
    let seen = front.gateway.origin.only();
    let seen = seen.replace("cdn-loop: postern", "");
    assert!(
        !seen.contains("postern") && !seen.contains("6.6.6.6"),
        "{seen}"
    );
    assert!(
        has_field(&seen, "cookie: a=1; b=2") && has_field(&seen, "host: gate"),
        "{seen}"
    );
}

#[tokio::test]
async fn shutdown_completes_streams_and_accepts_no_more() {
    let front = TlsGateway::start(OriginBehavior::Answer, "", "").await;
    let mut client = front.client().await;
    let (answer, mut body) = send(&mut client, head("POST", "/open", &[]), false);
    body.send_data(Bytes::from_static(b"a"), false)
        .expect("sends");
    assert_eq!(get(&mut client, "/open", &[]).await.status, 200);
    front.gateway.shutdown.cancel();
    let refused = async {
        while client.clone().ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(STEP_TIMEOUT, refused)
        .await
        .expect("the client gets a response");
    body.send_data(Bytes::from_static(b"b"), true)
        .expect("sends");
    assert_eq!(reply(answer).await.expect("a response").status, 200);
    let ended = tokio::time::timeout(Duration::from_secs(5), front.gateway.running).await;
    ended.expect("ends").expect("does not panic");
}
