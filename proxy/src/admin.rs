//! The admin listener: `/livez`, `/readyz`, `/metrics`, `/config/status`, `/upstreams`,
//! `/upstreams/names`, `/jwks/status`; and, with `[admin] token_env`, the routes under
//! `/admin/`, one module for each.

mod config;
mod explain;
mod info;
mod principal;
mod requests;
mod routes;
mod upstreams;

use std::collections::BTreeMap;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use axum::extract::State as Shared;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use postern_core::health::Health;
use postern_core::secret::Secret;
use postern_service::admin_api;
use postern_service::http::Limits;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::config_editor::{ConfigEditor, MAX_TEXT_BYTES};
use crate::state::GatewayState;
use crate::state::config_status::ConfigStatus;
use crate::upstream::{EndpointStatus, NameStatus};

/// Maximum bytes of a request body: a configuration text as a JSON string, in which quotes and line
/// breaks need two bytes.
const MAX_BODY_BYTES: usize = 2 * MAX_TEXT_BYTES + (64 << 10);

/// Returns all routes. Those under `/admin/` exist with a `token` only. Streams
/// end with `stop`.
pub(crate) fn router(
    state: &Arc<GatewayState>,
    health: &Health,
    editor: Option<&Arc<ConfigEditor>>,
    token: Option<&Secret>,
    stop: &CancellationToken,
) -> Router {
    let editing = editor.map_or_else(Router::new, config::routes);
    let own = Router::new()
        .route("/config/status", get(config_status))
        .route("/upstreams", get(endpoint_list))
        .route("/upstreams/names", get(upstream_names))
        .route("/jwks/status", get(jwks_status))
        .with_state(Arc::clone(state));
    postern_service::admin::router(health.clone(), state.metrics.registry.clone())
        .merge(own)
        .merge(admin_api::protect(
            token,
            protected(state, health, stop).merge(editing),
        ))
}

/// Returns the routes under `/admin/`, without their protection.
fn protected(state: &Arc<GatewayState>, health: &Health, stop: &CancellationToken) -> Router {
    let requests = get(requests::follow).layer(Extension(stop.clone()));
    Router::new()
        .route("/admin/requests", requests)
        .route("/admin/principal", post(principal::verify))
        .route("/admin/routes", get(routes::list))
        .route("/admin/explain", post(explain::explain))
        .route("/admin/upstreams", get(upstreams::list))
        .route("/admin/keys", get(key_list))
        .with_state(Arc::clone(state))
        .merge(info::route(state, health))
}

pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    hosts: Vec<String>,
    stop: CancellationToken,
) {
    let limits = Limits {
        body: MAX_BODY_BYTES,
        ..Limits::default()
    };
    postern_service::admin::serve(listener, router, limits, &hosts, stop).await;
}

async fn config_status(Shared(state): Shared<Arc<GatewayState>>) -> Json<ConfigStatus> {
    Json(state.config_status.lock().clone())
}

async fn endpoint_list(
    Shared(state): Shared<Arc<GatewayState>>,
) -> Json<BTreeMap<String, Vec<EndpointStatus>>> {
    let config = state.runtime_config.load();
    let pools = config.pools.iter().map(|pool| {
        let (now, endpoints) = (pool.now_ms(), pool.endpoints());
        let endpoints = endpoints.iter().map(|endpoint| endpoint.status(now));
        (pool.config.name.clone(), endpoints.collect())
    });
    Json(pools.collect())
}

async fn upstream_names(
    Shared(state): Shared<Arc<GatewayState>>,
) -> Json<BTreeMap<String, Vec<NameStatus>>> {
    let config = state.runtime_config.load();
    let pools = config.pools.iter();
    let names = pools.map(|pool| (pool.config.name.clone(), pool.names()));
    Json(names.filter(|(_, names)| !names.is_empty()).collect())
}

async fn jwks_status(Shared(state): Shared<Arc<GatewayState>>) -> Json<Value> {
    Json(serde_json::to_value(state.verifier.status()).unwrap_or_default())
}

/// Returns the trusted issuers, sorted by name, and their public keys.
async fn key_list(Shared(state): Shared<Arc<GatewayState>>) -> Json<Value> {
    Json(json!({ "issuers": state.verifier.issuer_keys() }))
}
