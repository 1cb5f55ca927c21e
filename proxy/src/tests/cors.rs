//! Cross-origin requests.

use super::harness::route_of;
use super::*;

/// Starts a gateway with `common` as `[defaults.cors]` and the lines `own` in the route `closed`.
async fn gateway(common: &str, own: &str) -> TestGateway {
    gateway_before(OriginBehavior::Answer, common, own).await
}

async fn gateway_before(behavior: OriginBehavior, common: &str, own: &str) -> TestGateway {
    let lines = format!("policy = {{ users = \"any\" }}\n{own}");
    let closed = route_of(["closed", "/closed", "\"GET\", \"PUT\"", &lines]);
    TestGateway::routed(behavior, common, "", &format!("{ROUTES}{closed}")).await
}

async fn preflight(gateway: &TestGateway, target: &str, origin: &str, method: &str) -> RawResponse {
    let fields = format!("Origin: {origin}\r\nAccess-Control-Request-Method: {method}\r\n");
    let request = format!("OPTIONS {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    gateway.send(&request).await
}

fn allowed(answer: &RawResponse) -> Option<&str> {
    answer.header("access-control-allow-origin")
}

const COMMON: &str =
    "[defaults.cors]\norigins = [\"https://app\", \"http://localhost:*\"]\nmax_age = \"1m\"";

#[tokio::test]
async fn common_cors_policy_answers_all_preflights() {
    let gateway = gateway(COMMON, "").await;
    for (target, method) in [
        ("/closed", "PUT"),
        ("/open", "POST"),
        ("/nowhere", "DELETE"),
        ("/closed", "DELETE"),
    ] {
        let answer = preflight(&gateway, target, "http://localhost:5173", method).await;
        let actual = (answer.status, allowed(&answer));
        assert_eq!(actual, (204, Some("http://localhost:5173")), "{target}");
        let methods = answer.header("access-control-allow-methods");
        let methods = methods.expect("methods");
        assert!(methods.contains(method), "{target}: {methods}");
        let headers = "authorization, content-type, idempotency-key, if-none-match, traceparent";
        assert_eq!(answer.header("access-control-allow-headers"), Some(headers));
        assert!(answer.header("x-request-id").is_some());
    }
}

#[tokio::test]
async fn common_cors_policy_applies_to_all_responses() {
    let gateway = gateway(COMMON, "").await;
    let bearer = gateway.bearer();
    for (target, token, status) in [
        ("/closed", "", 401),
        ("/closed", bearer.as_str(), 200),
        ("/nowhere", "", 401),
        ("/nowhere", bearer.as_str(), 404),
        ("/open", "", 200),
    ] {
        for (origin, echoed) in [("https://app", Some("https://app")), ("https://evil", None)] {
            let fields = format!("{token}Origin: {origin}\r\n");
            let answer = gateway.get(target, &fields).await;
            let actual = (answer.status, allowed(&answer));
            assert_eq!(actual, (status, echoed), "{target}");
            let exposed = answer.header("access-control-expose-headers");
            let is_exposed = exposed.is_some_and(|all| all.contains("Retry-After"));
            assert_eq!(is_exposed, echoed.is_some(), "{target}");
        }
        let answer = gateway.get(target, token).await;
        let actual = answer.header("vary");
        assert_eq!(actual, Some("Origin"), "varies by origin: {target}");
    }
}

#[tokio::test]
async fn preflight_of_disallowed_origin_gets_no_permission() {
    for (common, own) in [(COMMON, ""), ("", "cors = { origins = [\"https://app\"] }")] {
        let gateway = gateway(common, own).await;
        for target in ["/closed", "/nowhere"] {
            let answer = preflight(&gateway, target, "https://evil", "GET").await;
            assert_eq!((answer.status, allowed(&answer)), (204, None), "{target}");
            assert_eq!(answer.header("access-control-allow-methods"), None);
        }
    }
}

#[tokio::test]
async fn route_cors_policy_replaces_the_common_one() {
    let own = "cors = { origins = [\"https://other\"], headers = [\"x-own\"] }";
    let gateway = gateway(COMMON, own).await;
    for (target, origin, is_allowed) in [
        ("/closed", "https://other", true),
        ("/closed", "https://app", false),
        ("/open", "https://app", true),
    ] {
        let answer = preflight(&gateway, target, origin, "GET").await;
        assert_eq!(allowed(&answer), is_allowed.then_some(origin), "{target}");
        let headers = answer.header("access-control-allow-headers");
        assert_eq!(headers == Some("x-own"), origin == "https://other");
    }
}

#[tokio::test]
async fn unknown_path_is_readable_for_allowed_origins() {
    let own = "cors = { origins = [\"https://app\"], max_age = \"1m\" }";
    let gateway = gateway("", own).await;
    let answer = preflight(&gateway, "/closed", "https://app", "GET").await;
    let actual = (answer.status, answer.header("access-control-allow-methods"));
    assert_eq!(actual, (204, Some("GET, PUT")));
    for target in ["/closed", "/nowhere"] {
        let refused = gateway.get(target, "Origin: https://app\r\n").await;
        let found = (refused.status, allowed(&refused));
        assert_eq!(found, (401, Some("https://app")), "{target}");
    }
    let open = gateway.get("/open", "Origin: https://app\r\n").await;
    assert_eq!((open.status, allowed(&open)), (200, None), "no policy");
}

#[tokio::test]
async fn upstream_does_not_override_the_cors_policy() {
    let text = "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 0\r\n\r\n";
    for (common, passed) in [(COMMON, None), ("", Some("*"))] {
        let gateway = gateway_before(OriginBehavior::Text(text), common, "").await;
        let answer = gateway.get("/open", "Origin: https://evil\r\n").await;
        assert_eq!(allowed(&answer), passed);
    }
}

#[tokio::test]
async fn fields_that_the_upstream_exposes_are_readable() {
    let text = "HTTP/1.1 200 OK\r\nVary: Accept, origin\r\nAccess-Control-Expose-Headers: X-Total-Count\r\n\
                Content-Length: 0\r\n\r\n";
    let common =
        "[defaults.cors]\norigins = [\"https://*.app.test\"]\nexposed_headers = [\"X-Own\"]";
    let gateway = gateway_before(OriginBehavior::Text(text), common, "").await;
    let fields = "Origin: https://eu.app.test\r\n";
    let answer = gateway.get("/open", fields).await;
    assert_eq!(allowed(&answer), Some("https://eu.app.test"));
    let exposed = values(&answer.head, "access-control-expose-headers");
    let exposed = exposed.concat().to_lowercase();
    for name in ["x-total-count", "x-own", "x-request-id"] {
        assert!(exposed.contains(name), "{name}: {exposed}");
    }
    assert_eq!(values(&answer.head, "vary").len(), 1, "{}", answer.head);
}

#[tokio::test]
async fn preflights_count_for_the_address() {
    let limits = "address = { requests = 2, per = \"1h\" }";
    let gateway = TestGateway::routed(OriginBehavior::Answer, COMMON, limits, ROUTES).await;
    for status in [204, 204, 429] {
        let answer = preflight(&gateway, "/open", "https://app", "GET").await;
        assert_eq!(answer.status, status);
    }
}

#[tokio::test]
async fn rule_for_every_origin_echoes_none() {
    for origins in ["\"*\"", "\"https://app\", \"*\""] {
        let upstream = format!("[defaults.cors]\norigins = [{origins}]");
        let gateway = TestGateway::routed(OriginBehavior::Answer, &upstream, "", ROUTES).await;
        for page in ["https://app", "https://other", "null"] {
            let fields = format!("Origin: {page}\r\n");
            for answer in [
                preflight(&gateway, "/open", page, "GET").await,
                gateway.get("/open", &fields).await,
                gateway.get("/any/1", &fields).await,
            ] {
                let credentials = answer.header("access-control-allow-credentials");
                assert_eq!((allowed(&answer), credentials), (Some("*"), None), "{page}");
            }
        }
    }
}
