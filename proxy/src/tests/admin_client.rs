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
