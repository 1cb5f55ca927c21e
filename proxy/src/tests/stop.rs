use super::harness::{Gateway, PATIENCE};
use super::origin::Manner;

#[tokio::test]
async fn an_idle_gateway_ends_at_once() {
    let gateway = Gateway::start(Manner::Answer).await;
    let mut client = gateway.connect().await;
    client.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert_eq!(client.answer().await.expect("an answer").status, 200);
    let began = std::time::Instant::now();
    gateway.finish().await;
    assert!(began.elapsed() < std::time::Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn a_request_in_flight_is_answered_before_the_end() {
    let gateway = Gateway::start(Manner::Answer).await;
    let mut client = gateway.connect().await;
    client.write("POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\na").await;
    let mut warm = gateway.connect().await;
    warm.write("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert_eq!(warm.answer().await.expect("an answer").status, 200);
    gateway.shutdown.begin();
    assert!(warm.is_closed().await, "idle connections end first");
    client.write("bc").await;
    let answer = client.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    tokio::time::timeout(PATIENCE, gateway.running).await.expect("ends").expect("does not panic");
}

#[tokio::test]
async fn operators_are_told() {
    let gateway = Gateway::start(Manner::Answer).await;
    gateway.get("/any/1", &format!("Authorization: Bearer {}\r\n", gateway.user())).await;
    let metrics = gateway.ask("/metrics").await;
    assert!(metrics.contains(r#"postern_requests_total{class="2xx",code="ok",route="any"} 1"#), "{metrics}");
    assert!(gateway.ask("/upstreams").await.contains("\"healthy\":true"));
    assert!(gateway.ask("/jwks/status").await.contains("services"));
    assert!(gateway.ask("/livez").await.contains("ok"));
}
