use super::*;

#[tokio::test]
async fn dead_address_fails_no_request() {
    let addresses = "addresses = [\"127.0.0.1:1\", \"{origin}\"]\nretry_budget = 0";
    let gateway = TestGateway::routed(OriginBehavior::Answer, addresses, "", ROUTES).await;
    for _ in 0..20 {
        let posted = "POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
        // Not sent: any method is retried.
        assert_eq!(gateway.send(posted).await.status, 200);
    }
    assert_eq!(gateway.origin.seen().len(), 20);
}

/// Starts an origin that answers this many requests on its first connection and closes it when the
/// next one arrives.
async fn closes_first_connection_after(answered: usize) -> SocketAddr {
    let connections = AtomicUsize::new(0);
    scripted_origin::start(move |mut connection| {
        let is_first = connections.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            for _ in (0..answered).filter(|_| is_first) {
                connection.take_head().await;
                connection.send("HTTP/1.1 204 No Content\r\n\r\n").await;
            }
            connection.take_head().await;
            if !is_first {
                let answer = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
                connection.send(answer).await;
            }
        }
    })
    .await
}

#[tokio::test]
async fn closed_idle_connection_needs_no_retry_budget() {
    let origin = closes_first_connection_after(1).await;
    let gateway = scripted_origin::gateway(&[origin], "retry_budget = 0", "").await;
    for _ in 0..2 {
        assert_eq!(gateway.get("/open", "").await.status, 204);
    }
}

#[tokio::test]
async fn unhealthy_address_is_not_used() {
    for (probe, asked) in [("path = \"/livez\"\n", true), ("", false)] {
        let addresses = format!(
            "addresses = [\"127.0.0.1:1\", \"{{origin}}\"]\nretries = 0\n[upstream.origin.outlier]\nfailures = 0\n\
             [upstream.origin.health]\n{probe}interval = \"20ms\"\nfailures = 1"
        );
        let gateway = TestGateway::routed(OriginBehavior::Answer, &addresses, "", ROUTES).await;
        let shown = "\"healthy\":false";
        wait_until(async || gateway.admin_get("/upstreams").await.contains(shown)).await;
        for _ in 0..10 {
            assert_eq!(gateway.get("/open", "").await.status, 200, "{probe}");
        }
        let seen = gateway.origin.seen();
        let probed = seen.iter().any(|it| it.starts_with("GET /livez "));
        assert_eq!(probed, asked, "a TCP check sends no request");
    }
}

async fn counter(gateway: &TestGateway, name: &str) -> usize {
    let series = format!("postern_{name}_total{{upstream=\"origin\"}}");
    gateway.metric(&series).await.expect("a counter")
}

#[tokio::test]
async fn retry_over_the_budget_is_denied_and_counted() {
    // A request that may have been processed is not sent again.
    let post = "POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n";
    for (request, budget, status, counts) in [
        (GET, 0, 502, (0, 1)),
        (GET, 100, 204, (1, 0)),
        (post, 100, 502, (0, 0)),
    ] {
        let origin = closes_first_connection_after(0).await;
        let upstream = format!("retry_budget = {budget}");
        let gateway = scripted_origin::gateway(&[origin], &upstream, "").await;
        // The first request fails.
        assert_eq!(gateway.send(request).await.status, status);
        let retries = counter(&gateway, "retries").await;
        let denied = counter(&gateway, "retries_denied").await;
        assert_eq!((retries, denied), counts, "{request} {budget}");
    }
}

#[tokio::test]
async fn response_503_is_a_failure_of_the_address() {
    let response = "HTTP/1.1 503 Service Unavailable\r\nX-Postern-Code: unavailable\r\nContent-Length: 0\r\n\r\n";
    let settings = "retries = 0\n[upstream.origin.outlier]\nfailures = 3\nejection = \"1h\"";
    let gateway = TestGateway::routed(OriginBehavior::Text(response), settings, "", ROUTES).await;
    for _ in 0..3 {
        assert_eq!(gateway.get("/open", "").await.status, 503);
    }
    assert_eq!(counter(&gateway, "ejections").await, 1);
}

/// Together with the response, and while the connection is idle.
#[tokio::test]
async fn unsolicited_response_is_discarded() {
    for pause in [Duration::ZERO, Duration::from_millis(20)] {
        let gateway = TestGateway::start(OriginBehavior::Surplus(pause)).await;
        for turn in 1..=3 {
            let before = gateway.origin.seen().len();
            let answer = gateway.get("/open", "").await;
            assert_eq!(answer.body, "own", "{turn} {pause:?}");
            wait_until(async || gateway.origin.seen().len() >= before + 2).await;
        }
    }
}
