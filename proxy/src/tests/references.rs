//! References of responses on routes that rewrite paths.

use super::*;

fn public(name: &str, rewrite: &str) -> String {
    let lines = format!("policy = \"public\"\n{rewrite}");
    route(name, &format!("/{name}/*"), &lines)
}

/// Returns the value of the field in the response for a target.
async fn received(field: &str, value: &str, target: &str) -> String {
    let response = format!("HTTP/1.1 302 Found\r\n{field}: {value}\r\nContent-Length: 0\r\n\r\n");
    let response: &'static str = Box::leak(response.into_boxed_str());
    let routes = [
        public("v1", "rewrite = { strip = \"/v1\", add = \"/api\" }"),
        public("off", "rewrite = { strip = \"/off\", location = false }"),
        public("none", ""),
        public("own", "rewrite = { strip = \"/own\" }\nresponse_headers = { set = { Location = \"/api/configured\" } }"),
    ]
    .concat();
    let gateway = TestGateway::routed(OriginBehavior::Text(response), "", "", &routes).await;
    let answer = gateway.get(target, "").await;
    assert_eq!(answer.status, 302, "{}", answer.head);
    answer.header(field).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn references_to_the_upstream_are_rewritten() {
    for (field, value, target, sent) in [
        ("Location", "/api/x?y", "/v1/a", "/v1/x?y"),
        ("Content-Location", "/api/x", "/v1/a", "/v1/x"),
        ("Location", "http://gate/api/x", "/v1/a", "/v1/x"),
        (
            "Location",
            "https://elsewhere/api/x",
            "/v1/a",
            "https://elsewhere/api/x",
        ),
        ("Location", "relative", "/v1/a", "relative"),
        ("Location", "/api//evil.com", "/v1/a", "/v1//evil.com"),
        ("Location", "/api/x", "/off/a", "/api/x"),
        ("Location", "/api/x", "/none/a", "/api/x"),
        ("Location", "/api/x", "/own/a", "/api/configured"),
    ] {
        assert_eq!(
            received(field, value, target).await,
            sent,
            "{field}: {value}"
        );
    }
}

#[tokio::test]
async fn address_of_the_upstream_is_not_disclosed() {
    for (value, sent) in [
        ("/api/x", "/v1/x"),
        ("/other", "/other"),
        ("//evil.com", "/evil.com"),
        ("", "/"),
    ] {
        // The origin knows its own address only when it is started.
        let origin = TestOrigin::start(OriginBehavior::EchoLocation).await;
        let address = origin.address;
        let routes = public("v1", "rewrite = { strip = \"/v1\", add = \"/api\" }");
        let gateway = TestGateway::before(origin, "", "", &routes).await;
        let asked = format!("X-Location: http://{address}{value}\r\n");
        let answer = gateway.get("/v1/a", &asked).await;
        assert_eq!(answer.header("location"), Some(sent), "{value}");
    }
}
