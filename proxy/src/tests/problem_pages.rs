//! Problems as pages for browsers.

use super::harness::{RawResponse, TestGateway};
use super::origin::OriginBehavior;

/// What Firefox sends for a navigation.
const BROWSER: &str = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n";

async fn get(gateway: &TestGateway, method: &str, path: &str, fields: &str) -> RawResponse {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    gateway.send(&request).await
}

#[tokio::test]
async fn browser_gets_a_page_and_a_client_json() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let bearer = format!("Authorization: Bearer {}\r\n", gateway.user());
    for (path, caller, status, code) in [
        ("/any/1", "", 401, "authentication_required"),
        ("/nowhere", bearer.as_str(), 404, "not_found"),
    ] {
        let fields = format!("{caller}{BROWSER}");
        let page = get(&gateway, "GET", path, &fields).await;
        assert_eq!(page.status, status);
        let media_type = page.header("content-type");
        assert_eq!(media_type, Some("text/html; charset=utf-8"));
        let policy = page.header("content-security-policy").unwrap_or_default();
        assert!(policy.starts_with("default-src 'none'"), "{page:?}");
        assert_eq!(page.header("cache-control"), Some("no-store"));
        assert_eq!(page.header("vary"), Some("Accept"));
        let text = page.body.as_str();
        let id = page.header("x-request-id").unwrap_or_default();
        for expected in [code, id, "<h1>"] {
            assert!(!expected.is_empty() && text.contains(expected), "{text}");
        }
        for accept in [
            "",
            "Accept: */*\r\n",
            "Accept: application/json, text/html\r\n",
        ] {
            let fields = format!("{caller}{accept}");
            let problem = get(&gateway, "GET", path, &fields).await;
            let media_type = problem.header("content-type");
            assert_eq!(media_type, Some("application/problem+json"), "{accept}");
            assert_eq!((problem.status, problem.code().as_str()), (status, code));
            assert_eq!(problem.header("vary"), Some("Accept"));
        }
    }
}

#[tokio::test]
async fn page_for_head_has_no_body() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let page = get(&gateway, "GET", "/nowhere", BROWSER).await;
    let mut client = gateway.connect().await;
    let request =
        format!("HEAD /nowhere HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{BROWSER}\r\n");
    client.write(&request).await;
    let head = client.rest().await.expect("a response");
    assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
    let length = page.header("content-length").expect("a length");
    let field = format!("content-length: {length}\r\n");
    assert!(head.to_ascii_lowercase().contains(&field), "{head}");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
}

#[tokio::test]
async fn target_is_not_reflected_in_the_page() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let target = "/%3Cscript%3Ealert(1)%3C/script%3E?q=%22%3E%3Cimg%20src=x%3E";
    let bearer = format!("Authorization: Bearer {}\r\n", gateway.user());
    let fields = format!("{bearer}{BROWSER}X-Request-Id: <script>alert(2)</script>\r\n");
    let page = get(&gateway, "GET", target, &fields).await;
    assert_eq!(page.status, 404);
    assert!(!page.body.contains("alert"), "{page:?}");
}
