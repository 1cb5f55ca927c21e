//! Protected routes of the admin listener, under `/admin/`.
//!
//! The listener itself has no authentication: who reaches it may read `/readyz` and `/metrics`.
//! Routes with personal data, and routes that change something, need the secret of
//! `[admin] token_env` as a bearer token, and do not exist without it. A change also needs the name
//! of the person who makes it ([`Operator`]) and is logged ([`record`]).
//!
//! Input: the routes of a process and the secret of its configuration. Output: a router for
//! [`admin::serve`](crate::admin::serve).

use std::fmt;
use std::sync::Arc;

use ::http::StatusCode;
use ::http::request::Parts;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use axum::Router;
use axum::extract::{FromRequestParts, Request};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::http::{RequestId, bearer, json as json_response, no_store};
use postern_core::clock::{Clock, Timestamp};
use postern_core::health::Health;
use postern_core::problem::{Code, Problem};
use postern_core::secret::Secret;

/// The header field with the name of the person on whose behalf a process calls an admin route.
pub const OPERATOR: &str = "x-postern-operator";
const MAX_OPERATOR_BYTES: usize = 256;

/// The person who makes a change: the value of [`OPERATOR`], 1 to 256 visible ASCII characters, as
/// the holder of the secret states it. The field is required.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator(Arc<str>);

/// A change that an operator has made.
#[derive(Clone, Debug)]
pub struct AdminAction<'a> {
    /// The action, such as `notification.retry`.
    pub action: &'static str,
    /// What was changed, such as the id of a notification. No secret and no address of a person.
    pub target: &'a str,
    /// The state before the change; `null` if there was none.
    pub before: Value,
    /// The state after the change.
    pub after: Value,
}

/// The facts of `GET /admin/info`.
#[derive(Clone, Debug)]
pub struct ProcessInfo {
    /// The service, such as `postern-auth`.
    pub service: &'static str,
    /// The version of the program.
    pub version: &'static str,
    /// The configuration file, as in the event `listening`.
    pub config_file: String,
    /// The digest of the configuration file, as in the event `listening`.
    pub config_hash: String,
    /// The start of the process.
    pub started_at: Timestamp,
}

impl Operator {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let mut values = parts.headers.get_all(OPERATOR).iter();
        let name = values
            .next()
            .and_then(|value| value.to_str().ok())
            .map(str::trim);
        let is_valid = |name: &&str| (1..=MAX_OPERATOR_BYTES).contains(&name.len());
        if let (Some(name), None) = (name.filter(is_valid), values.next()) {
            return Ok(Self(name.into()));
        }
        let detail = "X-Postern-Operator must name the person who makes the change";
        Err(Problem::new(Code::InvalidHeader).detail(detail))
    }
}

/// Returns `routes`, each of which requires the secret as a bearer token, or no route without a
/// secret. Responses are not stored by caches.
pub fn protect(token: Option<&Secret>, routes: Router) -> Router {
    let Some(token) = token else {
        return Router::new();
    };
    let expected: [u8; 32] = Sha256::digest(token.expose()).into();
    let check = move |request: Request, next: Next| async move {
        match authorize(&request, &expected) {
            Ok(()) => no_store(next.run(request).await),
            Err(problem) => {
                postern_core::log_outage!("admin_token", "admin token rejected");
                no_store(problem.into_response())
            }
        }
    };
    routes.route_layer(from_fn(check))
}

/// Compares digests, in constant time, so that neither the time nor the length reveals the secret.
fn authorize(request: &Request, expected: &[u8]) -> Result<(), Problem> {
    let presented = Sha256::digest(bearer(request.headers())?);
    verify_slices_are_equal(&presented, expected).map_err(|_| {
        Problem::new(Code::AuthenticationRequired).detail("the token of [admin] is required")
    })
}

/// Returns the route `GET /admin/info`: the program, its configuration and its readiness. `info` is
/// called for each request, because the configuration may change.
pub fn info_route(
    info: impl Fn() -> ProcessInfo + Clone + Send + Sync + 'static,
    health: Health,
    clock: Clock,
) -> Router {
    let handler = move || {
        let info = info();
        let body = json!({
            "service": info.service,
            "version": info.version,
            "configFile": info.config_file,
            "configHash": info.config_hash,
            "startedAt": info.started_at,
            "now": clock.now(),
            "ready": health.is_ready(),
            "parts": health.parts(),
            "degraded": health.degraded(),
        });
        async move { json_response(StatusCode::OK, &body) }
    };
    Router::new().route("/admin/info", get(handler))
}

/// Logs a change. Call it after the change has been made.
pub fn record(operator: &Operator, request_id: &RequestId, action: &AdminAction<'_>) {
    tracing::info!(
        target: "postern::admin",
        operator = operator.name(),
        request_id = &*request_id.0,
        action = action.action,
        target = action.target,
        before = %action.before,
        after = %action.after,
        "administrative action"
    );
}

/// Returns a response of a protected route for a change that was made.
#[must_use]
pub fn changed(body: &Value) -> Response {
    json_response(StatusCode::OK, body)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::post;
    use tower::ServiceExt;

    use super::*;
    use postern_core::testing::CapturedLog;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    async fn call(router: Router, headers: &[(&str, &str)]) -> StatusCode {
        let mut request = Request::builder().method("POST").uri("/admin/change");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).expect("a request");
        router.oneshot(request).await.expect("a response").status()
    }

    fn routes() -> Router {
        let change = |operator: Operator, id: RequestId| async move {
            let action = AdminAction {
                action: "thing.change",
                target: "thing-1",
                before: Value::from("old"),
                after: Value::from("new"),
            };
            record(&operator, &id, &action);
            changed(&json!({}))
        };
        Router::new().route("/admin/change", post(change))
    }

    #[tokio::test]
    async fn routes_require_the_secret_and_an_operator() {
        let token = Secret::from(TOKEN);
        let router = protect(Some(&token), routes());
        let bearer = format!("Bearer {TOKEN}");
        let wrong = format!("Bearer {}", TOKEN.replace('f', "e"));
        let bearer = ("authorization", bearer.as_str());
        let wrong = ("authorization", wrong.as_str());
        let operator = (OPERATOR, "ada");
        for (headers, expected) in [
            (&[][..], 401),
            (&[operator], 401),
            (&[wrong, operator], 401),
            (&[bearer], 400),
            (&[bearer, (OPERATOR, " ")], 400),
            (&[bearer, operator, (OPERATOR, "eve")], 400),
            (&[bearer, operator], 200),
        ] {
            let status = call(router.clone(), headers).await;
            assert_eq!(status, expected, "{headers:?}");
        }
    }

    #[tokio::test]
    async fn routes_do_not_exist_without_a_secret() {
        let router = protect(None, routes());
        assert_eq!(call(router, &[]).await, StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn change_is_logged_with_its_operator() {
        let (log, _guard) = CapturedLog::start();
        let token = Secret::from(TOKEN);
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("authorization", bearer.as_str()), (OPERATOR, "ada")];
        call(protect(Some(&token), routes()), &headers).await;
        let event = ["administrative action", "ada", "thing.change", "thing-1"];
        assert_eq!(log.with(&event), 1, "{}", log.text());
        assert_eq!(log.with(&[TOKEN]), 0, "{}", log.text());
    }
}
