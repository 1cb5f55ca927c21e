//! The access event: its schema, and the cause of each failure.

use super::*;

/// A response that no log may show.
const INVALID: &str = "HTTP/1.1 200 OK\r\nSet-Cookie: secret\r\nContent-Length: x\r\n\r\n";

#[tokio::test]
async fn event_has_the_schema_of_all_log_lines() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let trace = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    let answer = gateway.get("/open", trace).await;
    let id = answer.header("x-request-id").expect("an id");
    gateway.get("/no-such-route", "").await;
    gateway.send("BAD\r\n\r\n").await;
    assert_eq!(gateway.get("/any/1", "").await.status, 401);
    let address = gateway.origin.address.to_string();
    // The name is that of the metrics.
    gateway.assert_metric("route=\"open\"").await;
    let events = gateway.finish().await;
    let event = &events[0];
    let time = event["timestamp"].as_str().expect("a time");
    assert!(Timestamp::parse(time).is_some(), "{time}");
    assert!(time.ends_with('Z'), "{time}");
    let expected = json!({
        "level": "INFO", "target": "postern_proxy::access", "message": "request completed",
        "service": "postern-proxy", "request_id": id, "code": "ok", "attempts": 1, "cause": null,
        "trace_id": "0af7651916cd43dd8448eb211c80319c", "route": "open", "upstream": "origin",
        "upstream_address": address,
    });
    assert_members(event, &expected);
    assert_members(&events[1], &json!({ "route": "none", "attempts": null }));
    // Rejected before routing.
    assert_members(&events[2], &json!({ "route": null }));
    let rejected = json!({ "code": "authentication_required", "cause": null });
    assert_members(&events[3], &rejected);
}

/// The log names the failure, and no byte of a response.
#[tokio::test]
async fn cause_of_a_failure_is_logged() {
    for [origin, limits, upstream, body, status, cause, logged] in rows(
        r#"
        hang | | read_timeout = "150ms" | | 504 | response_timeout |
        hang | deadline = "200ms" | | | 504 | deadline |
        close | | | | 502 | reset | closed
        invalid | | | | 502 | invalid_response | invalid
        answer | body_bytes = 4 | | Content-Length: 9\r\n\r\n123456789 | 413 | body_too_large |
        answer | body_bytes = 4 | | Transfer-Encoding: chunked\r\n\r\n9\r\n123456789\r\n0\r\n\r\n | 413 | body_too_large |
        "#,
    ) {
        let behavior = match &*origin {
            "hang" => OriginBehavior::Hang,
            "close" => OriginBehavior::Close,
            "invalid" => OriginBehavior::Text(INVALID),
            _ => OriginBehavior::Answer,
        };
        let (log, _guard) = CapturedLog::start();
        let upstream = format!("retries = 0\n{upstream}");
        let gateway = TestGateway::with(behavior, &limits, &upstream).await;
        let mut client = gateway.connect().await;
        let (method, end) = if body.is_empty() {
            ("GET", "\r\n")
        } else {
            ("POST", "")
        };
        let head = format!("{method} /open HTTP/1.1\r\nHost: h\r\nConnection: close\r\n");
        client.write(&format!("{head}{body}{end}")).await;
        let _cut_or_complete = client.rest().await;
        let text = log.text().to_ascii_lowercase();
        let mut failed: Vec<&str> = text.lines().collect();
        failed.retain(|line| line.contains("upstream attempt failed"));
        let is_logged = failed.len() == 1 && failed[0].contains(&logged);
        assert!(logged.is_empty() || is_logged, "{cause}: {failed:?}");
        assert_eq!(log.with(&["postern_proxy", "secret"]), 0, "{text}");
        let events = gateway.finish().await;
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(events[0]["status"].to_string(), status, "{cause}");
        assert_members(&events[0], &json!({ "cause": cause }));
        if origin != "answer" {
            assert_members(&events[0], &json!({ "upstream": "origin", "attempts": 1 }));
        }
    }
}

#[tokio::test]
async fn cause_of_a_failed_connection_is_logged() {
    let silent = TestOrigin::start(OriginBehavior::Hang).await;
    let silent = silent.address.to_string();
    let plain = scripted_origin::start(|mut connection| async move {
        connection.send("this is not TLS at all\r\n\r\n").await;
    });
    let plain = plain.await.to_string();
    let tls = "connect_timeout = \"300ms\"\n[upstream.origin.tls]\nname = \"origin\"";
    for (address, settings, cause, reason) in [
        ("127.0.0.1:1", "", "connect_refused", "ConnectRefused"),
        (silent.as_str(), tls, "connect_timeout", "ConnectTimedout"),
        (plain.as_str(), tls, "tls_failed", "TLSHandshakeFailure"),
        ("no-such-name.invalid:1", "", "no_endpoint", ""),
    ] {
        let (log, _guard) = CapturedLog::start();
        let upstream = format!("addresses = [\"{address}\"]\nretries = 0\n{settings}");
        let gateway = TestGateway::routed(OriginBehavior::Answer, &upstream, "", ROUTES).await;
        let answer = gateway.get("/open", "").await;
        assert_eq!(answer.header("retry-after").is_some(), answer.status == 503);
        let counted = format!("failures_total{{cause=\"{cause}\",upstream=\"origin\"}} 1");
        gateway.assert_metric(&counted).await;
        let events = gateway.finish().await;
        assert_members(&events[0], &json!({ "cause": cause, "upstream": "origin" }));
        let logged = (cause != "no_endpoint").then_some(address);
        assert_eq!(events[0]["upstream_address"].as_str(), logged, "{cause}");
        let id = answer.header("x-request-id").expect("an id");
        let words = ["upstream attempt failed", reason, " WARN ", id, address];
        let count = usize::from(logged.is_some());
        assert_eq!(log.with(&words), count, "{}", log.text());
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
    let expected = json!({ "attempts": 2, "upstream_address": address, "cause": null });
    for event in &events {
        assert_members(event, &expected);
    }
}

#[tokio::test]
async fn http2_response_cut_by_the_deadline_names_the_deadline() {
    let front = TlsGateway::start(OriginBehavior::Events, "deadline = \"300ms\"", "").await;
    let mut body = open_body(&mut front.client().await, "/open").await;
    while let Some(Ok(_)) = in_time(body.data()).await {}
    let expected = json!({ "cause": "deadline", "code": "upstream_timeout" });
    front.gateway.assert_event(&expected).await;
}

#[tokio::test]
async fn disconnect_of_the_client_is_logged_as_such() {
    let gateway = TestGateway::start(OriginBehavior::Events).await;
    let mut client = gateway.begin(GET).await;
    client.until("first..\n\r\n").await;
    drop(client);
    gateway.wait_for_metric("code=\"client_closed\"").await;
    let expected = json!({ "cause": "client_disconnected", "code": "client_closed" });
    gateway.assert_event(&expected).await;
}
