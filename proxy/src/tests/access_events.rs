//! The access event: its schema, and the cause of each failure, also over HTTP/2.

use super::*;

/// Sends a request to a gateway of its own, and returns the event.
async fn event_of(behavior: OriginBehavior, settings: (&str, &str), request: &str) -> Value {
    let (limits, upstream) = settings;
    let gateway = TestGateway::with(behavior, limits, upstream).await;
    let mut client = gateway.connect().await;
    client.write(request).await;
    let _cut_or_complete = client.rest().await;
    let mut all = gateway.finish().await;
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

const CLOSING_GET: &str = "GET /open HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

#[tokio::test]
async fn event_has_the_schema_of_all_log_lines() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let trace = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    let answer = gateway.get("/open", trace).await;
    let id = answer.header("x-request-id").expect("an id");
    gateway.get("/no-such-route", "").await;
    gateway.send("BAD\r\n\r\n").await;
    let address = gateway.origin.address.to_string();
    // The name is that of the metrics.
    gateway.assert_metric("route=\"open\"").await;
    let events = gateway.finish().await;
    let event = &events[0];
    let time = event["timestamp"].as_str().expect("a time");
    assert!(
        Timestamp::parse(time).is_some() && time.ends_with('Z'),
        "{time}"
    );
    for (field, value) in [
        ("level", "INFO"),
        ("target", "postern_proxy::access"),
        ("message", "request completed"),
        ("service", "postern-proxy"),
        ("request_id", id),
        ("trace_id", "0af7651916cd43dd8448eb211c80319c"),
        ("route", "open"),
        ("upstream", "origin"),
        ("upstream_address", address.as_str()),
        ("code", "ok"),
    ] {
        assert_eq!(event[field], value, "{field} {event}");
    }
    assert_members(event, &json!({ "attempts": 1, "cause": null }));
    assert_eq!(events[1]["route"], "none", "{}", events[1]);
    assert!(events[1]["attempts"].is_null(), "{}", events[1]);
    assert!(
        events[2]["route"].is_null(),
        "rejected before routing: {}",
        events[2]
    );
}

#[tokio::test]
async fn cause_of_a_failure_is_logged() {
    const NO_RETRY: &str = "retries = 0\n";
    const SLOW: &str = "retries = 0\nread_timeout = \"150ms\"\n";
    let deadline = "deadline = \"200ms\"";
    let invalid = OriginBehavior::Text("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n");
    for (behavior, settings, status, cause) in [
        (OriginBehavior::Hang, ("", SLOW), 504, "response_timeout"),
        (OriginBehavior::Hang, (deadline, NO_RETRY), 504, "deadline"),
        (OriginBehavior::Close, ("", NO_RETRY), 502, "reset"),
        (invalid, ("", NO_RETRY), 502, "invalid_response"),
    ] {
        let event = event_of(behavior, settings, CLOSING_GET).await;
        assert_members(&event, &json!({ "cause": cause, "status": status }));
        assert_members(&event, &json!({ "upstream": "origin", "attempts": 1 }));
    }
}

#[tokio::test]
async fn cause_of_a_failed_connection_is_logged() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let silent_address = silent.local_addr().expect("bound").to_string();
    let tls = "connect_timeout = \"200ms\"\n[upstream.origin.tls]\nname = \"origin\"";
    for (address, settings, cause, logged) in [
        ("127.0.0.1:1", "", "connect_refused", Some("127.0.0.1:1")),
        (
            silent_address.as_str(),
            tls,
            "connect_timeout",
            Some(silent_address.as_str()),
        ),
        ("no-such-name.invalid:1", "", "no_endpoint", None),
    ] {
        let upstream = format!("addresses = [\"{address}\"]\nretries = 0\n{settings}");
        let gateway = TestGateway::routed(OriginBehavior::Answer, &upstream, "", ROUTES).await;
        let answer = gateway.get("/open", "").await;
        let is_unavailable = answer.status == 503;
        assert_eq!(answer.header("retry-after").is_some(), is_unavailable);
        let counted = format!(
            "postern_proxy_upstream_failures_total{{cause=\"{cause}\",upstream=\"origin\"}} 1"
        );
        gateway.assert_metric(&counted).await;
        let events = gateway.finish().await;
        assert_eq!(events[0]["cause"], cause, "{}", events[0]);
        assert_eq!(events[0]["upstream"], "origin", "{}", events[0]);
        assert_eq!(
            events[0]["upstream_address"].as_str(),
            logged,
            "{}",
            events[0]
        );
    }
}

#[tokio::test]
async fn retried_request_counts_its_attempts() {
    let upstream = "addresses = [\"127.0.0.1:1\", \"{origin}\"]\nload_balancing = \"round_robin\"\n\
                    [upstream.origin.outlier]\nfailures = 0";
    let gateway = TestGateway::with(OriginBehavior::Answer, "", upstream).await;
    for _ in 0..2 {
        assert_eq!(gateway.get("/open", "").await.status, 200);
    }
    let address = gateway.origin.address.to_string();
    let events = gateway.finish().await;
    // Each turn of round robin begins with the address that refuses.
    assert!(
        events.iter().all(|event| event["attempts"] == 2),
        "{events:?}"
    );
    for event in &events {
        assert_eq!(event["upstream_address"], address, "{event}");
        assert!(event["cause"].is_null(), "it was answered: {event}");
    }
}

#[tokio::test]
async fn response_cut_by_the_deadline_names_the_deadline() {
    let limits = "deadline = \"300ms\"";
    // The client reads all that it gets: the response is endless, or has long pauses.
    for behavior in [
        OriginBehavior::Events,
        OriginBehavior::Drip(Duration::from_millis(100)),
    ] {
        let event = event_of(behavior, (limits, ""), CLOSING_GET).await;
        assert_members(
            &event,
            &json!({ "status": 200, "code": "upstream_timeout", "cause": "deadline" }),
        );
    }
    let front = TlsGateway::start(OriginBehavior::Events, limits, "").await;
    let mut client = front.client().await;
    let mut body = open_body(&mut client, "/open").await;
    let reading = async {
        while let Some(Ok(part)) = body.data().await {
            body.flow_control()
                .release_capacity(part.len())
                .expect("a stream");
        }
    };
    in_time(reading).await;
    let events = front.gateway.finish().await;
    assert_eq!(events[0]["cause"], "deadline", "{}", events[0]);
    assert_ne!(events[0]["code"], "client_closed", "{}", events[0]);
}

#[tokio::test]
async fn disconnect_of_the_client_is_logged_as_such() {
    let gateway = TestGateway::start(OriginBehavior::Events).await;
    let mut client = gateway.connect().await;
    let request = "GET /open HTTP/1.1\r\nHost: h\r\n\r\n";
    client.write(request).await;
    client.until("first..\n\r\n").await;
    drop(client);
    let counted = async {
        let label = "code=\"client_closed\"";
        while !gateway.admin_get("/metrics").await.contains(label) {
            tokio::task::yield_now().await;
        }
    };
    in_time(counted).await;
    let events = gateway.finish().await;
    assert_members(
        &events[0],
        &json!({ "cause": "client_disconnected", "code": "client_closed" }),
    );
}

#[tokio::test]
async fn too_large_body_is_logged_with_its_cause() {
    let limits = "body_bytes = 4";
    let known =
        "POST /open HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 9\r\n\r\n123456789";
    let chunked = "POST /open HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
                   9\r\n123456789\r\n0\r\n\r\n";
    for request in [known, chunked] {
        let event = event_of(OriginBehavior::Answer, (limits, ""), request).await;
        assert_members(&event, &json!({ "status": 413, "cause": "body_too_large" }));
    }
}

#[tokio::test]
async fn rejection_has_a_code_and_no_cause() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    assert_eq!(gateway.get("/any/1", "").await.status, 401);
    let events = gateway.finish().await;
    assert_eq!(events[0]["code"], "authentication_required");
    assert!(events[0]["cause"].is_null(), "{}", events[0]);
}
