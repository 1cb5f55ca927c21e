use super::harness::{Gateway, has_field};
use super::origin::Manner;

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";

#[tokio::test]
async fn an_upgrade_is_authenticated_and_then_passed_through() {
    let gateway = Gateway::start(Manner::Upgrade).await;
    assert_eq!(gateway.get("/socket", UPGRADE).await.code(), "authentication_required");
    assert!(gateway.origin.seen().is_empty());
    for round in 0..50 {
        let mut client = gateway.connect().await;
        let bearer = format!("Authorization: Bearer {}\r\n", gateway.user());
        let spoofed = "X-Postern-Kind: service\r\n";
        client.write(&format!("GET /socket HTTP/1.1\r\nHost: h\r\n{bearer}{UPGRADE}{spoofed}\r\n")).await;
        assert_eq!(client.answer().await.expect("an answer").status, 101, "round {round}");
        assert_eq!(client.bytes(5).await, "hello", "what the origin sent in the packet of its 101");
        client.write("ping").await;
        assert_eq!(client.bytes(4).await, "ping");
        let seen = gateway.origin.seen().pop().expect("a request");
        assert!(has_field(&seen, "X-Postern-Kind: user") && !seen.contains("service"), "{seen}");
    }
}

#[tokio::test]
async fn a_route_without_websocket_forwards_no_upgrade() {
    let gateway = Gateway::start(Manner::Answer).await;
    assert_eq!(gateway.get("/open", UPGRADE).await.status, 200);
    let seen = gateway.origin.only().to_ascii_lowercase();
    assert!(!seen.contains("\r\nupgrade:") && !seen.contains("\r\nconnection: upgrade"), "{seen}");
}
