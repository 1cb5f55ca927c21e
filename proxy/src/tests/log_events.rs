//! Log events of changes of state of upstreams, and the gauges that show the same.

use super::*;

/// Waits until a line contains all words, and fails if there is more than one.
async fn wait_for_line(log: &CapturedLog, words: &[&str]) {
    wait_until(async || log.with(words) != 0).await;
    assert_eq!(log.with(words), 1, "{words:?}\n{}", log.text());
}

#[tokio::test]
async fn ejection_and_its_end_are_logged_with_the_cause() {
    let (log, _guard) = CapturedLog::start();
    let upstream = "retries = 0\n[upstream.origin.outlier]\nfailures = 2\nejection = \"2s\"";
    let gateway = TestGateway::with(OriginBehavior::Close, "", upstream).await;
    let address = gateway.origin.address.to_string();
    for _ in 0..2 {
        gateway.get("/open", "").await;
    }
    // The failed attempt before it is the warning.
    let numbers = "cause=\"reset\" failures=2 ejected_s=2";
    let words = [" INFO ", "upstream address ejected", &address, numbers];
    wait_for_line(&log, &words).await;
    let panic = "postern_proxy_upstream_panic_mode{upstream=\"origin\"}";
    gateway.wait_for_metric(&format!("{panic} 1")).await;
    let panicking = [" INFO ", "upstream in panic mode", "excluded=1 addresses=1"];
    wait_for_line(&log, &panicking).await;
    let returned = [" INFO ", "upstream address no longer ejected", &address];
    wait_for_line(&log, &returned).await;
    wait_for_line(&log, &[" INFO ", "upstream no longer in panic mode"]).await;
    gateway.wait_for_metric(&format!("{panic} 0")).await;
}

#[tokio::test]
async fn health_of_an_address_is_logged_in_both_directions() {
    let (log, _guard) = CapturedLog::start();
    let address = unused_address().await;
    let upstream = format!(
        "addresses = [\"{address}\"]\n[upstream.origin.health]\ninterval = \"20ms\"\nfailures = 2\nsuccesses = 1"
    );
    let gateway = TestGateway::routed(OriginBehavior::Answer, &upstream, "", ROUTES).await;
    let address = address.to_string();
    let (level, unhealthy) = (" WARN ", "upstream address unhealthy");
    let (cause, count) = ("Connection refused", "failures=2");
    wait_for_line(&log, &[level, unhealthy, &address, cause, count]).await;
    let upstreams = gateway.admin_get("/upstreams").await;
    let error = "\"healthError\":\"Connect";
    assert!(upstreams.contains(error), "{upstreams}");
    let back = TcpListener::bind(&address).await.expect("binds again");
    let healthy = [" INFO ", "upstream address healthy again", &address];
    wait_for_line(&log, &healthy).await;
    drop(back);
}

#[tokio::test]
async fn gauges_of_a_removed_upstream_disappear() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let extra = "\n[upstream.extra]\naddresses = [\"127.0.0.1:1\"]\n";
    gateway.edit(|text| format!("{text}{extra}"));
    gateway.wait_for_version(2).await;
    let healthy = "postern_endpoints{state=\"healthy\",upstream=\"extra\"} 1";
    gateway.wait_for_metric(healthy).await;
    gateway.edit(|text| text.replace(extra, ""));
    gateway.wait_for_version(3).await;
    // Counters and histograms of the upstream stay.
    let is_gauge = |line: &&str| {
        let is_series = !line.contains("_total{") && !line.contains("_seconds_");
        line.contains("\"extra\"") && is_series
    };
    wait_until(async || {
        let metrics = gateway.admin_get("/metrics").await;
        !metrics.lines().any(|line| is_gauge(&line))
    })
    .await;
}

#[tokio::test]
async fn active_configuration_is_shown_by_its_hash() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let hash = |status: &Value| status["hash"].as_str().expect("a hash").to_owned();
    let before = hash(&gateway.wait_for_version(1).await);
    let line = |hash: &str| format!("postern_proxy_config_info{{hash=\"{hash}\"}} 1");
    gateway.wait_for_metric(&line(&before)).await;
    gateway.edit(|text| format!("{text}# changed\n"));
    let after = hash(&gateway.wait_for_version(2).await);
    assert_ne!(before, after);
    gateway.wait_for_metric(&line(&after)).await;
    let metrics = gateway.admin_get("/metrics").await;
    assert!(!metrics.contains(&before), "one hash only: {metrics}");
}

#[tokio::test]
async fn requests_in_flight_are_counted_until_they_end() {
    let gateway = TestGateway::with(OriginBehavior::Hang, "", "read_timeout = \"9s\"").await;
    let all = "postern_proxy_requests_in_flight";
    let of_upstream = "postern_proxy_upstream_requests_in_flight{upstream=\"origin\"}";
    let until = async |series: &str, count: usize| {
        let counted = format!("{series} {count}\n");
        gateway.wait_for_metric(&counted).await;
    };
    until(all, 0).await;
    let client = gateway.begin(GET).await;
    until(all, 1).await;
    until(of_upstream, 1).await;
    drop(client);
    until(all, 0).await;
    until(of_upstream, 0).await;
    let attempts = "postern_proxy_upstream_attempts_total{upstream=\"origin\"}";
    until(attempts, 1).await;
}

/// Of failures in a row, the first is a warning.
#[tokio::test]
async fn request_beyond_the_capacity_is_logged() {
    for [limits, reason] in rows(
        r#"| the client has an eighth of it
        trusted_proxies = ["127.0.0.0/8"] | every address has as many requests in flight as in_flight allows"#,
    ) {
        let (log, _guard) = CapturedLog::start();
        let gateway = TestGateway::with(OriginBehavior::Hang, &limits, "in_flight = 1").await;
        let _held = gateway.begin(GET).await;
        wait_until(async || !gateway.origin.seen().is_empty()).await;
        for level in [" WARN ", "DEBUG "] {
            let answer = gateway.get("/open", "").await;
            assert_eq!(answer.code(), "upstream_unavailable");
            let id = answer.header("x-request-id").expect("an id");
            let words = ["no upstream address available", &reason, id, level];
            assert_eq!(log.with(&words), 1, "{}", log.text());
        }
    }
}
