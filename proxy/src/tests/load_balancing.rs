//! Load balancing algorithms, from the configuration to the choice of an address.

use std::collections::BTreeSet;

use super::*;

/// The responses of the three addresses.
const TEXTS: [&str; 3] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
    "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb",
    "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nc",
];

/// Starts a gateway with three addresses and these settings of the upstream.
async fn start(settings: &str) -> TestGateway {
    let [one, two, three] = TEXTS.map(OriginBehavior::Text);
    let (one, two) = (TestOrigin::start(one).await, TestOrigin::start(two).await);
    let three = TestOrigin::start(three).await;
    scripted_origin::gateway(&[one.address, two.address, three.address], settings, "").await
}

#[tokio::test]
async fn round_robin_uses_the_addresses_in_turn() {
    let gateway = start("load_balancing = \"round_robin\"").await;
    let answers = async || {
        let mut found = BTreeSet::new();
        for _ in 0..TEXTS.len() {
            found.insert(gateway.get("/open", "").await.body);
        }
        found.len()
    };
    assert_eq!((answers().await, answers().await), (3, 3));
}
