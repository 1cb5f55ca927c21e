use serde_json::Value;

use super::harness::{ROUTES, STEP_TIMEOUT, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};

#[tokio::test]
async fn sampled_request_is_exported_as_span() {
    let (origin, collector) = (
        TestOrigin::start(OriginBehavior::Answer).await,
        TestOrigin::start(OriginBehavior::Answer).await,
    );
    let traces = format!(
        "[traces]\nendpoint = \"http://{}/v1/traces\"\nsample = 0",
        collector.address
    );
    let upstream = format!("addresses = [\"{}\"]\n{traces}", origin.address);
    let gateway = TestGateway::before(origin, &upstream, "", ROUTES).await;
    gateway.get("/any/unsampled", "").await;
    let trace = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    gateway.get("/open?secret", trace).await;
    gateway.shutdown.cancel();
    tokio::time::timeout(STEP_TIMEOUT, gateway.running)
        .await
        .expect("ends")
        .expect("does not panic");
    let sent = collector.only();
    assert!(
        sent.starts_with("POST /v1/traces HTTP/1.1\r\n") && !sent.contains("secret"),
        "{sent}"
    );
    let body: Value =
        serde_json::from_str(sent.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
        .as_array()
        .expect("spans");
    assert_eq!(spans.len(), 1, "{body}");
    let span = &spans[0];
    assert_eq!(
        (&span["name"], &span["traceId"]),
        (
            &"GET /open".into(),
            &"0af7651916cd43dd8448eb211c80319c".into()
        )
    );
    assert_eq!(span["parentSpanId"], "b7ad6b7169203331");
    let forwarded = gateway.origin.only();
    assert!(
        forwarded.contains(span["spanId"].as_str().expect("an id")),
        "{forwarded}"
    );
}

#[tokio::test]
async fn spans_do_not_follow_a_redirect() {
    let (origin, elsewhere) = (
        TestOrigin::start(OriginBehavior::Answer).await,
        TestOrigin::start(OriginBehavior::Answer).await,
    );
    let head = "HTTP/1.1 307 Temporary Redirect\r\nContent-Length: 0\r\nLocation:";
    let redirect: &'static str = format!("{head} http://{}/\r\n\r\n", elsewhere.address).leak();
    let collector = TestOrigin::start(OriginBehavior::Text(redirect)).await;
    let traces = format!(
        "[traces]\nendpoint = \"http://{}/v1/traces\"\nsample = 1",
        collector.address
    );
    let upstream = format!("addresses = [\"{}\"]\n{traces}", origin.address);
    let gateway = TestGateway::before(origin, &upstream, "", ROUTES).await;
    assert_eq!(gateway.get("/open", "").await.status, 200);
    gateway.shutdown.cancel();
    tokio::time::timeout(STEP_TIMEOUT, gateway.running)
        .await
        .expect("ends")
        .expect("does not panic");
    assert!(collector.only().starts_with("POST /v1/traces "));
    assert!(elsewhere.seen().is_empty(), "{:?}", elsewhere.seen());
}
