//! Providers.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use postern_common::Problem;
use postern_common::http::json;
use serde::Serialize;
use serde_json::json as value;

use super::AdminState;
use crate::delivery::pool::{ProviderDescription, ProviderState};

/// A provider with its settings and the state of this process.
#[derive(Serialize)]
struct ProviderView<'a> {
    #[serde(flatten)]
    description: &'a ProviderDescription,
    #[serde(flatten)]
    state: Option<ProviderState>,
}

/// Handles `GET /admin/providers`.
pub(super) async fn list(State(state): State<AdminState>) -> Result<Response, Problem> {
    let views: Vec<ProviderView<'_>> = state
        .parts
        .descriptions
        .iter()
        .map(|description| ProviderView {
            description,
            state: state.parts.pool.state(&description.name),
        })
        .collect();
    Ok(json(StatusCode::OK, &value!({ "providers": views })))
}
