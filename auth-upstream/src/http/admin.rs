//! The protected routes of the admin listener, for operators and a web console. See
//! `docs/admin-api.md`.

mod sign_ins;
mod throttled;

use axum::Router;
use axum::routing::{get, post};
use postern_common::{Clock, timeline};

use crate::audit_trail::AuditReader;
use crate::protection::AttemptLimiter;

/// The state of the admin routes.
#[derive(Clone)]
struct AdminState {
    reader: AuditReader,
    limiter: AttemptLimiter,
    clock: Clock,
}

/// Returns the routes under `/admin/`.
pub(crate) fn admin_routes(
    reader: &AuditReader,
    limiter: &AttemptLimiter,
    clock: &Clock,
) -> Router {
    let timeline_reader = reader.clone();
    let read = move |query| {
        let reader = timeline_reader.clone();
        async move { reader.answer(&query).await }
    };
    let state = AdminState {
        reader: reader.clone(),
        limiter: limiter.clone(),
        clock: clock.clone(),
    };
    Router::new()
        .route("/admin/sign-ins", get(sign_ins::list))
        .route("/admin/sign-ins/summary", get(sign_ins::summary))
        .route("/admin/throttled", get(throttled::list))
        .route("/admin/throttled/release", post(throttled::release))
        .with_state(state)
        .merge(timeline::route(clock.clone(), read))
}
