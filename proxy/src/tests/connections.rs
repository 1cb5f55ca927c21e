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
    gateway
        .assert_metric("postern_connections_refused_total 1")
        .await;
    drop(two);
    let again = async {
        loop {
            let mut client = gateway.connect().await;
            client.write(GET).await;
            if client.response().await.is_some() {
                return;
            }
        }
    };
    in_time(again).await;
}

#[tokio::test]
async fn connections_above_the_total_limit_wait() {
    let gateway = TestGateway::with(OriginBehavior::Answer, "connections = 1", "").await;
    let mut first = gateway.connect().await;
    assert_eq!(first.ask(GET).await.status, 200);
    let mut second = gateway.connect().await;
    second.write(GET).await;
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
        "/any/a.",
    ];
    targets.extend(others.map(str::to_owned));
    targets
}

#[tokio::test]
async fn target_is_forwarded_and_logged_unchanged() {
    let route = "[[route]]\npath = \"/any/*\"\nmethods = [\"GET\"]\nupstream = \"origin\"\npolicy = \"public\"\n";
    let gateway = TestGateway::routed(OriginBehavior::Answer, "", "", route).await;
    let targets = targets();
    for target in &targets {
        gateway.get(target, "").await;
    }
    let seen = gateway.origin.seen();
    let events: Vec<Value> = gateway.finish().await;
    assert_eq!(events.len(), targets.len());
    let mut forwarded = seen
        .iter()
        .map(|it| it.split(' ').nth(1).expect("a target"));
    for (target, event) in targets.iter().zip(&events) {
        if event["status"] == 400 {
            assert_members(event, &json!({ "path": null, "code": "invalid_target" }));
            continue;
        }
        assert_eq!(forwarded.next(), Some(target.as_str()), "{event}");
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
    let mut rest = Vec::new();
    let closed = async {
        let reading = silent.stream.read_to_end(&mut rest);
        tokio::pin!(reading);
        loop {
            tokio::select! {
                _ = &mut reading => return,
                () = async {
                    speaking.write("ping").await;
                    assert_eq!(speaking.bytes(4).await, "ping");
                } => {}
            }
        }
    };
    in_time(closed).await;
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
    let limits = "tunnel_timeout = \"200ms\"";
    let gateway = scripted_origin::gateway(&[origin.await], "", limits).await;
    let mut client = gateway.tunnel(&gateway.bearer()).await;
    client.stream.shutdown().await.expect("a half-close");
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn route_overrides_read_timeout_and_retries() {
    let route = |name: &str, more: &str| {
        format!(
            "[[route]]\npath = \"/{name}\"\nmethods = [\"GET\"]\nupstream = \"{name}\"\npolicy = \"public\"\n{more}\n"
        )
    };
    let upstream = "addresses = [\"{origin}\"]\n[upstream.quick]\naddresses = [\"{origin}\"]\n\
                    [upstream.once]\naddresses = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\n";
    let routes = route("quick", "read_timeout = \"100ms\"") + &route("once", "retries = 0");
    let gateway = TestGateway::routed(OriginBehavior::Hang, upstream, "", &routes).await;
    assert_eq!(gateway.get("/quick", "").await.code(), "upstream_timeout");
    assert_eq!(
        gateway.get("/once", "").await.code(),
        "upstream_unavailable"
    );
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
    assert_eq!(gateway.origin.seen(), [""; 0]);
    let limits = "address = { requests = 1, per = \"1h\", burst = 1 }";
    let limited = TestGateway::with(OriginBehavior::Answer, limits, "").await;
    for status in [204, 429] {
        assert_eq!(limited.send(star).await.status, status);
    }
}
