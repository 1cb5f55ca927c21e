//! `POST /admin/explain`: the decision on a request, by the configuration in force.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Json as JsonBody;
use axum::extract::State as Shared;
use http::{HeaderMap, StatusCode};
use postern_core::Problem;
use postern_core::decode::Object;
use postern_core::output::explanation_json;
use postern_core::secret::Secret;
use postern_service::http::Json;
use serde_json::Value;

use super::principal::verify_authorization;
use crate::config::TestToken;
use crate::config::route_test::{read_address, read_headers, read_host, read_request};
use crate::routing::explain::{CallerSource, ExplainedRequest, explain_in};
use crate::state::GatewayState;

/// Maximum bytes of a token: those of a request head.
const MAX_TOKEN_BYTES: usize = 64 << 10;

struct Question {
    method: String,
    url: String,
    headers: HeaderMap,
    address: Option<IpAddr>,
    principal: TestToken,
    token: Option<Secret>,
}

/// Explains the request. Nothing is sent to an upstream, and no limit is counted.
///
/// # Errors
/// 400 or 422 for a malformed body; 503 if the token cannot be verified now.
pub(super) async fn explain(
    Shared(state): Shared<Arc<GatewayState>>,
    body: Json,
) -> Result<JsonBody<Value>, Problem> {
    let question = body.read(Question::read)?;
    let caller = match question.token {
        None => CallerSource::Assumed(question.principal),
        Some(token) => {
            let authorization = format!("Bearer {}", token.expose());
            match verify_authorization(&state, &authorization).await {
                Ok(caller) => CallerSource::Verified(caller),
                Err(problem) if problem.code().status() == StatusCode::UNAUTHORIZED => {
                    CallerSource::Rejected(problem.code().as_str())
                }
                Err(problem) => return Err(problem),
            }
        }
    };
    let config = state.runtime_config.load_full();
    let upstreams: Vec<_> = config.pools.iter().map(|pool| &pool.config).collect();
    let request = ExplainedRequest {
        method: &question.method,
        url: &question.url,
        headers: &question.headers,
        address: question.address,
    };
    let text = explain_in(&config.route_table, &upstreams, &request, &caller);
    Ok(JsonBody(explanation_json(&text)))
}

impl Question {
    fn read(body: &Object<'_>) -> Option<Self> {
        let request = body.required("request", read_request);
        let host = body.or("host", "localhost".to_owned(), read_host);
        let headers = body.section("headers", |section| Some(read_headers(section)));
        let address = body.optional("clientAddress", read_address);
        let principal = body.optional("principal", TestToken::read);
        let token = body.optional("token", |field| {
            if body.has("principal") {
                return field.fail("conflicting_fields", "cannot be combined with principal");
            }
            Some(Secret::from(field.text(1..=MAX_TOKEN_BYTES)?.as_str()))
        });
        let (method, target) = request?;
        // The scheme of a path is that of `[[test]]`.
        let url = match target.starts_with('/') {
            true => format!("https://{host}{target}"),
            false => target,
        };
        Some(Self {
            method,
            url,
            headers: headers.unwrap_or_default(),
            address,
            principal: principal.unwrap_or(TestToken::None),
            token,
        })
    }
}
