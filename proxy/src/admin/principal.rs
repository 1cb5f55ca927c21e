//! `POST /admin/principal`: the caller of an `Authorization` value, for processes that have no
//! verifier of their own. The value is never logged.

use std::sync::Arc;

use axum::Json as JsonBody;
use axum::extract::State as Shared;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use postern_core::clock::Timestamp;
use postern_core::token::Caller;
use postern_core::{Code, Problem};
use postern_service::http::Json;
use serde_json::{Value, json};

use crate::admission::authorize::authenticate;
use crate::state::GatewayState;

/// Maximum bytes of the value: those of a request head.
const MAX_AUTHORIZATION_BYTES: usize = 64 << 10;

/// Verifies the value as that of a request.
///
/// # Errors
/// The problem with which a request for a protected route would be answered.
pub(super) async fn verify(
    Shared(state): Shared<Arc<GatewayState>>,
    body: Json,
) -> Result<JsonBody<Value>, Problem> {
    let authorization = body.read(|body| {
        body.required("authorization", |field| {
            field.text(1..=MAX_AUTHORIZATION_BYTES)
        })
    })?;
    let caller = verify_authorization(&state, &authorization).await?;
    let config = state.runtime_config.load();
    let actor = config.identity.actor.as_ref();
    let actor_issuer = actor.map_or("", |pool| &pool.issuer);
    Ok(JsonBody(principal(&caller, actor_issuer)))
}

/// Verifies the value of `Authorization` with the function that verifies requests.
pub(super) async fn verify_authorization(
    state: &GatewayState,
    authorization: &str,
) -> Result<Caller, Problem> {
    let value = HeaderValue::try_from(authorization).map_err(|_| Code::TokenMalformed)?;
    let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
    let config = state.runtime_config.load_full();
    authenticate(state, &config, &headers, state.clock.now()).await
}

fn principal(caller: &Caller, actor_issuer: &str) -> Value {
    let expires_at = match caller.expires_at() {
        i64::MAX => None,
        seconds => Some(Timestamp::from_unix_seconds(seconds)),
    };
    let (kind, username, service, groups) = match caller {
        Caller::User(user) => ("user", Some(&*user.username), None, &*user.groups),
        Caller::Service(service) => ("service", None, Some(&*service.service_id), &[][..]),
    };
    json!({
        "kind": kind,
        "subject": caller.subject(),
        "issuer": caller.issuer(),
        "username": username,
        "service": service,
        "groups": groups,
        "actorGroups": caller.actor_groups(actor_issuer),
        "scopes": caller.scopes(),
        "expiresAt": expires_at,
    })
}
