//! Rate limits in report-only mode.

use super::*;

/// A limit of one request per hour.
const ONE: &str = "requests = 1, per = \"1h\"";

async fn gateway(limits: &str, route: &str) -> TestGateway {
    let route = format!(
        "[[route]]\nname = \"limited\"\npath = \"/limited\"\nmethods = [\"GET\"]\nupstream = \"origin\"\n\
         policy = {{ users = \"any\" }}\n{route}\n{ROUTES}"
    );
    TestGateway::routed(OriginBehavior::Answer, "", limits, &route).await
}

/// Sends three requests, which must be forwarded, and checks the metric and the log.
async fn assert_two_reported(gateway: TestGateway, limit: &str) {
    let bearer = format!("Authorization: Bearer {}\r\n", gateway.user());
    for _ in 0..3 {
        let answer = gateway.get("/limited", &bearer).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("ratelimit"), None);
        assert_eq!(answer.header("ratelimit-policy"), None);
    }
    let name = "postern_proxy_rate_limit_report_only_total";
    let line = format!("{name}{{limit=\"{limit}\",route=\"limited\"}} 2\n");
    gateway.assert_metric(&line).await;
    let events = gateway.finish().await;
    let audits: Vec<&Value> = events.iter().map(|event| &event["report_only"]).collect();
    assert_eq!(
        audits,
        [&Value::Null, &"rate_limited".into(), &"rate_limited".into()]
    );
}

#[tokio::test]
async fn report_only_limit_counts_and_rejects_nothing() {
    for (limits, route, limit) in [
        (
            format!("address = {{ {ONE}, report_only = true }}"),
            String::new(),
            "address",
        ),
        (
            format!("principal = {{ {ONE}, report_only = true }}"),
            String::new(),
            "principal",
        ),
        (
            String::new(),
            format!("limits = [{{ by = \"address\", {ONE}, report_only = true }}]"),
            "address",
        ),
        (
            String::new(),
            format!("limits = [{{ by = \"principal\", {ONE}, report_only = true }}]"),
            "principal",
        ),
        (
            String::new(),
            format!("limits = [{{ by = \"route\", {ONE}, report_only = true }}]"),
            "route",
        ),
    ] {
        assert_two_reported(gateway(&limits, &route).await, limit).await;
    }
}

#[tokio::test]
async fn enforced_limit_rejects_beside_a_report_only_one() {
    let limits = format!(
        "limits = [{{ by = \"route\", {ONE}, report_only = true }}, \
         {{ by = \"principal\", requests = 2, per = \"1h\" }}]"
    );
    let gateway = gateway("", &limits).await;
    let bearer = format!("Authorization: Bearer {}\r\n", gateway.user());
    for status in [200, 200, 429] {
        let answer = gateway.get("/limited", &bearer).await;
        assert_eq!(answer.status, status);
        assert_eq!(
            answer.header("ratelimit-policy"),
            Some("\"principal\";q=2;w=3600")
        );
    }
    let events = gateway.finish().await;
    assert_eq!(events[2]["code"], "rate_limited");
}

#[tokio::test]
async fn report_only_limit_keeps_the_answer_to_a_bad_head() {
    let gateway = gateway(&format!("address = {{ {ONE}, report_only = true }}"), "").await;
    for _ in 0..3 {
        let answer = gateway
            .send("GET /open HTTP/1.1\r\nHost: a b\r\n\r\n")
            .await;
        assert_eq!(answer.problem(), "400 invalid_header");
    }
    let line = "postern_proxy_rate_limit_report_only_total{limit=\"address\",route=\"none\"} 2";
    gateway.assert_metric(line).await;
}
