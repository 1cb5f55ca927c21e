//! Mirrored requests: their content, and their isolation from the requests themselves.

use std::future::pending;

use super::scripted_origin::start;
use super::*;

/// Starts a gateway that mirrors requests to this address with these settings.
async fn gateway(origin: OriginBehavior, candidate: SocketAddr, settings: &str) -> TestGateway {
    let upstream = format!("[upstream.candidate]\naddresses = [\"{candidate}\"]\nretries = 2\n");
    let routes = route_table(
        r#"
        open | /open/* | "GET", "HEAD", "POST" | policy = "public"\nrewrite = { strip = "/open", add = "/new" }\nbody_bytes = "4MiB"\nmirror = { upstream = "candidate"SETTINGS }\nupstream = "origin"
        closed | /closed | "GET" | policy = { users = "any" }\nwebsocket = true\nmirror = { upstream = "candidate" }\nupstream = "origin"
        "#,
    );
    TestGateway::h2c(origin, &upstream, "", &routes.replace("SETTINGS", settings)).await
}

async fn answering() -> TestOrigin {
    TestOrigin::start(OriginBehavior::Answer).await
}

/// Waits until the counter of this result has this value.
async fn wait_for(gateway: &TestGateway, route: &str, result: &str, count: usize) {
    let name = "postern_proxy_mirrored_requests_total";
    let line = format!("{name}{{result=\"{result}\",route=\"{route}\"}} {count}\n");
    gateway.wait_for_metric(&line).await;
}

/// Returns the head of a request in lower case, and its body.
fn split(request: &str) -> (String, String) {
    let (head, body) = request.split_once("\r\n\r\n").expect("a head");
    (head.to_ascii_lowercase(), body.to_owned())
}

/// Returns the fields that a request and its copy have in common, sorted.
fn common_fields(head: &str) -> Vec<String> {
    let own = ["x-postern-mirror:", "content-length:", "transfer-encoding:"];
    let mut lines: Vec<String> = head.lines().map(str::to_owned).collect();
    lines.retain(|line| !own.iter().any(|name| line.starts_with(name)));
    lines.sort();
    lines
}

#[tokio::test]
async fn mirrored_request_is_equal_except_for_its_marker() {
    let long = "x".repeat(40_000);
    let requests = [
        "GET /open/1?a=b HTTP/1.1\r\nHost: gate\r\nX-Own: 1\r\n\r\n".to_owned(),
        "HEAD /open/1 HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n\r\n".to_owned(),
        "POST /open/2 HTTP/1.1\r\nHost: gate\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
        "POST /open/2 HTTP/1.1\r\nHost: gate\r\nContent-Length: 0\r\n\r\n".to_owned(),
        format!("POST /open/3 HTTP/1.1\r\nHost: gate\r\nContent-Length: 40000\r\n\r\n{long}"),
        "POST /open/4 HTTP/1.1\r\nHost: gate\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
            .to_owned(),
    ];
    for request in &requests {
        let candidate = answering().await;
        let gateway = gateway(OriginBehavior::Answer, candidate.address, "").await;
        let answer = gateway.send(&request.replace("HEAD", "GET")).await;
        assert_eq!(answer.status, 200);
        wait_for(&gateway, "open", "answered", 1).await;
        let (real, body) = split(&gateway.origin.only());
        let (copy, copied_body) = split(&candidate.only());
        assert_eq!(common_fields(&real), common_fields(&copy), "{request:.200}");
        assert!(copy.contains("\r\nx-postern-mirror: 1"), "{copy}");
        assert!(copy.matches("content-length:").count() <= 1, "{copy}");
        assert!(!real.contains("x-postern-mirror"), "{real}");
        assert!(copy.starts_with("get /new/") || copy.starts_with("post /new/"));
        if real.contains("chunked") {
            assert!(copy.contains("content-length: 5"), "{copy}");
            assert_eq!(copied_body, "hello");
        } else {
            assert!(body == copied_body, "{request:.200}");
            let has_length = |head: &str| head.contains("content-length");
            assert_eq!(has_length(&real), has_length(&copy), "{copy}");
        }
    }
}

#[tokio::test]
async fn http2_request_is_mirrored_with_its_identity() {
    let candidate = answering().await;
    let gateway = gateway(OriginBehavior::Answer, candidate.address, "").await;
    let mut client = http2_client(&gateway, 1 << 16).await;
    let (answer, mut body) = send(&mut client, head("POST", "/open/1", &[]), false);
    body.send_data("hello".into(), true).expect("sends");
    assert_eq!(reply(answer).await.expect("a response").status, 200);
    wait_for(&gateway, "open", "answered", 1).await;
    let (copy, body) = split(&candidate.only());
    let holds = copy.contains("content-length: 5") && copy.contains("host: gate");
    assert!(holds, "{copy}");
    assert_eq!(body, "hello");

    let bearer = gateway.bearer();
    let forged = format!("{bearer}X-Postern-Mirror: 2\r\nX-Postern-Subject: eve\r\n");
    assert_eq!(gateway.get("/closed", &forged).await.status, 200);
    wait_for(&gateway, "closed", "answered", 1).await;
    let copy = candidate.last();
    assert_fields(&copy, &["x-postern-subject: ada"]);
    assert_eq!(values(&copy, "x-postern-mirror").len(), 1, "{copy}");
    let real = gateway.origin.last();
    let holds = !real.to_ascii_lowercase().contains("x-postern-mirror");
    assert!(holds, "{real}");
    // A rejected request is not mirrored.
    assert_eq!(gateway.get("/closed", "").await.status, 401);
    assert_eq!(candidate.seen().len(), 2);
}

#[tokio::test]
async fn hanging_mirror_neither_delays_nor_accumulates() {
    let hanging = start(|mut connection| async move {
        connection.take_head().await;
        pending::<()>().await;
    });
    // One client gets half of them.
    let settings = ", timeout = \"300ms\", in_flight = 4";
    let gateway = gateway(OriginBehavior::Answer, hanging.await, settings).await;
    for _ in 0..5 {
        let answer = tokio::time::timeout(Duration::from_secs(5), gateway.get("/open/1", "")).await;
        assert_eq!(answer.expect("no delay").status, 200);
    }
    wait_for(&gateway, "open", "timed_out", 2).await;
    gateway.assert_metric("result=\"dropped_in_flight\"").await;
    // The slots are free again.
    assert_eq!(gateway.get("/open/1", "").await.status, 200);
    wait_for(&gateway, "open", "timed_out", 3).await;
}

#[tokio::test]
async fn failed_mirror_is_counted_and_never_repeated() {
    let unreachable = gateway(OriginBehavior::Answer, unused_address().await, "").await;
    for _ in 0..3 {
        assert_eq!(unreachable.get("/open/1", "").await.status, 200);
    }
    wait_for(&unreachable, "open", "failed", 3).await;

    let garbage = OriginBehavior::Text("this is not HTTP at all\r\n\r\n");
    for behavior in [OriginBehavior::Close, garbage] {
        let candidate = TestOrigin::start(behavior).await;
        let failing = gateway(OriginBehavior::Answer, candidate.address, "").await;
        assert_eq!(failing.get("/open/1", "").await.status, 200);
        wait_for(&failing, "open", "failed", 1).await;
        candidate.only();
    }
}

#[tokio::test]
async fn long_body_is_forwarded_and_not_mirrored() {
    let candidate = answering().await;
    let settings = ", body_bytes = 30000";
    let gateway = gateway(OriginBehavior::Answer, candidate.address, settings).await;
    let body = "x".repeat(30_001);
    let sized = format!("Content-Length: 30001\r\n\r\n{body}");
    let chunked = format!("Transfer-Encoding: chunked\r\n\r\n7531\r\n{body}\r\n0\r\n\r\n");
    for (count, rest) in [sized, chunked].iter().enumerate() {
        let request = format!("POST /open/1 HTTP/1.1\r\nHost: gate\r\n{rest}");
        assert_eq!(gateway.send(&request).await.status, 200);
        wait_for(&gateway, "open", "dropped_body_bytes", count + 1).await;
    }
    assert_eq!(gateway.origin.seen().len(), 2);
    assert_eq!(candidate.seen().len(), 0);
}

#[tokio::test]
async fn share_of_zero_and_upgrades_are_not_mirrored() {
    let candidate = answering().await;
    let gateway_of_all = gateway(OriginBehavior::Answer, candidate.address, "").await;
    let ntlm = "Authorization: NTLM TlRMTVNTUAAB\r\n";
    assert_eq!(gateway_of_all.get("/open/1", ntlm).await.status, 200);
    let gateway_without = gateway(OriginBehavior::Answer, candidate.address, ", share = 0").await;
    assert_eq!(gateway_without.get("/open/1", "").await.status, 200);
    let gateway = gateway(OriginBehavior::Upgrade, candidate.address, "").await;
    let fields = format!("{}{UPGRADE}", gateway.bearer());
    assert_eq!(gateway.get("/closed", &fields).await.status, 101);
    for gateway in [&gateway, &gateway_without, &gateway_of_all] {
        let metrics = gateway.admin_get("/metrics").await;
        let mirrored = metrics.contains("postern_proxy_mirrored_requests_total{");
        assert!(!mirrored, "{metrics}");
    }
    assert_eq!(candidate.seen().len(), 0);
}

#[tokio::test]
async fn endless_mirrored_response_is_aborted() {
    let (sender, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let endless = start(move |mut connection| {
        let sender = sender.clone();
        async move {
            connection.take_head().await;
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            connection.send(head).await;
            while connection.stream.write_all(b"5\r\nhello\r\n").await.is_ok() {}
            let _unread = sender.send(());
        }
    });
    let settings = ", timeout = \"300ms\", in_flight = 2";
    let gateway = gateway(OriginBehavior::Answer, endless.await, settings).await;
    assert_eq!(gateway.get("/open/1", "").await.status, 200);
    // The mirrored request is aborted.
    assert_eq!(in_time(ended.recv()).await, Some(()));
}
