//! The protected routes of the admin listener, for operators and a web console. See
//! `docs/reference/admin-api.md`.

mod sign_ins;
mod users;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use postern_service::timeline;

use crate::audit_trail::AuditReader;
use crate::flows::Flows;

#[derive(Clone)]
struct AdminState {
    reader: AuditReader,
    flows: Arc<Flows>,
}

pub(crate) fn admin_routes(reader: &AuditReader, flows: &Arc<Flows>) -> Router {
    let timeline_reader = reader.clone();
    let read = move |query| {
        let reader = timeline_reader.clone();
        async move { Ok(reader.read(&query).await?) }
    };
    let state = AdminState {
        reader: reader.clone(),
        flows: Arc::clone(flows),
    };
    Router::new()
        .route("/admin/sign-ins", get(sign_ins::list))
        .route("/admin/users", get(users::list))
        .route("/admin/users/{subject}", get(users::describe))
        .route("/admin/users/{subject}/{change}", post(users::change))
        .with_state(state)
        .merge(timeline::route(flows.clock.clone(), read))
}
