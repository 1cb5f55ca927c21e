//! The routes of the admin listener.

mod access;
mod content;
mod dead;
mod notifications;
mod providers;

use postern_core::testing::{CapturedLog, assert_problem};
use postern_service::admin_api::{OPERATOR, protect};
use reqwest::Method;

use super::*;
use crate::delivery::pool::ProviderDescription;
use crate::housekeeping::ProviderPauses;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const BEARER: &str = "Bearer 0123456789abcdef0123456789abcdef";
/// The header fields of a request by the operator `ada`.
const AS_ADA: [(&str, &str); 2] = [("authorization", BEARER), (OPERATOR, "ada")];
const UNKNOWN_ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// Returns the protected routes over the provider of the replica.
pub(super) fn routes(service: &Arc<ApiState>, pauses: ProviderPauses) -> Router {
    let description = ProviderDescription {
        name: "script".to_owned(),
        channel: crate::notification::Channel::Email,
        kind: "null",
        weight: 1,
        concurrency: 8,
        rate: None,
    };
    let parts = AdminParts {
        pauses,
        descriptions: [description].into(),
    };
    protect(Some(&Secret::from(TOKEN)), admin_routes(service, parts))
}

/// Asserts that one event has these facts of a change by the operator `ada`.
#[track_caller]
fn assert_logged(log: &CapturedLog, action: &str, target: &str, before: &Value, after: &Value) {
    let facts = format!("action={action:?} target={target:?} before={before} after={after}");
    let event = [
        "administrative action operator=\"ada\" request_id=\"",
        &facts,
    ];
    assert_eq!(log.with(&event), 1, "{facts}: {}", log.text());
}

impl TestServer {
    /// Calls an admin route with these header fields.
    async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> (u16, Value) {
        let url = format!("{}/admin/{path}", self.admin_url);
        let mut request = self.client.request(method, url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.expect("a response");
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or_default())
    }

    async fn read(&self, path: &str) -> (u16, Value) {
        let headers = [("authorization", BEARER)];
        self.call(Method::GET, path, &headers, None).await
    }

    /// Makes a change as the operator `ada`.
    async fn change(&self, path: &str, body: &Value) -> (u16, Value) {
        self.call(Method::POST, path, &AS_ADA, Some(body)).await
    }

    /// Makes a change that is refused because of one field.
    async fn assert_refused(&self, path: &str, body: &Value, pointer: &str) {
        let found = self.change(path, body).await;
        assert_problem(&found, 400, "invalid_request", Some(pointer));
    }

    /// Asserts that each query is refused because of the parameter.
    async fn assert_queries_refused(&self, path: &str, queries: &[(&str, &str)]) {
        for (query, parameter) in queries {
            let found = self.read(&format!("{path}?{query}")).await;
            assert_problem(&found, 400, "invalid_request", Some(parameter));
        }
    }

    /// Returns a notification that the provider has refused permanently.
    async fn dead_letter(&mut self) -> String {
        self.script.refuse(&["550 5.7.1"]);
        let id = self.accepted(&welcome()).await;
        self.deliver().await;
        id
    }
}
