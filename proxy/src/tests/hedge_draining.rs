//! Hedged requests one of whose addresses is removed while both attempts are in progress.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::harness::{ROUTES, STEP_TIMEOUT, TestGateway, fast_path_is_off};
use super::origin::{OriginBehavior, TestOrigin};
use super::scripted_origin::{OK, start};

const DRAIN_TIMEOUT: &str = "300ms";

/// An origin that answers its requests when the test says so.
struct HeldOrigin {
    address: SocketAddr,
    /// `request` for each request, and `end` for the end of a connection without an answer.
    events: mpsc::UnboundedReceiver<&'static str>,
    answer: Arc<tokio::sync::Notify>,
}

impl HeldOrigin {
    async fn start() -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let (sender, answer) = (Arc::new(sender), Arc::new(tokio::sync::Notify::new()));
        let released = Arc::clone(&answer);
        let address = start(move |mut connection| {
            let (sender, released) = (Arc::clone(&sender), Arc::clone(&released));
            async move {
                connection.take_head().await;
                let _unread = sender.send("request");
                tokio::select! {
                    () = released.notified() => connection.send(OK).await,
                    _ = connection.take_head() => {
                        let _unread = sender.send("end");
                    }
                }
            }
        });
        Self {
            address: address.await,
            events,
            answer,
        }
    }

    async fn expect(&mut self, event: &str) {
        let next = tokio::time::timeout(STEP_TIMEOUT, self.events.recv()).await;
        assert_eq!(next.expect("an event in time"), Some(event));
    }

    /// Returns the entry of `addresses`.
    fn entry(&self, weight: u32) -> String {
        format!("{{ address = \"{}\", weight = {weight} }}", self.address)
    }
}

/// Starts a gateway whose first attempt goes to the first origin, because of its weight.
async fn gateway(origins: &[HeldOrigin; 2]) -> TestGateway {
    let upstream = format!(
        "addresses = [{}, {}]\nload_balancing = \"least_loaded\"\nretries = 0\n\
         drain_timeout = \"{DRAIN_TIMEOUT}\"\nhedge = {{ after = \"20ms\", budget = 100 }}",
        origins[0].entry(1000),
        origins[1].entry(1)
    );
    let unused = TestOrigin::start(OriginBehavior::Answer).await;
    TestGateway::before(unused, &upstream, "", ROUTES).await
}

#[tokio::test]
async fn attempt_at_a_drained_address_leaves_the_other_one() {
    if fast_path_is_off() {
        return;
    }
    for (removed, weight) in [(0, 1000), (1, 1)] {
        let mut origins = [HeldOrigin::start().await, HeldOrigin::start().await];
        let gateway = gateway(&origins).await;
        let mut client = gateway.connect().await;
        let request = "GET /open HTTP/1.1\r\nHost: gate\r\n\r\n";
        client.write(request).await;
        for origin in &mut origins {
            origin.expect("request").await;
        }
        let entry = origins[removed].entry(weight);
        gateway.edit(|text| {
            text.replace(&format!("{entry}, "), "")
                .replace(&format!(", {entry}"), "")
        });
        origins[removed].expect("end").await;
        origins[1 - removed].answer.notify_one();
        let response = client.response().await.expect("a response");
        assert_eq!((response.status, response.body.as_str()), (200, "ok"));
        let log = gateway.finish().await;
        let kept = origins[1 - removed].address.to_string();
        let event = log.iter().find(|event| event["status"] == 200);
        assert_eq!(
            event.expect("an event")["upstream_address"],
            kept,
            "{log:?}"
        );
    }
}

#[tokio::test]
async fn request_with_both_addresses_drained_is_aborted() {
    if fast_path_is_off() {
        return;
    }
    let mut origins = [HeldOrigin::start().await, HeldOrigin::start().await];
    let gateway = gateway(&origins).await;
    let mut client = gateway.connect().await;
    let request = "GET /open HTTP/1.1\r\nHost: gate\r\n\r\n";
    client.write(request).await;
    for origin in &mut origins {
        origin.expect("request").await;
    }
    let both = format!("{}, {}", origins[0].entry(1000), origins[1].entry(1));
    gateway.edit(|text| text.replace(&both, "\"127.0.0.1:1\""));
    let response = client.response().await.expect("a response");
    assert_eq!(response.code(), "upstream_timeout", "{response:?}");
}
