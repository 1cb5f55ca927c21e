//! Hedged requests: a second attempt at another address.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::harness::{ROUTES, STEP_TIMEOUT, TestGateway, fast_path_is_off};
use super::origin::{OriginBehavior, TestOrigin};
use super::scripted_origin::{OK, start};

/// Starts an origin that answers nothing. It reports each request, and the end of its connection.
async fn start_hanging() -> (SocketAddr, mpsc::UnboundedReceiver<&'static str>) {
    let (sender, events) = mpsc::unbounded_channel();
    let sender = Arc::new(sender);
    let address = start(move |mut connection| {
        let sender = Arc::clone(&sender);
        async move {
            while connection.take_head().await.is_some() {
                let _unread = sender.send("request");
            }
            let _unread = sender.send("end");
        }
    });
    (address.await, events)
}

/// Starts an origin that answers every request.
async fn start_answering() -> SocketAddr {
    start(|mut connection| async move {
        while let Some(head) = connection.take_head().await {
            let body = super::scripted_origin::content_length(&head);
            connection.take_body(body).await;
            connection.send(OK).await;
        }
    })
    .await
}

/// Starts a gateway whose first attempt goes to the first address.
async fn gateway(addresses: [SocketAddr; 2], hedge: &str) -> TestGateway {
    let unused = TestOrigin::start(OriginBehavior::Answer).await;
    // By its weight, the first address has the lesser load.
    let upstream = format!(
        "addresses = [{{ address = \"{}\", weight = 1000 }}, {{ address = \"{}\", weight = 1 }}]\n\
         load_balancing = \"least_loaded\"\nread_timeout = \"700ms\"\nretries = 0\n\
         outlier = {{ failures = 0 }}\n{hedge}",
        addresses[0], addresses[1]
    );
    let routes = ROUTES.replace("\"GET\", \"POST\"", "\"GET\", \"POST\", \"PUT\"");
    TestGateway::before(unused, &upstream, "", &routes).await
}

fn counted(metrics: &str, result: &str) -> u32 {
    let name = "postern_proxy_hedged_requests_total";
    let start = format!("{name}{{result=\"{result}\",upstream=\"origin\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
    line.map_or(0, |count| count.parse().expect("a number"))
}

#[tokio::test]
async fn slow_request_is_answered_by_another_address() {
    if fast_path_is_off() {
        return;
    }
    let (slow, mut events) = start_hanging().await;
    let addresses = [slow, start_answering().await];
    let gateway = gateway(addresses, "hedge = { after = \"50ms\", budget = 100 }").await;
    for _ in 0..3 {
        let answer = gateway.get("/open", "").await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "ok"));
        // The other attempt is cancelled.
        for want in ["request", "end"] {
            let event = tokio::time::timeout(STEP_TIMEOUT, events.recv()).await;
            assert_eq!(event.expect("an event in time"), Some(want));
        }
    }
    let with_body = "PUT /open HTTP/1.1\r\nHost: gate\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(gateway.send(with_body).await.status, 200);
    assert_eq!(counted(&gateway.admin_get("/metrics").await, "won"), 4);
    let log = gateway.finish().await;
    assert!(log.iter().all(|event| event["attempts"] == 2), "{log:?}");
}

#[tokio::test]
async fn fast_request_is_not_hedged() {
    let (slow, mut events) = start_hanging().await;
    let addresses = [start_answering().await, slow];
    let gateway = gateway(addresses, "hedge = { after = \"10s\" }").await;
    for _ in 0..5 {
        assert_eq!(gateway.get("/open", "").await.status, 200);
    }
    assert!(events.try_recv().is_err());
    let metrics = gateway.admin_get("/metrics").await;
    assert!(
        !metrics.contains("postern_proxy_hedged_requests_total{"),
        "{metrics}"
    );
}

#[tokio::test]
async fn request_that_cannot_be_repeated_is_not_hedged() {
    let long = "x".repeat((16 << 10) + 1);
    let (slow, _events) = start_hanging().await;
    let addresses = [slow, start_answering().await];
    let gateway = gateway(addresses, "hedge = { after = \"20ms\", budget = 100 }").await;
    for request in [
        "POST /open HTTP/1.1\r\nHost: gate\r\nContent-Length: 0\r\n\r\n".to_owned(),
        format!(
            "PUT /open HTTP/1.1\r\nHost: gate\r\nContent-Length: {}\r\n\r\n{long}",
            long.len()
        ),
    ] {
        let answer = gateway.send(&request).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (504, "upstream_timeout")
        );
    }
    let metrics = gateway.admin_get("/metrics").await;
    assert!(
        !metrics.contains("postern_proxy_hedged_requests_total{"),
        "{metrics}"
    );
}

#[tokio::test]
async fn budget_limits_hedged_requests() {
    if fast_path_is_off() {
        return;
    }
    let (slow, _events) = start_hanging().await;
    let addresses = [slow, start_answering().await];
    let gateway = gateway(addresses, "hedge = { after = \"10ms\", budget = 1 }").await;
    let mut statuses = Vec::new();
    for _ in 0..12 {
        statuses.push(gateway.get("/open", "").await.status);
    }
    assert_eq!(statuses[..10], [200; 10], "the initial balance");
    assert_eq!(statuses[10..], [504; 2]);
    let metrics = gateway.admin_get("/metrics").await;
    assert_eq!(
        (counted(&metrics, "won"), counted(&metrics, "denied")),
        (10, 2)
    );
}

#[tokio::test]
async fn failure_of_one_attempt_does_not_end_the_other() {
    if fast_path_is_off() {
        return;
    }
    let after = Duration::from_millis(150);
    let fail_later = move |mut connection: super::scripted_origin::OriginConnection| async move {
        connection.take_head().await;
        tokio::time::sleep(after).await;
    };
    let answer_later = move |mut connection: super::scripted_origin::OriginConnection| async move {
        connection.take_head().await;
        tokio::time::sleep(after * 2).await;
        connection.send(OK).await;
    };
    let hedge = "hedge = { after = \"20ms\", budget = 100 }";
    // The first attempt fails, then the second one.
    let addresses = [start(fail_later).await, start(answer_later).await];
    assert_eq!(
        gateway(addresses, hedge)
            .await
            .get("/open", "")
            .await
            .status,
        200
    );
    let addresses = [start(answer_later).await, start(fail_later).await];
    let first_wins = gateway(addresses, hedge).await;
    assert_eq!(first_wins.get("/open", "").await.status, 200);
    assert_eq!(
        counted(&first_wins.admin_get("/metrics").await, "failed"),
        1
    );
    let addresses = [start(fail_later).await, start(fail_later).await];
    let answer = gateway(addresses, hedge).await.get("/open", "").await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (502, "upstream_failed")
    );
}

#[tokio::test]
async fn client_that_leaves_cancels_both_attempts() {
    if fast_path_is_off() {
        return;
    }
    let ((one, mut events), (other, mut other_events)) =
        (start_hanging().await, start_hanging().await);
    let gateway = gateway([one, other], "hedge = { after = \"10ms\", budget = 100 }").await;
    let mut client = gateway.connect().await;
    client
        .write("GET /open HTTP/1.1\r\nHost: gate\r\n\r\n")
        .await;
    let next = async |events: &mut mpsc::UnboundedReceiver<&'static str>| {
        let event = tokio::time::timeout(STEP_TIMEOUT, events.recv()).await;
        event.expect("an event in time")
    };
    assert_eq!(next(&mut events).await, Some("request"));
    assert_eq!(next(&mut other_events).await, Some("request"));
    drop(client);
    assert_eq!(next(&mut events).await, Some("end"));
    assert_eq!(next(&mut other_events).await, Some("end"));
}

/// Starts an origin that answers each request after a pause, twice, with a body that begins with
/// `name` and ends with the requested target.
async fn start_repeating(name: &'static str, pause: Duration) -> SocketAddr {
    start(move |mut connection| async move {
        while let Some(head) = connection.take_head().await {
            let target = head.split(' ').nth(1).unwrap_or_default();
            let body = format!("{name}{target}");
            let length = body.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
            tokio::time::sleep(pause).await;
            connection.send(answer.repeat(2)).await;
        }
    })
    .await
}

#[tokio::test]
async fn repeated_and_late_answers_are_never_mixed_up() {
    let addresses = [
        start_repeating("one", Duration::from_millis(40)).await,
        start_repeating("other", Duration::from_millis(20)).await,
    ];
    let gateway = gateway(addresses, "hedge = { after = \"10ms\", budget = 100 }").await;
    let mut client = gateway.connect().await;
    for number in 0..30 {
        let request = format!("GET /open?n={number} HTTP/1.1\r\nHost: gate\r\n\r\n");
        client.write(&request).await;
        let answer = client.response().await.expect("a response");
        assert_eq!(answer.status, 200);
        assert!(
            [
                format!("one/open?n={number}"),
                format!("other/open?n={number}")
            ]
            .contains(&answer.body),
            "{number}: {}",
            answer.body
        );
    }
}

#[tokio::test]
async fn truncated_answer_is_not_completed_by_the_other_attempt() {
    let truncated = start(|mut connection| async move {
        connection.take_head().await;
        connection
            .send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n1111")
            .await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    });
    let addresses = [
        truncated.await,
        start_repeating("2222", Duration::ZERO).await,
    ];
    let gateway = gateway(addresses, "hedge = { after = \"50ms\", budget = 100 }").await;
    let mut client = gateway.connect().await;
    client
        .write("GET /open HTTP/1.1\r\nHost: gate\r\n\r\n")
        .await;
    let received = client.rest().await.expect("the end of the connection");
    assert!(received.ends_with("\r\n\r\n1111"), "{received}");
}
