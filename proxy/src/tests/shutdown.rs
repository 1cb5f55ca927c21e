use std::io::{Read, Write};

use super::*;

/// Idle connections are closed at once.
const NO_LINGER: &str = "[stop]\nlinger = \"0s\"";

#[tokio::test]
async fn request_in_flight_is_answered_before_exit() {
    let gateway = TestGateway::with(OriginBehavior::Answer, "", NO_LINGER).await;
    let mut client = gateway.connect().await;
    let begun = "POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\na";
    client.write(begun).await;
    let mut warm = gateway.connect().await;
    assert_eq!(warm.ask(GET).await.status, 200);
    gateway.shutdown.cancel();
    assert!(warm.is_closed().await, "idle connections are closed first");
    let answer = client.ask("bc").await;
    let actual = (answer.status, answer.header("connection"));
    assert_eq!(actual, (200, Some("close")));
    in_time(gateway.running).await.expect("does not panic");
}

#[tokio::test]
async fn keep_alive_client_gets_connection_close() {
    let gateway = TestGateway::with(OriginBehavior::Answer, "", "[stop]\nlinger = \"10s\"").await;
    let (mut warm, mut late) = (gateway.connect().await, gateway.connect().await);
    for client in [&mut warm, &mut late] {
        let answer = client.ask(GET).await;
        answer.assert_header("connection", "keep-alive");
    }
    let began = Instant::now();
    gateway.shutdown.cancel();
    loop {
        // The connection is open.
        if warm.ask(GET).await.header("connection") == Some("close") {
            break;
        }
    }
    assert!(warm.is_closed().await);
    let ending = tokio::time::timeout(Duration::from_millis(200), late.is_closed()).await;
    assert!(ending.is_err(), "a new connection may still send a request");
    // Of pipelined requests, only the first is answered.
    let answer = late.ask(&GET.repeat(3)).await;
    answer.assert_header("connection", "close");
    assert!(late.is_closed().await);
    in_time(gateway.running).await.expect("does not panic");
    // Closed connections do not delay the exit.
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn queued_connections_are_served() {
    let gateway = TestGateway::with(OriginBehavior::Answer, "", NO_LINGER).await;
    gateway.get("/open", "").await;
    // The gateway runs on this thread and accepts none of these before the shutdown.
    let waiting: Vec<_> = (0..32)
        .map(|_| {
            let mut client = std::net::TcpStream::connect(gateway.address).expect("connects");
            client.write_all(GET.as_bytes()).expect("writes");
            client
        })
        .collect();
    gateway.finish().await;
    for mut client in waiting {
        let limited = client.set_read_timeout(Some(STEP_TIMEOUT));
        limited.expect("a timeout");
        let mut text = String::new();
        let read = client.read_to_string(&mut text);
        read.expect("a response and the end of the connection");
        let holds = text.starts_with("HTTP/1.1 200 ") && text.contains("onnection: close");
        assert!(holds, "{text:?}");
    }
}

#[tokio::test]
async fn http2_client_gets_goaway_after_its_first_request() {
    let front = TlsGateway::start(OriginBehavior::Answer, "", "").await;
    let (mut warm, warm_ended) = front.client_until_end().await;
    assert_eq!(get(&mut warm, "/open", &[]).await.status, 200);
    let (mut young, young_ended) = front.client_until_end().await;
    front.gateway.shutdown.cancel();
    assert!(in_time(warm_ended).await.expect("does not panic").is_ok());
    assert!(!young_ended.is_finished());
    // A new connection may send a request.
    assert_eq!(get(&mut young, "/open", &[]).await.status, 200);
    assert!(in_time(young_ended).await.expect("does not panic").is_ok());
    front.gateway.finish().await;
}

#[tokio::test]
async fn unready_gateway_still_serves_during_notice() {
    let gateway = TestGateway::with(OriginBehavior::Answer, "", "[stop]\nnotice = \"1h\"").await;
    let ready = async |wanted: u16| {
        wait_until(async || fetch(gateway.admin, "/readyz").await.status == wanted).await;
    };
    ready(200).await;
    gateway.shutdown.cancel();
    ready(503).await;
    let mut client = gateway.connect().await;
    for _ in 0..3 {
        let answer = client.ask(GET).await;
        let actual = (answer.status, answer.header("connection"));
        assert_eq!(actual, (200, Some("keep-alive")));
    }
    assert!(!gateway.running.is_finished(), "notice does not end early");
    gateway.running.abort();
}

#[tokio::test]
async fn admin_listener_reports_status() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    gateway.get("/any/1", &gateway.bearer()).await;
    for line in [
        "postern_requests_total{class=\"2xx\",code=\"ok\",route=\"any\"} 1\n",
        "postern_overhead_seconds_count 1\n",
        "postern_upstream_seconds_count{upstream=\"origin\"} 1\n",
        "postern_upstream_seconds_sum{upstream=\"origin\"} 0.",
    ] {
        gateway.assert_metric(line).await;
    }
    let upstreams = gateway.admin_get("/upstreams").await;
    assert!(upstreams.contains("\"healthy\":true"), "{upstreams}");
    assert!(gateway.admin_get("/jwks/status").await.contains("services"));
    assert!(gateway.admin_get("/livez").await.contains("ok"));
}
