//! `GET /admin/upstreams`: the addresses of the upstreams.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State as Shared;
use serde_json::{Value, json};

use crate::state::GatewayState;
use crate::upstream::{Endpoint, UpstreamPool};

pub(super) async fn list(Shared(state): Shared<Arc<GatewayState>>) -> Json<Value> {
    let config = state.runtime_config.load_full();
    let pools = config.pools.iter().map(|pool| describe(&state, pool));
    Json(json!({ "upstreams": pools.collect::<Vec<_>>() }))
}

fn describe(state: &GatewayState, pool: &UpstreamPool) -> Value {
    let (endpoints, now_ms) = (pool.endpoints(), pool.now_ms());
    let endpoints = endpoints
        .iter()
        .map(|endpoint| describe_endpoint(state, endpoint, now_ms));
    json!({ "name": pool.config.name, "endpoints": endpoints.collect::<Vec<_>>() })
}

/// Describes an address: the members of `/upstreams`, and the ejection.
fn describe_endpoint(state: &GatewayState, endpoint: &Endpoint, now_ms: u64) -> Value {
    let mut described = serde_json::to_value(endpoint.status(now_ms)).unwrap_or_default();
    described["ejected"] = match endpoint.ejection(now_ms) {
        Some((remaining_ms, cause)) => json!({
            "until": state.clock.now().plus(Duration::from_millis(remaining_ms)),
            "cause": cause,
        }),
        None => Value::Null,
    };
    described
}
