use super::*;

const TRACE: &str = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";

/// Starts a gateway that exports spans to `collector`.
async fn traced(collector: &TestOrigin, sample_ratio: &str) -> TestGateway {
    let endpoint = format!("[tracing]\nendpoint = \"http://{}\"", collector.address);
    let tracing = format!("{endpoint}\nsample_ratio = {sample_ratio}");
    TestGateway::routed(OriginBehavior::Answer, &tracing, "", ROUTES).await
}

async fn stop(gateway: TestGateway) -> TestOrigin {
    gateway.shutdown.cancel();
    in_time(gateway.running).await.expect("does not panic");
    gateway.origin
}

/// Returns the value of `traceparent` in a forwarded request.
fn traceparent(request: &str) -> &str {
    values(request, "traceparent")[0]
}

#[tokio::test]
async fn sampled_request_is_exported_as_spans() {
    let collector = TestOrigin::start(OriginBehavior::Answer).await;
    let gateway = traced(&collector, "0.0").await;
    gateway.get("/any/unsampled", "").await;
    let fields = format!("{TRACE}tracestate: vendor=1\r\n");
    gateway.get("/open?secret", &fields).await;
    let origin = stop(gateway).await;
    let sent = collector.only();
    assert!(sent.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{sent}");
    let expected = "postern-proxy|GET /open|url.path|http.route|server.address|postern.upstream";
    for expected in expected.split('|') {
        assert!(sent.contains(expected), "{expected} is missing in {sent}");
    }
    let holds = !sent.contains("secret") && !sent.contains("unsampled");
    assert!(holds, "{sent}");
    let forwarded = origin.only();
    let parent = traceparent(&forwarded);
    assert!(
        parent.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && parent.ends_with("-01"),
        "{forwarded}"
    );
    assert!(!parent.contains("b7ad6b7169203331"), "{forwarded}");
    let holds = forwarded.contains("tracestate: vendor=1\r\n");
    assert!(holds, "{forwarded}");
}

#[tokio::test]
async fn trace_context_is_forwarded_without_export() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let fields = format!("{TRACE}tracestate: vendor=1\r\n");
    gateway.get("/open", &fields).await;
    let bad = "traceparent: 00-zz-b7ad6b7169203331-01\r\ntracestate: vendor=2\r\n";
    gateway.get("/open", bad).await;
    gateway.get("/open", "tracestate: vendor=3\r\n").await;
    let seen = gateway.origin.seen();
    assert!(traceparent(&seen[0]).starts_with("00-0af7651916cd43dd8448eb211c80319c-"));
    assert!(seen[0].contains("tracestate: vendor=1\r\n"), "{}", seen[0]);
    for replaced in &seen[1..] {
        assert_eq!(traceparent(replaced).len(), 55, "{replaced}");
        assert!(traceparent(replaced).ends_with("-00"), "{replaced}");
        assert!(!replaced.contains("vendor"), "{replaced}");
    }
}

#[tokio::test]
async fn unavailable_collector_does_not_fail_requests() {
    let collector = TestOrigin::start(OriginBehavior::Hang).await;
    let gateway = traced(&collector, "1.0").await;
    for _ in 0..20 {
        assert_eq!(in_time(gateway.get("/open", "")).await.status, 200);
    }
}

#[tokio::test]
async fn spans_do_not_follow_a_redirect() {
    let elsewhere = TestOrigin::start(OriginBehavior::Answer).await;
    let head = "HTTP/1.1 307 Temporary Redirect\r\nContent-Length: 0\r\nLocation:";
    let redirect: &'static str = format!("{head} http://{}/\r\n\r\n", elsewhere.address).leak();
    let collector = TestOrigin::start(OriginBehavior::Text(redirect)).await;
    let gateway = traced(&collector, "1.0").await;
    assert_eq!(gateway.get("/open", "").await.status, 200);
    stop(gateway).await;
    assert!(collector.only().starts_with("POST /v1/traces "));
    assert_eq!(elsewhere.seen(), [""; 0]);
}
