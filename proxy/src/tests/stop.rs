use std::io::{Read, Write};
use std::time::{Duration, Instant};

use super::front::{Front, get};
use super::harness::{Gateway, PATIENCE, fetch};
use super::origin::Manner;

const ASK: &str = "GET /open HTTP/1.1\r\nHost: h\r\n\r\n";

/// Idle connections have to leave at once.
const HURRY: &str = "[stop]\nlinger = \"0s\"";

#[tokio::test]
async fn an_idle_gateway_ends_at_once() {
    let gateway = Gateway::with(Manner::Answer, "", HURRY).await;
    let mut client = gateway.connect().await;
    client.write(ASK).await;
    assert_eq!(client.answer().await.expect("an answer").status, 200);
    let began = Instant::now();
    gateway.finish().await;
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_request_in_flight_is_answered_before_the_end() {
    let gateway = Gateway::with(Manner::Answer, "", HURRY).await;
    let mut client = gateway.connect().await;
    client
        .write("POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\na")
        .await;
    let mut warm = gateway.connect().await;
    warm.write(ASK).await;
    assert_eq!(warm.answer().await.expect("an answer").status, 200);
    gateway.shutdown.cancel();
    assert!(warm.is_closed().await, "idle connections end first");
    client.write("bc").await;
    let answer = client.answer().await.expect("an answer");
    assert_eq!(
        (answer.status, answer.header("connection")),
        (200, Some("close"))
    );
    tokio::time::timeout(PATIENCE, gateway.running)
        .await
        .expect("ends")
        .expect("does not panic");
}

#[tokio::test]
async fn a_client_that_keeps_its_connection_is_told_to_go_before_it_ends() {
    let gateway = Gateway::with(Manner::Answer, "", "[stop]\nlinger = \"10s\"").await;
    let (mut warm, mut late) = (gateway.connect().await, gateway.connect().await);
    for client in [&mut warm, &mut late] {
        client.write(ASK).await;
        assert_eq!(
            client
                .answer()
                .await
                .expect("an answer")
                .header("connection"),
            Some("keep-alive")
        );
    }
    let began = Instant::now();
    gateway.shutdown.cancel();
    loop {
        warm.write(ASK).await;
        if warm
            .answer()
            .await
            .expect("an answer, and no end")
            .header("connection")
            == Some("close")
        {
            break;
        }
    }
    assert!(warm.is_closed().await);
    let ending = tokio::time::timeout(Duration::from_millis(200), late.is_closed()).await;
    assert!(ending.is_err(), "who was silent so far may still ask");
    // What is sent in one go is answered once, and nothing follows.
    late.write(&ASK.repeat(3)).await;
    assert_eq!(
        late.answer().await.expect("an answer").header("connection"),
        Some("close")
    );
    assert!(late.is_closed().await);
    tokio::time::timeout(PATIENCE, gateway.running)
        .await
        .expect("ends")
        .expect("does not panic");
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "nothing is waited for that has left"
    );
}

#[tokio::test]
async fn who_waits_in_the_queue_of_the_socket_is_served() {
    let gateway = Gateway::with(Manner::Answer, "", HURRY).await;
    gateway.get("/open", "").await;
    // The gateway is on this thread: it accepts none of these before the stop begins.
    let waiting: Vec<_> = (0..32)
        .map(|_| {
            let mut client = std::net::TcpStream::connect(gateway.address).expect("connects");
            client.write_all(ASK.as_bytes()).expect("writes");
            client
        })
        .collect();
    gateway.finish().await;
    for mut client in waiting {
        client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut text = String::new();
        client
            .read_to_string(&mut text)
            .expect("an answer and an end");
        assert!(
            text.starts_with("HTTP/1.1 200 ") && text.contains("onnection: close"),
            "{text:?}"
        );
    }
}

#[tokio::test]
async fn a_client_of_http2_is_told_to_go_but_not_before_it_could_ask() {
    let front = Front::start(Manner::Answer, "", "").await;
    let (warm, connection) = h2::client::handshake(front.connect().await)
        .await
        .expect("a handshake");
    let warm_ended = tokio::spawn(connection);
    let mut warm = warm.ready().await.expect("ready");
    assert_eq!(get(&mut warm, "/open", &[]).await.status, 200);
    let (young, connection) = h2::client::handshake(front.connect().await)
        .await
        .expect("a handshake");
    let young_ended = tokio::spawn(connection);
    let mut young = young.ready().await.expect("ready");
    front.gateway.shutdown.cancel();
    let ended = tokio::time::timeout(PATIENCE, warm_ended)
        .await
        .expect("an end in time");
    assert!(
        ended.expect("does not panic").is_ok(),
        "with a GOAWAY without an error"
    );
    assert!(!young_ended.is_finished());
    assert_eq!(
        get(&mut young, "/open", &[]).await.status,
        200,
        "who has only just connected may ask"
    );
    let ended = tokio::time::timeout(PATIENCE, young_ended)
        .await
        .expect("an end in time");
    assert!(
        ended.expect("does not panic").is_ok(),
        "with a GOAWAY without an error"
    );
    front.gateway.finish().await;
}

#[tokio::test]
async fn readiness_is_red_first_while_requests_are_still_served() {
    let gateway = Gateway::with(Manner::Answer, "", "[stop]\nnotice = \"1h\"").await;
    let ready = async |wanted: u16| {
        let turning = async {
            while fetch(gateway.admin, "/readyz").await.status != wanted {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, turning)
            .await
            .expect("readiness in time");
    };
    ready(200).await;
    gateway.shutdown.cancel();
    ready(503).await;
    let mut client = gateway.connect().await;
    for _ in 0..3 {
        client.write(ASK).await;
        let answer = client.answer().await.expect("an answer");
        assert_eq!(
            (answer.status, answer.header("connection")),
            (200, Some("keep-alive"))
        );
    }
    assert!(
        !gateway.running.is_finished(),
        "the load balancer has an hour to notice"
    );
    gateway.running.abort();
}

#[tokio::test]
async fn operators_are_told() {
    let gateway = Gateway::start(Manner::Answer).await;
    gateway
        .get(
            "/any/1",
            &format!("Authorization: Bearer {}\r\n", gateway.user()),
        )
        .await;
    let metrics = gateway.ask("/metrics").await;
    assert!(
        metrics.contains(r#"postern_requests_total{class="2xx",code="ok",route="any"} 1"#),
        "{metrics}"
    );
    for sampled in ["postern_overhead_seconds", "postern_upstream_seconds"] {
        let line = |part: &str, label: &str| {
            let start = format!("{sampled}_{part}{label} ");
            let value = metrics
                .lines()
                .find_map(|line| line.strip_prefix(start.as_str()));
            value.expect(sampled).parse::<f64>().expect("a number")
        };
        let label = if sampled.contains("upstream") {
            "{upstream=\"origin\"}"
        } else {
            ""
        };
        assert_eq!(line("count", label), 1.0, "{metrics}");
        let seconds = line("sum", label);
        assert!(
            seconds > 0.0 && seconds < PATIENCE.as_secs_f64(),
            "{sampled}: {seconds}"
        );
    }
    assert!(gateway.ask("/upstreams").await.contains("\"healthy\":true"));
    assert!(gateway.ask("/jwks/status").await.contains("services"));
    assert!(gateway.ask("/livez").await.contains("ok"));
}
