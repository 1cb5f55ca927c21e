//! The live tail `GET /admin/requests`.

use reqwest::{Method, StatusCode};

use super::*;

const TAILS: &str = "postern_proxy_live_tails";

struct Tail {
    response: reqwest::Response,
    text: String,
}

impl Tail {
    /// Follows the requests that the query selects. The reader is registered on return.
    async fn open(gateway: &TestGateway, query: &str) -> Self {
        let path = format!("/admin/requests?{query}");
        let request = gateway.admin_request(Method::GET, &path, "grace");
        let response = request.send().await.expect("a response");
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["cache-control"], "no-store");
        Self {
            response,
            text: String::new(),
        }
    }

    /// Returns the data of `count` requests.
    async fn requests(&mut self, count: usize) -> Vec<Value> {
        let read = async {
            while self.text.matches("event: request\n").count() < count
                || !self.text.ends_with("\n\n")
            {
                let chunk = self.response.chunk().await.expect("a stream");
                let chunk = chunk.expect("not the end");
                self.text.push_str(&String::from_utf8_lossy(&chunk));
            }
        };
        in_time(read).await;
        let events = self.text.split("\n\n");
        let data = events.filter_map(|event| event.strip_prefix("event: request\ndata: "));
        data.map(|data| serde_json::from_str(data).expect("JSON"))
            .collect()
    }
}

#[tokio::test]
async fn live_tail_has_the_events_of_the_access_log() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let mut tail = Tail::open(&gateway, "").await;
    let hostile = "a\"}\n\ndata: {";
    let token = gateway.user_with(&json!({ "scope": "read write", "cognito:groups": [hostile] }));
    let authorization = bearer(&token);
    assert_eq!(gateway.status("/any/7?secret=1", &authorization).await, 200);
    gateway.get("/auth-only", &authorization).await;
    gateway.get("/no-such-route", "").await;
    gateway.send("BAD\r\n\r\n").await;
    let streamed = tail.requests(4).await;
    let decisions: Vec<&Value> = streamed.iter().map(|event| &event["decision"]).collect();
    assert_eq!(decisions, ["forwarded", "rejected", "rejected", "rejected"]);
    assert_eq!(streamed[0]["host"], "gate");
    assert_eq!(streamed[0]["scopes"], serde_json::json!(["read", "write"]));
    assert_eq!(streamed[0]["groups"], json!([hostile]));
    let is_secret = tail.text.contains("secret") || tail.text.contains(&token);
    assert!(!is_secret, "{}", tail.text);
    let logged = gateway.finish().await;
    assert_eq!(logged.len(), streamed.len());
    for (logged, streamed) in logged.iter().zip(&streamed) {
        let mut streamed = streamed.clone();
        let own = ["decision", "host", "groups", "scopes"];
        let members = streamed.as_object_mut().expect("an object");
        members.retain(|name, _| !own.contains(&name.as_str()));
        assert_eq!(&streamed, logged, "same members, same redaction");
    }
    // The stream ended with the gateway, which did not wait for it.
    let end = in_time(tail.response.chunk()).await;
    assert_eq!(end.expect("a complete stream"), None);
}

#[tokio::test]
async fn live_tail_refuses_bad_queries_and_a_ninth_reader() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    // All forms are in the tests of filters.
    let request = gateway.admin_request(Method::GET, "/admin/requests?status=9xx", "");
    let response = request.send().await.expect("a response");
    assert_eq!(response.status(), 400);
    let problem: Value = response.json().await.expect("JSON");
    assert_eq!(problem["errors"][0]["pointer"], "?status", "{problem}");
    let mut tails = Vec::new();
    for _ in 0..8 {
        tails.push(Tail::open(&gateway, "").await);
    }
    assert_eq!(gateway.metric(TAILS).await, Some(8));
    let request = gateway.admin_request(Method::GET, "/admin/requests", "");
    let response = request.send().await.expect("a response");
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "30");
    drop(tails);
    wait_until(async || gateway.metric(TAILS).await == Some(0)).await;
    Tail::open(&gateway, "").await;
}

#[tokio::test]
async fn reader_that_does_not_read_delays_no_request() {
    const REQUESTS: usize = 1500;
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let mut unread = RawClient::new(connect_narrow(gateway.admin, 4 << 10).await);
    let head = "GET /admin/requests HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer";
    unread.write(&format!("{head} {ADMIN_TOKEN}\r\n\r\n")).await;
    wait_until(async || gateway.metric(TAILS).await != Some(0)).await;
    let mut client = gateway.connect().await;
    let path = format!("/{}", "x".repeat(7 << 10));
    let request = format!("GET {path} HTTP/1.1\r\nHost: gate\r\n\r\n");
    for _ in 0..REQUESTS {
        client.write(&request).await;
        let answer = tokio::time::timeout(Duration::from_secs(5), client.response());
        let answer = answer.await.expect("not delayed").expect("a response");
        assert_eq!(answer.status, 401);
    }
    let mut fresh = Tail::open(&gateway, "path=%2Fopen").await;
    gateway.get("/open", "").await;
    assert_eq!(fresh.requests(1).await.len(), 1);
}
