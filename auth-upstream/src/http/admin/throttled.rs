//! Throttled accounts, addresses and networks.

use std::net::IpAddr;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use postern_core::Problem;
use postern_core::decode::{Field, Object};
use postern_core::email::EmailAddress;
use postern_core::network::IpNetwork;
use postern_service::admin_api::{AdminAction, Operator, changed, record};
use postern_service::http::{Json, RequestId, json};
use serde_json::{Value, json as value};

use super::AdminState;
use crate::protection::ReleaseTarget;

/// Handles `GET /admin/throttled`: the counters that refuse attempts now, newest first.
pub(super) async fn list(State(state): State<AdminState>) -> Result<Response, Problem> {
    let throttled = state.flows.accounts.guard.limiter().throttled().await;
    Ok(json(StatusCode::OK, &value!({ "throttled": throttled })))
}

/// Handles `POST /admin/throttled/release`: forgets the failures of an account, a counter or a
/// network.
pub(super) async fn release(
    State(state): State<AdminState>,
    operator: Operator,
    request_id: RequestId,
    body: Json,
) -> Result<Response, Problem> {
    let target = body.read(read_target)?;
    let released = state.flows.accounts.guard.limiter().release(&target).await;
    // The address of a person is not logged.
    let label = match &target {
        ReleaseTarget::Email(_) => "email",
        ReleaseTarget::Id(id) => id,
        ReleaseTarget::Network(network) => &network.to_string(),
    };
    let action = AdminAction {
        action: "throttled.release",
        target: label,
        before: Value::Null,
        after: released.into(),
    };
    record(&operator, &request_id, &action);
    Ok(changed(&value!({ "released": released })))
}

fn read_target(object: &Object<'_>) -> Option<ReleaseTarget> {
    let email = object.optional("email", EmailAddress::read);
    let id = object.optional("id", |field| field.text(1..=64));
    let network = object.optional("network", read_network);
    let named = ["email", "id", "network"];
    if named.into_iter().filter(|name| object.has(name)).count() != 1 {
        object.fail(
            "missing_field",
            "must have exactly one of email, id and network",
        );
        return None;
    }
    email
        .map(ReleaseTarget::Email)
        .or(id.map(ReleaseTarget::Id))
        .or(network.map(ReleaseTarget::Network))
}

fn read_network(field: Field<'_>) -> Option<IpNetwork> {
    let text = field.string()?;
    let address: Option<IpAddr> = text.parse().ok();
    let network = match address {
        Some(address) => Some(IpNetwork::of(address, 24, 64)),
        None => IpNetwork::parse(text),
    };
    network.or_else(|| field.fail("invalid_format", "must be a network such as 192.0.2.0/24"))
}
