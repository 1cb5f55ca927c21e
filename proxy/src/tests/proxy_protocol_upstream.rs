//! The PROXY protocol on connections to upstreams.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::harness::{RawClient, STEP_TIMEOUT, TestGateway};
use super::proxy_protocol::connect_from;
use super::scripted_origin::{self, OK};

/// The heads that an origin has received, by connection.
type Connections = Arc<Mutex<Vec<Vec<String>>>>;

/// Starts an origin that records the heads of each connection; the first one with what precedes it.
async fn origin() -> (SocketAddr, Connections) {
    let connections = Connections::default();
    let record = Arc::clone(&connections);
    let address = scripted_origin::start(move |mut connection| {
        let record = Arc::clone(&record);
        async move {
            let at = {
                let mut all = record.lock();
                all.push(Vec::new());
                all.len() - 1
            };
            while let Some(head) = connection.take_head().await {
                record.lock()[at].push(head);
                connection.send(OK).await;
            }
        }
    })
    .await;
    (address, connections)
}

async fn ask(client: &mut RawClient, headers: &str) {
    client
        .write(&format!(
            "GET /open HTTP/1.1\r\nHost: gate\r\n{headers}\r\n"
        ))
        .await;
    assert_eq!(client.response().await.expect("a response").status, 200);
}

/// Returns the beginning of the header of version 1 of a client.
fn expected_header(client: &RawClient, gateway: &TestGateway) -> String {
    let client = client.stream.local_addr().expect("connected");
    let (from, to) = (client.port(), gateway.address.port());
    format!(
        "PROXY TCP4 {} 127.0.0.1 {from} {to}\r\nGET /open ",
        client.ip()
    )
}

#[tokio::test]
async fn connection_carries_requests_of_one_client() {
    let (address, connections) = origin().await;
    let gateway = scripted_origin::gateway(&[address], "proxy_protocol = \"v1\"", "").await;
    let mut first = gateway.connect().await;
    let mut second = connect_from([127, 0, 0, 5], gateway.address).await;
    for _ in 0..2 {
        ask(&mut first, "").await;
        ask(&mut second, "").await;
    }
    let connections = connections.lock();
    assert_eq!(connections.len(), 2, "{connections:#?}");
    for (heads, client) in connections.iter().zip([&first, &second]) {
        assert_eq!(heads.len(), 2, "reused by the same client: {heads:#?}");
        let expected = expected_header(client, &gateway);
        assert!(heads[0].starts_with(&expected), "{expected}{heads:#?}");
        assert!(heads[1].starts_with("GET /open "), "{heads:#?}");
    }
}

#[tokio::test]
async fn forwarded_client_is_the_source_without_a_port() {
    let (address, connections) = origin().await;
    let limits = "trusted_proxies = [\"127.0.0.0/8\"]";
    let gateway = scripted_origin::gateway(&[address], "proxy_protocol = \"v1\"", limits).await;
    let mut proxy = gateway.connect().await;
    for client in ["192.0.2.1", "192.0.2.2", "192.0.2.1", "2001:db8::1"] {
        ask(&mut proxy, &format!("X-Forwarded-For: {client}\r\n")).await;
    }
    let to = gateway.address.port();
    let connections = connections.lock();
    let counts: Vec<_> = connections.iter().map(Vec::len).collect();
    assert_eq!(counts, [2, 1, 1], "{connections:#?}");
    for (heads, begins) in connections.iter().zip([
        format!("PROXY TCP4 192.0.2.1 127.0.0.1 0 {to}\r\nGET "),
        format!("PROXY TCP4 192.0.2.2 127.0.0.1 0 {to}\r\nGET "),
        format!("PROXY TCP6 2001:db8::1 ::ffff:127.0.0.1 0 {to}\r\nGET "),
    ]) {
        assert!(heads[0].starts_with(&begins), "{begins}{heads:#?}");
    }
}

#[tokio::test]
async fn websocket_connection_begins_with_a_header() {
    let (address, connections) = origin().await;
    let gateway = scripted_origin::gateway(&[address], "proxy_protocol = \"v1\"", "").await;
    let upgrade = format!(
        "Authorization: Bearer {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\n",
        gateway.user()
    );
    assert_eq!(gateway.get("/socket", &upgrade).await.status, 200);
    let heads = connections.lock()[0].clone();
    assert!(heads[0].starts_with("PROXY TCP4 127.0.0.1 "), "{heads:#?}");
    assert!(
        heads[0].to_ascii_lowercase().contains("upgrade: websocket"),
        "{heads:#?}"
    );
}

#[tokio::test]
async fn health_checks_begin_with_a_header_without_addresses() {
    let (address, connections) = origin().await;
    let upstream = "proxy_protocol = \"v1\"\nhealth = { path = \"/livez\", interval = \"50ms\" }";
    let _gateway = scripted_origin::gateway(&[address], upstream, "").await;
    let checked = async {
        loop {
            let first = connections
                .lock()
                .first()
                .and_then(|heads| heads.first().cloned());
            match first {
                Some(head) => return head,
                None => tokio::task::yield_now().await,
            }
        }
    };
    let head = tokio::time::timeout(STEP_TIMEOUT, checked)
        .await
        .expect("a check in time");
    assert!(head.starts_with("PROXY UNKNOWN\r\nGET /livez "), "{head}");
}
