//! Draining of upstream addresses that a reload removes.

use std::time::{Duration, Instant};

use super::harness::{RawClient, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};

/// Far more than the drain timeout of these tests, and less than every other timeout.
const SOON: Duration = Duration::from_secs(8);

async fn gateway(behavior: OriginBehavior) -> TestGateway {
    TestGateway::with(behavior, "", "drain_timeout = \"300ms\"").await
}

/// Sends a request and waits until the origin has received it.
async fn request(gateway: &TestGateway, raw: &str, number: usize) -> RawClient {
    let mut client = gateway.connect().await;
    client.write(raw).await;
    let waiting = async {
        while gateway.origin.seen().len() < number {
            tokio::task::yield_now().await;
        }
    };
    let arrived = tokio::time::timeout(SOON, waiting).await;
    arrived.expect("the request arrives");
    client
}

/// Replaces the address of the origin by `address`, and waits for the reload.
async fn replace_address(gateway: &TestGateway, address: &str) {
    let own = gateway.origin.address.to_string();
    gateway.edit(|text| text.replace(&own, address));
    gateway
        .wait_for_config_status(|status| status["version"] == 2)
        .await;
}

#[tokio::test]
async fn hanging_request_is_aborted_after_the_drain_timeout() {
    let gateway = gateway(OriginBehavior::Hang).await;
    let next = TestOrigin::start(OriginBehavior::Answer).await;
    let raw = "GET /open HTTP/1.1\r\nHost: gate\r\n\r\n";
    let mut client = request(&gateway, raw, 1).await;
    let began = Instant::now();
    replace_address(&gateway, &next.address.to_string()).await;
    // Requests to the new address are answered meanwhile.
    assert_eq!(gateway.get("/open", "").await.status, 200);
    let response = client.response().await.expect("a response");
    assert_eq!(response.code(), "upstream_timeout", "{response:?}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    let events = gateway.finish().await;
    let aborted = events.iter().find(|event| event["status"] == 504);
    assert_eq!(aborted.expect("an event")["code"], "upstream_timeout");
}

#[tokio::test]
async fn unfinished_response_is_cut_after_the_drain_timeout() {
    let gateway = gateway(OriginBehavior::LargeEvent).await;
    let raw = "GET /open HTTP/1.1\r\nHost: gate\r\n\r\n";
    let mut client = request(&gateway, raw, 1).await;
    client.until("\r\n\r\n").await;
    let began = Instant::now();
    replace_address(&gateway, "127.0.0.1:1").await;
    let rest = client.rest().await.expect("the connection is closed");
    assert!(!rest.ends_with("0\r\n\r\n"), "a complete response");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    gateway.finish().await;
}

#[tokio::test]
async fn tunnel_is_closed_after_the_drain_timeout() {
    let gateway = gateway(OriginBehavior::Upgrade).await;
    let raw = format!(
        "GET /socket HTTP/1.1\r\nHost: gate\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Authorization: Bearer {}\r\n\r\n",
        gateway.user()
    );
    let mut client = request(&gateway, &raw, 1).await;
    client.until("\r\n\r\n").await;
    let began = Instant::now();
    replace_address(&gateway, "127.0.0.1:1").await;
    client.rest().await.expect("the connection is closed");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    gateway.finish().await;
}

#[tokio::test]
async fn kept_address_is_not_drained_by_a_reload() {
    let gateway = gateway(OriginBehavior::Drip(Duration::from_millis(100))).await;
    let raw = "GET /open HTTP/1.1\r\nHost: gate\r\n\r\n";
    let mut client = request(&gateway, raw, 1).await;
    gateway.edit(|text| text.replace("\"300ms\"", "\"1ms\""));
    gateway
        .wait_for_config_status(|status| status["version"] == 2)
        .await;
    let response = client.response().await.expect("a response");
    assert_eq!((response.status, response.body.len()), (200, 10));
    gateway.finish().await;
}
