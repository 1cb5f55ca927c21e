//! Redirects and fixed responses: answers of the gateway itself.

use super::*;

pub(super) fn answering_routes() -> String {
    route_table(
        r#"
        go | /go/* | "GET" | policy = "public"\nredirect = { to = "/{path.*}{query}" }
        joined | /joined/* | "GET" | policy = "public"\nredirect = { to = "/{path.*}/evil.com" }
        user | /user | "GET" | policy = { users = "any" }\nrespond = {}\nresponse_headers = { set = { X-User = "{principal}" } }
        empty | /empty | "GET" | policy = "public"\nrespond = { status = 204 }
        old | /old/{id}/* | "GET", "HEAD", "POST" | policy = "public"\nhosts = ["gate", "*.example.com"]\nredirect = { to = "https://{host}/new/{path.*}/{path.id}{query}", status = 301 }\nresponse_headers = { set = { X-Own = "{route} {upstream}" } }
        whole | /whole/* | "GET" | policy = { users = "any" }\nredirect = { to = "https://example.org:8443{path}{query}", status = 307 }
        text | /text | "GET", "HEAD", "POST" | policy = "public"\nrespond = { body = "{not a variable}" }\ncors = { origins = ["https://app"] }\nresponse_headers = { set = { X-Id = "{request_id}", X-User = "{principal}", Cache-Control = "no-store" } }
        gone | /gone/* | "*" | policy = "public"\nrespond = { status = 410, content_type = "text/html", body = "<p>gone" }\nlimits = [{ by = "route", requests = 3, per = "1h" }]
        "#,
    )
}

#[tokio::test]
async fn redirect_is_answered_by_the_gateway() {
    let gateway = TestGateway::answering("h2c = true", "", &answering_routes()).await;
    for [target, host, status, location] in rows(
        "/old/1/a/b?c=d | gate | 301 | https://gate/new/a/b/1?c=d
         /old/1/a | GATE:8500 | 301 | https://gate/new/a/1
         /old/1/a | a.Example.com. | 301 | https://a.example.com/new/a/1
         /old/%C3%A9/a?%0d%0aX:y | gate | 301 | https://gate/new/a/%C3%A9?%0d%0aX:y
         /go/a/?b | anything | 308 | /a/?b
         /go/ | anything | 308 | /
         /go/evil.com | h | 308 | /evil.com
         /go/@evil.com/x | h | 308 | /@evil.com/x
         /joined/ | h | 308 | /evil.com
         /joined/a | h | 308 | /a/evil.com
         /go/https:evil | h | 308 | /https:evil",
    ) {
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let answer = gateway.send(&request).await;
        assert_eq!(answer.status.to_string(), status, "{target}");
        assert_eq!(answer.header("location"), Some(&*location), "{target}");
        assert_eq!(answer.header("content-length"), Some("0"), "{target}");
        assert!(answer.header("x-request-id").is_some(), "{target}");
        let own = (status == "301").then_some("old ");
        assert_eq!(answer.header("x-own"), own, "{target}");
    }
    let mut client = http2_client(&gateway, 65_535).await;
    let answer = get(&mut client, "/old/1/a?b", &[]).await;
    assert_eq!(answer.status, 301);
    assert_eq!(answer.headers["location"], "https://gate/new/a/1?b");
    assert!(answer.body.is_empty());
    gateway.origin.assert_unused();
    let expected = json!({ "status": 301, "route": "old", "upstream": null });
    gateway.assert_event(&expected).await;
}

#[tokio::test]
async fn redirect_does_not_leave_the_hosts_of_the_route() {
    let gateway = TestGateway::answering("h2c = true", "", &answering_routes()).await;
    let hosts = [
        ("/old/1/a", "evil.com", 401),
        ("/old/1/a", "gate.evil.com", 401),
        ("/old/1/a", "gate@evil.com", 400),
        ("/old/1/a", "gate\tevil.com", 400),
        ("/old/1/a", "gate/evil.com", 400),
    ];
    let targets = "//evil.com /go//evil.com /go/%2fevil.com /go/%5cevil.com /go/\\evil.com \
        /go/..//evil.com /go/%0d%0aSet-Cookie:a=b http://evil.com/go/a";
    let targets = targets.split(' ').map(|target| (target, "gate", 400));
    for (target, host, status) in hosts.into_iter().chain(targets) {
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let answer = gateway.send(&request).await;
        assert_eq!(answer.status, status, "{request}");
        assert_eq!(answer.header("location"), None, "{request} {}", answer.head);
        assert_eq!(answer.header("set-cookie"), None);
    }
    let mut client = http2_client(&gateway, 65_535).await;
    let foreign = http::Request::builder().uri("https://evil.com/old/1/a");
    let (answer, _) = send(&mut client, foreign.body(()).expect("a request"), true);
    assert_eq!(reply(answer).await.expect("a response").status, 401);
}

#[tokio::test]
async fn policy_and_limits_apply_to_answers() {
    let gateway = TestGateway::answering("", "", &answering_routes()).await;
    let answer = gateway.get("/whole/a", "").await;
    assert_eq!(answer.code(), "authentication_required");
    let ada = gateway.bearer();
    let answer = gateway.get("/whole/a?b", &ada).await;
    assert_eq!(answer.status, 307);
    answer.assert_header("location", "https://example.org:8443/whole/a?b");
    let service = bearer(&gateway.service("auth"));
    assert_eq!(gateway.status("/whole/a", &service).await, 401);
    for status in [410, 410, 410, 429] {
        assert_eq!(gateway.status("/gone/x", "").await, status);
    }
    // A token of a careless issuer.
    let evil = bearer(&gateway.user_named("a\r\nX-Evil: 1"));
    let answer = gateway.get("/user", &evil).await;
    assert_eq!((answer.status, answer.header("x-evil")), (200, None));
    assert_eq!(answer.header("x-user"), None);
    let answer = gateway.get("/user", &ada).await;
    answer.assert_header("x-user", "ada");
}

#[tokio::test]
async fn fixed_response_has_body_and_length() {
    let gateway = TestGateway::answering("h2c = true", "", &answering_routes()).await;
    let answer = gateway.get("/text", "Origin: https://app\r\n").await;
    assert_eq!((answer.status, &*answer.body), (200, "{not a variable}"));
    answer.assert_header("content-type", "text/plain; charset=utf-8");
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("x-id"), answer.header("x-request-id"));
    assert_eq!(answer.header("x-user"), None);
    answer.assert_header("access-control-allow-origin", "https://app");

    // The body of a request is skipped, and the connection stays usable.
    let mut client = gateway.connect().await;
    let post = "POST /text HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody";
    let head = "HEAD /text HTTP/1.1\r\nHost: h\r\n\r\n";
    assert_eq!(client.ask(&format!("{post}{head}")).await.status, 200);
    let response = client.until("\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let fields = response.to_ascii_lowercase();
    assert!(fields.contains("content-length: 16\r\n"), "{response}");
    client.write("GET /empty HTTP/1.1\r\nHost: h\r\n\r\n").await;
    let response = client.until("\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.1 204"), "{response}");
    let fields = response.to_ascii_lowercase();
    assert!(!fields.contains("content-length") && !fields.contains("content-type"));

    let answer = gateway.get("/gone/a", "").await;
    assert_eq!((answer.status, answer.body.as_str()), (410, "<p>gone"));
    assert_eq!(answer.header("content-type"), Some("text/html"));

    let mut client = http2_client(&gateway, 65_535).await;
    let answer = get(&mut client, "/text", &[]).await;
    assert_eq!(answer.body, "{not a variable}");
    let answer = call(&mut client, "HEAD", "/text", &[]).await;
    assert_eq!((answer.status, answer.body.len()), (200, 0));
    assert_eq!(answer.headers["content-length"], "16");
    gateway.origin.assert_unused();
}

#[tokio::test]
async fn listener_redirects_to_https() {
    let hosts = "hosts = [\"gate\", \"*.example.com\"]\npolicy = \"public\"";
    let route = route("a", "/a", hosts);
    let limits = "trusted_proxies = [\"127.0.0.0/8\"]\n";
    let listen = "h2c = true\nredirect_to_https = true";
    let gateway = TestGateway::answering(listen, limits, &route).await;
    for [line, fields, status, location] in rows(
        r"GET /a?b=c HTTP/1.1 | gate:8500 | 308 | https://gate/a?b=c
         POST /nowhere HTTP/1.1 | A.EXAMPLE.com\r\nContent-Length: 0 | 308 | https://a.example.com/nowhere
         HEAD / HTTP/1.0 | gate | 308 | https://gate/
         GET /a HTTP/1.1 | evil.com | 404 |
         GET /a HTTP/1.1 | example.com | 404 |
         GET //evil.com HTTP/1.1 | gate | 400 |
         GET /a HTTP/1.1 | gate\r\nX-Forwarded-Proto: https | 200 |",
    ) {
        let request = format!("{line}\r\nHost: {fields}\r\n\r\n");
        let answer = gateway.send(&request).await;
        assert_eq!(answer.status.to_string(), status, "{request}");
        let found = answer.header("location").unwrap_or_default();
        assert_eq!(found, location, "{request}");
    }
    let mut client = http2_client(&gateway, 65_535).await;
    let answer = get(&mut client, "/a?b", &[]).await;
    assert_eq!(answer.status, 308);
    assert_eq!(answer.headers["location"], "https://gate/a?b");
    assert_eq!(gateway.origin.seen().len(), 1);

    let gateway = TestGateway::answering("redirect_to_https = { port = 8443 }", "", &route).await;
    let answer = gateway.get("/x", "").await;
    answer.assert_header("location", "https://gate:8443/x");
}
