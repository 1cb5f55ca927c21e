//! Responses to slow readers: their memory is bounded, and other clients are served.

use std::net::SocketAddr;
use std::time::Duration;

use http::Response;

use super::harness::{ROUTES, STEP_TIMEOUT, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};
use super::scripted_origin::{answer_http2, gateway, http2_client, start_http2};
use super::tls_gateway::{head, reply, send};

async fn flood(limits: &str) -> TestGateway {
    let origin = TestOrigin::start(OriginBehavior::Flood).await;
    let upstream = format!("addresses = [\"{}\"]", origin.address);
    TestGateway::h2c(origin, &upstream, limits, ROUTES).await
}

/// Sends requests until the status is `wanted`; earlier responses are dropped.
async fn until(gateway: &TestGateway, wanted: u16) {
    let asking = async {
        loop {
            let mut client = gateway.connect().await;
            client
                .write("GET /open HTTP/1.1\r\nHost: gate\r\n\r\n")
                .await;
            let head = client.until("\r\n\r\n").await;
            if head.starts_with(&format!("HTTP/1.1 {wanted}")) {
                return head;
            }
            drop(client);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let head = tokio::time::timeout(STEP_TIMEOUT, asking)
        .await
        .expect("in time")
        .to_ascii_lowercase();
    assert!(wanted != 503 || head.contains("retry-after: "), "{head}");
}

#[tokio::test]
async fn streams_above_the_buffer_budget_are_rejected() {
    let gateway = flood("response_buffer_bytes = \"1MiB\"").await;
    let mut client = http2_client(&gateway, 0).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let (answer, _) = send(&mut client, head("GET", "/open", &[]), true);
        held.push(answer.await.expect("a head").into_body());
    }
    // An eighth of the budget is reserved for this address.
    until(&gateway, 503).await;
    let mut other = http2_client(&gateway, 1 << 20).await;
    let (answer, _) = send(&mut other, head("GET", "/open", &[]), true);
    let refused = reply(answer).await.expect("a response");
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "unavailable")
    );
    drop(held);
    until(&gateway, 200).await;
}

#[tokio::test]
async fn http1_slow_readers_count() {
    let gateway = flood("response_buffer_bytes = \"512KiB\"").await;
    let mut client = gateway.connect().await;
    client
        .write("GET /open HTTP/1.1\r\nHost: gate\r\n\r\n")
        .await;
    until(&gateway, 503).await;
    drop(client);
    until(&gateway, 200).await;
}

/// Starts an HTTP/2 origin that answers `/open` with 10 MiB, and other requests with a short body.
async fn origin() -> SocketAddr {
    start_http2(|request, mut answer| async move {
        if request.uri().path() != "/open" {
            return answer_http2(answer, &[b"xxxxx"]);
        }
        if let Ok(mut body) = answer.send_response(Response::new(()), false) {
            let _gone = body.send_data(vec![b'x'; 10 << 20].into(), true);
        }
    })
    .await
}

#[tokio::test]
async fn slow_reader_does_not_block_its_upstream_connection() {
    let gateway = gateway(&[origin().await], "http2 = true", "").await;
    let token = format!("Bearer {}", gateway.user());
    let mut client = http2_client(&gateway, 0).await;
    let (answer, _) = send(&mut client, head("GET", "/open", &[]), true);
    let held = answer.await.expect("a head").into_body();
    // The upstream has sent all that flow control allows when the gauge reports a slow reader.
    let waits = async {
        while gateway
            .admin_get("/metrics")
            .await
            .contains("postern_response_buffer_bytes 0\n")
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(STEP_TIMEOUT, waits)
        .await
        .expect("in time");
    let mut other = http2_client(&gateway, 1 << 20).await;
    for _ in 0..10 {
        let (answer, _) = send(
            &mut other,
            head("GET", "/any/1", &[("authorization", token.as_str())]),
            true,
        );
        let answer = reply(answer).await.expect("a response");
        assert_eq!((answer.status, &*answer.body), (200, &b"xxxxx"[..]));
    }
    drop(held);
}
