//! Connection limits, tunnels and access events.

use super::scripted_origin;
use super::*;

#[tokio::test]
async fn connections_above_the_address_limit_are_closed() {
    let gateway =
        TestGateway::with(OriginBehavior::Answer, "connections_per_address = 2", "").await;
    let (mut one, two) = (gateway.connect().await, gateway.connect().await);
    assert_eq!(one.ask(GET).await.status, 200);
    let mut third = gateway.connect().await;
    assert!(third.is_closed().await, "above the limit");
    let refused = "postern_connections_refused_total 1";
    gateway.assert_metric(refused).await;
    drop(two);
    wait_until(async || {
        let mut client = gateway.begin(GET).await;
        client.response().await.is_some()
    })
    .await;
}

#[tokio::test]
async fn connections_above_the_total_limit_wait() {
    let gateway = TestGateway::with(OriginBehavior::Answer, "connections = 1", "").await;
    let mut first = gateway.connect().await;
    assert_eq!(first.ask(GET).await.status, 200);
    let mut second = gateway.begin(GET).await;
    assert_eq!(gateway.origin.seen().len(), 1, "queued by the kernel");
    let mut byte = [0];
    // Nothing is sent.
    assert!(second.stream.try_read(&mut byte).is_err());
    drop(first);
    assert_eq!(second.answer().await.status, 200);
}

/// Returns targets with every visible character, as it is and encoded.
fn targets() -> Vec<String> {
    let mut targets: Vec<String> = (0x21..0x7f_u8)
        .filter(|byte| !b"#".contains(byte))
        .flat_map(|byte| {
            [
                format!("/any/a{}b?q", byte as char),
                format!("/any/a%{byte:02X}b"),
                format!("/any/a%{byte:02x}b"),
            ]
        })
        .collect();
    let others = [
        "/any/%C3%A9",
        "/any/a:b@c!$&'()*+,=~-._",
        "/any/x?a=%20&b=%2F..//;",
        "/any/x?q=^a&r=`b`&s=a\\b&t='{|}[]",
        "/any/x?q=caf%E9&r=%00",
        "/any/x?q=100%",
        "/any/a.",
    ];
    targets.extend(others.map(str::to_owned));
    targets
}

#[tokio::test]
async fn target_is_forwarded_and_logged_unchanged() {
    let route = route("any", "/any/*", "policy = \"public\"");
    let gateway = TestGateway::routed(OriginBehavior::Answer, "", "", &route).await;
    let targets = targets();
    for target in &targets {
        gateway.get(target, "").await;
    }
    let seen = gateway.origin.seen();
    let events: Vec<Value> = gateway.finish().await;
    assert_eq!(events.len(), targets.len());
    let target = |request: &String| request.split(' ').nth(1).map(str::to_owned);
    let mut forwarded = seen.iter().filter_map(target);
    for (target, event) in targets.iter().zip(&events) {
        if event["status"] == 400 {
            assert_members(event, &json!({ "path": null, "code": "invalid_target" }));
            continue;
        }
        assert_eq!(forwarded.next().as_ref(), Some(target), "{event}");
        let path = target.split('?').next();
        assert_members(event, &json!({ "status": 200, "path": path }));
    }
    // Rejected requests are not forwarded.
    assert_eq!(forwarded.next(), None);
    let passed = 40..targets.len() - 40;
    assert!(passed.contains(&seen.len()), "{} of {passed:?}", seen.len());
}

#[tokio::test]
async fn idle_tunnel_is_closed_and_active_one_kept() {
    let gateway =
        TestGateway::with(OriginBehavior::Upgrade, "tunnel_timeout = \"200ms\"", "").await;
    let fields = gateway.bearer();
    let (mut silent, mut speaking) = (gateway.tunnel(&fields).await, gateway.tunnel(&fields).await);
    for client in [&mut silent, &mut speaking] {
        assert_eq!(client.bytes(5).await, "hello");
    }
    let closing = tokio::spawn(async move { silent.rest().await });
    while !closing.is_finished() {
        speaking.write("ping").await;
        assert_eq!(speaking.bytes(4).await, "ping");
    }
    closing.await.expect("closed in time");
    speaking.write("still here").await;
    assert!(speaking.until("still here").await.ends_with("still here"));
}

#[tokio::test]
async fn tunnel_of_a_silent_origin_ends_after_its_client() {
    let origin = scripted_origin::start(|mut connection| async move {
        connection.take_head().await;
        let accepted = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";
        connection.send(accepted).await;
        std::future::pending::<()>().await;
    });
    let gateway = scripted_origin::gateway(&[origin.await], "", "tunnel_timeout = \"200ms\"").await;
    let mut client = gateway.tunnel(&gateway.bearer()).await;
    client.stream.shutdown().await.expect("a half-close");
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn route_overrides_read_timeout_and_retries() {
    let route = |name: &str, more: &str| {
        let lines = format!("upstream = \"{name}\"\npolicy = \"public\"\n{more}");
        route(name, &format!("/{name}"), &lines)
    };
    let upstream = "addresses = [\"{origin}\"]\n[upstream.quick]\naddresses = [\"{origin}\"]\n\
                    [upstream.once]\naddresses = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n";
    let routes = route("quick", "read_timeout = \"100ms\"") + &route("once", "retries = 0");
    let gateway = TestGateway::routed(OriginBehavior::Hang, upstream, "", &routes).await;
    assert_eq!(gateway.get("/quick", "").await.code(), "upstream_timeout");
    let answer = gateway.get("/once", "").await;
    assert_eq!(answer.code(), "upstream_unavailable");
    let once = "postern_retries_total{upstream=\"once\"} 0";
    gateway.assert_metric(once).await;
    let events = gateway.finish().await;
    assert!(events[1]["attempts"] == 1, "one attempt: {}", events[1]);
}

#[tokio::test]
async fn server_options_request_is_answered() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let mut client = gateway.connect().await;
    let star = "OPTIONS * HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok";
    for _ in 0..2 {
        let answer = client.ask(star).await;
        assert_eq!((answer.status, answer.body.as_str()), (204, ""));
        assert!(answer.header("x-request-id").is_some());
    }
    for (line, status) in [("OPTIONS * HTTP/1.0", 204), ("GET * HTTP/1.1", 400)] {
        let answer = gateway.send(&format!("{line}\r\nHost: h\r\n\r\n")).await;
        assert_eq!(answer.status, status, "{line}");
    }
    gateway.origin.assert_unused();
    let limits = "address = { requests = 1, per = \"1h\", burst = 1 }";
    let limited = TestGateway::with(OriginBehavior::Answer, limits, "").await;
    for status in [204, 429] {
        assert_eq!(limited.send(star).await.status, status);
    }
}
