//! `GET /admin/keys`: the trusted issuers and their public keys.

use std::sync::Arc;

use axum::Json;
use axum::extract::State as Shared;
use serde_json::{Value, json};

use crate::state::GatewayState;

/// Returns the issuers, sorted by name.
pub(super) async fn list(Shared(state): Shared<Arc<GatewayState>>) -> Json<Value> {
    Json(json!({ "issuers": state.verifier.issuer_keys() }))
}
