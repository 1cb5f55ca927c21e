//! `/admin/upstreams`: the addresses of the upstreams, and the changes that an operator makes to
//! their use. A change is kept in memory, until a reload changes the upstream or the process ends.

use std::sync::Arc;
use std::time::Duration;

use axum::Json as JsonBody;
use axum::extract::{Path, State as Shared};
use axum::response::Response;
use postern_core::decode::Object;
use postern_core::{Code, Problem};
use postern_service::admin_api::{self, AdminAction, Operator};
use postern_service::http::{Json, RequestId};
use serde_json::{Value, json};

use crate::state::GatewayState;
use crate::upstream::{Endpoint, UpstreamPool};

/// The duration of an ejection without `seconds`.
const DEFAULT_EJECTION_S: u64 = 300;
/// The maximum duration of an ejection, a day.
const MAX_EJECTION_S: u64 = 86_400;

/// A change of the use of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndpointChange {
    Eject,
    Restore,
    Drain,
}

/// Returns the upstreams in the order of the file.
pub(super) async fn list(Shared(state): Shared<Arc<GatewayState>>) -> JsonBody<Value> {
    let config = state.runtime_config.load_full();
    let pools: Vec<Value> = config
        .pools
        .iter()
        .map(|pool| describe(&state, pool))
        .collect();
    JsonBody(json!({ "upstreams": pools }))
}

fn describe(state: &GatewayState, pool: &UpstreamPool) -> Value {
    let now_ms = pool.now_ms();
    let endpoints: Vec<Value> = pool
        .endpoints()
        .iter()
        .map(|endpoint| describe_endpoint(state, endpoint, now_ms))
        .collect();
    json!({
        "name": pool.config.name,
        "panic": pool.is_in_panic_now(),
        "panicPercent": pool.config.outlier.panic_percent,
        "retryBudget": pool.available_retries(),
        "endpoints": endpoints,
    })
}

/// Describes an address: the members of `/upstreams`, the ejection and the share.
fn describe_endpoint(state: &GatewayState, endpoint: &Endpoint, now_ms: u64) -> Value {
    let mut described = serde_json::to_value(endpoint.status(now_ms)).unwrap_or_default();
    let ejection = endpoint.ejection(now_ms);
    described["ejected"] = match ejection {
        Some((remaining_ms, cause)) => json!({
            "until": state.clock.now().plus(Duration::from_millis(remaining_ms)),
            "cause": cause,
        }),
        None => Value::Null,
    };
    described["draining"] = json!(endpoint.is_draining());
    described["weight"] = json!(endpoint.configured_weight);
    described
}

/// Ejects, restores or drains an address.
///
/// # Errors
/// 404 for an unknown upstream or action, 422 for an unknown address, 400 for a malformed body.
pub(super) async fn change(
    Shared(state): Shared<Arc<GatewayState>>,
    Path((name, action)): Path<(String, String)>,
    operator: Operator,
    id: RequestId,
    body: Json,
) -> Result<Response, Problem> {
    let change = match action.as_str() {
        "eject" => EndpointChange::Eject,
        "restore" => EndpointChange::Restore,
        "drain" => EndpointChange::Drain,
        _ => return Err(Code::NotFound.into()),
    };
    let config = state.runtime_config.load_full();
    let mut pools = config.pools.iter();
    let pool = pools
        .find(|pool| pool.config.name == name)
        .ok_or_else(|| Problem::new(Code::NotFound).detail("there is no such upstream"))?;
    let endpoints = pool.endpoints();
    let (endpoint, seconds) = body.read(|body| read_change(body, change, &endpoints))?;
    let before = describe_endpoint(&state, &endpoint, pool.now_ms());
    match change {
        EndpointChange::Eject => endpoint.eject(pool.now_ms(), Duration::from_secs(seconds)),
        EndpointChange::Restore => endpoint.restore(pool.now_ms()),
        EndpointChange::Drain => endpoint.set_draining(true),
    }
    let after = describe_endpoint(&state, &endpoint, pool.now_ms());
    let target = format!("{name}/{}", endpoint.address);
    let action = AdminAction {
        action: change.name(),
        target: &target,
        before,
        after: after.clone(),
    };
    admin_api::record(&operator, &id, &action);
    Ok(admin_api::changed(&json!({
        "upstream": name,
        "endpoint": after,
        "panic": pool.is_in_panic_now(),
        "notice": notice(pool, change),
    })))
}

/// Reads the body: the address and, of an ejection, its duration in seconds.
fn read_change(
    body: &Object<'_>,
    change: EndpointChange,
    endpoints: &[Arc<Endpoint>],
) -> Option<(Arc<Endpoint>, u64)> {
    let endpoint = body.required("address", |field| {
        let address = field.text(1..=128)?;
        let endpoint = endpoints.iter().find(|it| *it.address_text == *address);
        let detail = "is no address of the upstream now";
        endpoint
            .cloned()
            .or_else(|| field.reject("unknown_address", detail))
    });
    let seconds = match change {
        EndpointChange::Eject => body.or("seconds", DEFAULT_EJECTION_S, |field| {
            field.integer(1..=MAX_EJECTION_S)
        }),
        EndpointChange::Restore | EndpointChange::Drain => 0,
    };
    Some((endpoint?, seconds))
}

/// Returns a warning if the change has another effect than its name says.
fn notice(pool: &UpstreamPool, change: EndpointChange) -> Option<String> {
    let (is_panic, percent) = (pool.is_in_panic_now(), pool.config.outlier.panic_percent);
    match change {
        EndpointChange::Eject if is_panic => Some(format!(
            "more than {percent} % of the addresses are excluded: the upstream is in panic mode and uses all of them, also this one"
        )),
        EndpointChange::Drain if pool.is_drained() => Some(
            "every address is draining: requests are answered with 503 until one is restored"
                .to_owned(),
        ),
        EndpointChange::Eject | EndpointChange::Drain | EndpointChange::Restore => None,
    }
}

// === impl EndpointChange ===

impl EndpointChange {
    fn name(self) -> &'static str {
        match self {
            Self::Eject => "upstream.eject",
            Self::Restore => "upstream.restore",
            Self::Drain => "upstream.drain",
        }
    }
}
