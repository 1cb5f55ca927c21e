//! `GET /admin/info`.

use std::sync::Arc;

use axum::Router;
use postern_core::clock::Timestamp;
use postern_core::health::Health;
use postern_service::admin_api::{self, ProcessInfo};

use crate::state::GatewayState;

pub(super) fn route(state: &Arc<GatewayState>, health: &Health) -> Router {
    let clock = state.clock.clone();
    let uptime_ms = i64::try_from(state.started_at.elapsed().as_millis()).unwrap_or_default();
    let started_at = Timestamp(clock.now().0.saturating_sub(uptime_ms));
    let state = Arc::clone(state);
    let info = move || {
        let status = state.config_status.lock();
        ProcessInfo {
            service: "postern-proxy",
            version: env!("CARGO_PKG_VERSION"),
            config_file: status.file.clone().unwrap_or_default(),
            config_hash: status.hash.clone().unwrap_or_default(),
            started_at,
        }
    };
    admin_api::info_route(info, health.clone(), clock)
}
