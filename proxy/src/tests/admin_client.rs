//! Calls of the routes under `/admin/`, as the operator `grace`.

use reqwest::Method;

use super::*;

pub(super) async fn start() -> TestGateway {
    TestGateway::start(OriginBehavior::Answer).await
}

/// Calls a route with the secret and an operator. Returns status and body.
pub(super) async fn call(
    gateway: &TestGateway,
    method: Method,
    path: &str,
    body: &Value,
) -> (u16, Value) {
    let mut request = gateway.admin_request(method, path, "grace");
    if !body.is_null() {
        request = request.json(body);
    }
    let response = request.send().await.expect("a response");
    let status = response.status().as_u16();
    (status, response.json().await.unwrap_or_default())
}

pub(super) async fn get(gateway: &TestGateway, path: &str) -> Value {
    let (status, body) = call(gateway, Method::GET, path, &Value::Null).await;
    assert_eq!(status, 200, "{path}: {body}");
    body
}

pub(super) async fn post(gateway: &TestGateway, path: &str, body: Value) -> (u16, Value) {
    call(gateway, Method::POST, path, &body).await
}

/// Asserts a problem: its status, its code, and the place of its first mistake, if it has any.
#[track_caller]
pub(super) fn assert_problem(
    (status, problem): &(u16, Value),
    expected: u16,
    code: &str,
    pointer: Option<&str>,
) {
    let first = problem["errors"][0]["pointer"].as_str();
    let stated = (problem["status"].as_u64(), problem["code"].as_str());
    let expected = (expected, (Some(u64::from(expected)), Some(code)), pointer);
    assert_eq!((*status, stated, first), expected, "{problem}");
}
