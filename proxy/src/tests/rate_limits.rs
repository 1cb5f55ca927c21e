use super::*;

async fn gateway(limits: &str, route: &str) -> TestGateway {
    let lines = format!("policy = {{ users = \"any\", services = \"any\" }}\n{route}");
    let route = super::route("limited", "/limited", &lines);
    TestGateway::routed(OriginBehavior::Answer, "", limits, &route).await
}

#[tokio::test]
async fn rates_are_limited_by_address() {
    let limits = "address = { requests = 1, per = \"1h\", burst = 2 }";
    let gateway = TestGateway::with(OriginBehavior::Answer, limits, "").await;
    assert_eq!(gateway.get("/open", "").await.status, 200);
    assert_eq!(gateway.get("/open", "").await.status, 200);
    let answer = gateway.get("/open", "").await;
    assert_eq!(answer.problem(), "429 rate_limited");
    let wait = answer.header("retry-after").expect("a time");
    let wait: u32 = wait.parse().expect("seconds");
    assert!((3500..=3600).contains(&wait), "{wait}");
    let rejected = "postern_proxy_rate_limited_requests_total{limit=\"address\",route=\"open\"} 1";
    gateway.assert_metric(rejected).await;
}

#[tokio::test]
async fn principals_are_limited_separately() {
    let limit = "limits = [{ by = \"principal\", requests = 1, per = \"1h\" }]";
    let gateway = gateway("", limit).await;
    let (user, service) = (gateway.user(), gateway.service("auth"));
    for (token, status) in [(&user, 200), (&user, 429), (&service, 200)] {
        assert_eq!(gateway.status("/limited", &bearer(token)).await, status);
    }
}

#[tokio::test]
async fn rejected_heads_count_for_their_address() {
    let limits = "address = { requests = 1, per = \"1h\", burst = 2 }";
    let gateway = TestGateway::with(OriginBehavior::Answer, limits, "").await;
    let broken = "GET /open HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n";
    assert_eq!(gateway.send(broken).await.status, 400);
    assert_eq!(gateway.get("/open", "").await.status, 200);
    let refused = gateway.send(broken).await;
    assert_eq!(refused.code(), "rate_limited");
    refused.assert_header("connection", "close");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");

    let front = TlsGateway::start(OriginBehavior::Answer, limits, "").await;
    let mut client = front.client().await;
    for code in ["invalid_target", "invalid_target", "rate_limited"] {
        assert_eq!(get(&mut client, "/open//twice", &[]).await.code(), code);
    }
    let refused = get(&mut client, "/open//twice", &[]).await;
    assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
    assert_eq!(get(&mut client, "/open", &[]).await.code(), "rate_limited");
}

#[tokio::test]
async fn clients_behind_trusted_proxy_are_distinguished() {
    let limits = "trusted_proxies = [\"127.0.0.0/8\"]\naddress = { requests = 1, per = \"1h\" }";
    let gateway = TestGateway::with(OriginBehavior::Answer, limits, "").await;
    let from = |address: &str| {
        format!("X-Forwarded-For: 6.6.6.6, {address}:4711\r\nX-Forwarded-Proto: https, http\r\n")
    };
    assert_eq!(gateway.get("/open", &from("9.9.9.1")).await.status, 200);
    assert_eq!(gateway.get("/open", &from("9.9.9.1")).await.status, 429);
    assert_eq!(gateway.get("/open", &from("9.9.9.2")).await.status, 200);
    let seen = gateway.origin.seen();
    let expected = ["X-Forwarded-For: 9.9.9.2", "X-Forwarded-Proto: https"];
    assert_fields(&seen[1], &expected);
}
