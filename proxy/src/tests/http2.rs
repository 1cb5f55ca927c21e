//! HTTP/2 requests: the same deadlines, limits and checks as for HTTP/1.

use std::task::Poll;

use super::*;

#[tokio::test]
async fn stalled_body_is_rejected() {
    let front = TlsGateway::start(OriginBehavior::Answer, "stall_timeout = \"150ms\"", "").await;
    let mut client = front.client().await;
    let (answer, _body) = upload(&mut client, "/open", 9, "a");
    let reply = reply(answer).await.expect("a response");
    assert_eq!(reply.problem(), "400 request_timeout");
    // Other streams are not affected.
    assert_eq!(get(&mut client, "/open", &[]).await.status, 200);
    let expected = json!({ "code": "request_timeout", "protocol": "HTTP/2" });
    front.gateway.assert_event(&expected).await;
}

#[tokio::test]
async fn request_and_upstream_deadlines_apply() {
    let front = TlsGateway::start(OriginBehavior::Hang, "deadline = \"150ms\"", "").await;
    let slow = get(&mut front.client().await, "/open", &[]).await;
    assert_eq!(slow.problem(), "504 upstream_timeout");
    // The connect timeout does not add to the read timeout once a connection is established;
    // otherwise STEP_TIMEOUT would be exceeded.
    let timeouts = "connect_timeout = \"30s\"\nread_timeout = \"150ms\"";
    let front = TlsGateway::start(OriginBehavior::Hang, "", timeouts).await;
    let silent = get(&mut front.client().await, "/open", &[]).await;
    assert_eq!(silent.problem(), "504 upstream_timeout");
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
        let sent = body.send_data(vec![b'x'; length].into(), false);
        sent.expect("sends");
        assert_eq!(call(&mut client, "POST", "/open", &[]).await.status, 200);
        body.send_data("yy".into(), false).expect("sends");
        let error = reply(answer).await.expect_err("a reset");
        assert_eq!(error.reason(), Some(h2::Reason::PROTOCOL_ERROR), "{length}");
    }
    let seen = front.gateway.origin.seen().concat();
    assert!(!seen.contains("x\0") && !seen.contains("yy"), "{seen}");
}

/// The body is read, so that the response is not followed by a reset. Clients know the length of the
/// response while they send.
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
        let response = reply(answer).await.expect("a response");
        assert_eq!(response.status, status);
        assert!(response.headers.contains_key("content-length"), "{path}");
        body.send_data("12345".into(), true).expect("sends");
        // The next response arrives after a reset of the first stream would have.
        assert_eq!(get(&mut client, "/open", &[]).await.status, 200);
        let reset = std::future::poll_fn(|cx| Poll::Ready(body.poll_reset(cx))).await;
        assert!(!matches!(reset, Poll::Ready(Ok(_))), "{path} {reset:?}");
    }
}

/// Uploads `sent` bytes and trailers. Returns the status, or the reason of a reset.
async fn upload_with_trailers(length: usize, sent: usize) -> Result<u16, Option<h2::Reason>> {
    let front = TlsGateway::start(OriginBehavior::AnswerPosts, "", "").await;
    let length = length.to_string();
    let request = head("POST", "/open", &[("content-length", &length)]);
    let (answer, mut body) = send(&mut front.client().await, request, false);
    let part = body.send_data(vec![b'x'; sent].into(), false);
    let trailers = [("x-sum".parse().expect("a name"), "1".parse().expect("text"))];
    let end = body.send_trailers(trailers.into_iter().collect());
    part.and(end).expect("sends");
    let status = reply(answer).await.map(|reply| reply.status);
    status.map_err(|error| error.reason())
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
    // Shorter than its length.
    let reset = Err(Some(h2::Reason::PROTOCOL_ERROR));
    assert_eq!(outcomes.1.expect("in time"), reset);
}

#[tokio::test]
async fn idle_connection_is_closed() {
    let limits = "head_timeout = \"150ms\"\nidle_timeout = \"150ms\"";
    let front = TlsGateway::start(OriginBehavior::Answer, limits, "").await;
    for requests in 0..2 {
        let (mut client, ended) = front.client_until_end().await;
        for _ in 0..requests {
            assert_eq!(get(&mut client, "/open", &[]).await.status, 200);
        }
        assert!(in_time(ended).await.expect("does not panic").is_ok());
    }
}

#[tokio::test]
async fn concurrent_streams_are_limited() {
    let front = TlsGateway::start(OriginBehavior::Answer, "streams = 2", "").await;
    let mut client = front.client().await;
    assert_eq!(get(&mut client, "/open", &[]).await.status, 200);
    assert_eq!(client.current_max_send_streams(), 2);
}

/// Checks that no event contains a path.
#[tokio::test]
async fn http2_heads_are_checked_as_strictly() {
    let limits = "target_bytes = 64\nhead_fields = 10\nhead_bytes = \"2KiB\"\nbody_bytes = 16";
    let front = TlsGateway::start(OriginBehavior::Answer, limits, "").await;
    let mut client = front.client().await;
    let (target, long) = (format!("/open?{}", "x".repeat(64)), "y".repeat(2048));
    for (target, fields, problem) in [
        (target.as_str(), &[][..], "414 target_too_long"),
        ("/open", &[("x", "y"); 11], "431 head_too_large"),
        ("/open", &[("x", long.as_str())], "431 head_too_large"),
        ("/open", &[("host", "elsewhere")], "400 invalid_target"),
        ("/open", &[("content-length", "0"); 2], "400 invalid_header"),
    ] {
        assert_eq!(get(&mut client, target, fields).await.problem(), problem);
    }
    let (answer, _body) = upload(&mut client, "/open", 17, "");
    let answer = reply(answer).await.expect("a response");
    assert_eq!(answer.problem(), "413 body_too_large");
    front.gateway.origin.assert_unused();
    let counted = "postern_proxy_rejected_before_routing_total{code=\"target_too_long\"} 1";
    front.gateway.assert_metric(counted).await;
    let fits = get(&mut client, "/open", &[("x", &long[..1800])]).await;
    assert_eq!(fits.status, 200);
    let mut events = front.gateway.finish().await;
    events.retain(|event| event["route"].is_null());
    assert_eq!(events.len(), 5, "{events:?}");
    for event in events {
        assert_members(&event, &json!({ "protocol": "HTTP/2", "path": null }));
    }
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
    let holds = !seen.contains("postern") && !seen.contains("6.6.6.6");
    assert!(holds, "{seen}");
    let holds = has_field(&seen, "cookie: a=1; b=2") && has_field(&seen, "host: gate");
    assert!(holds, "{seen}");
}

#[tokio::test]
async fn shutdown_completes_streams_and_accepts_no_more() {
    let front = TlsGateway::start(OriginBehavior::Answer, "", "").await;
    let mut client = front.client().await;
    let (answer, mut body) = send(&mut client, head("POST", "/open", &[]), false);
    body.send_data("a".into(), false).expect("sends");
    assert_eq!(get(&mut client, "/open", &[]).await.status, 200);
    front.gateway.shutdown.cancel();
    wait_until(async || client.clone().ready().await.is_err()).await;
    body.send_data("b".into(), true).expect("sends");
    assert_eq!(status(answer).await, 200);
    let ended = tokio::time::timeout(Duration::from_secs(5), front.gateway.running).await;
    ended.expect("ends").expect("does not panic");
}
