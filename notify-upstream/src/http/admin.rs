//! The protected routes of the admin listener, for operators and a web console. See
//! `docs/reference/admin-api.md`.

mod dead;
mod notifications;
mod providers;
mod queue;
mod suppression;
mod templates;

use std::sync::{Arc, Weak};

use axum::Router;
use axum::extract::FromRequestParts;
use axum::routing::{get, post};
use http::request::Parts;
use postern_core::{Code, Problem};
use postern_service::admin_api::{AdminAction, Operator, record};
use postern_service::http::RequestId;
use postern_service::timeline;
use serde_json::Value;

use super::ApiState;
use crate::delivery::pool::ProviderDescription;
use crate::housekeeping::ProviderPauses;
use crate::status::timeline::NotificationReader;

/// What the admin routes use beside the state of the API.
#[derive(Clone)]
pub(crate) struct AdminParts {
    /// The providers and their pauses.
    pub(crate) pauses: ProviderPauses,
    /// The settings of the providers, in the order of the configuration.
    pub(crate) descriptions: Arc<[ProviderDescription]>,
}

/// The state of the admin routes.
#[derive(Clone)]
struct AdminState {
    /// Not owned: the committer ends when the API, which submits to it, has been dropped.
    api: Weak<ApiState>,
    parts: AdminParts,
    reader: NotificationReader,
}

/// The state of the API. 503 while the process stops.
struct Api(Arc<ApiState>);

/// The person who makes a change or reads a message, and the id of the request.
struct Change {
    operator: Operator,
    request_id: RequestId,
}

/// Returns the routes under `/admin/`.
pub(crate) fn admin_routes(api: &Arc<ApiState>, parts: AdminParts) -> Router {
    let reader = NotificationReader::new(api.store.clone(), api.clock.clone());
    let state = AdminState {
        api: Arc::downgrade(api),
        parts,
        reader: reader.clone(),
    };
    let read = move |query| {
        let reader = reader.clone();
        async move { reader.answer(&query).await }
    };
    Router::new()
        .route("/admin/notifications", get(notifications::list))
        .route("/admin/notifications/{id}", get(notifications::show))
        .route(
            "/admin/notifications/{id}/retry",
            post(notifications::retry),
        )
        .route(
            "/admin/notifications/{id}/cancel",
            post(notifications::cancel),
        )
        .route("/admin/dead", get(dead::list))
        .route("/admin/dead/retry", post(dead::retry))
        .route("/admin/queue", get(queue::view))
        .route("/admin/providers", get(providers::list))
        .route("/admin/templates", get(templates::list))
        .route("/admin/templates/{name}/preview", post(templates::preview))
        .route("/admin/providers/{name}/pause", post(providers::pause))
        .route("/admin/providers/{name}/resume", post(providers::resume))
        .route("/admin/providers/{name}/test", post(providers::test))
        .route(
            "/admin/notifications/{id}/preview",
            get(notifications::preview),
        )
        .route("/admin/suppression", get(suppression::list))
        .route("/admin/suppression/remove", post(suppression::remove))
        .with_state(state)
        .merge(timeline::route(api.clock.clone(), read))
}

// === impl Api ===

impl FromRequestParts<AdminState> for Api {
    type Rejection = Problem;

    async fn from_request_parts(_parts: &mut Parts, state: &AdminState) -> Result<Self, Problem> {
        let api = state.api.upgrade();
        api.map(Self).ok_or_else(|| Code::Unavailable.into())
    }
}

// === impl Change ===

impl Change {
    /// Logs the change, or the reading.
    fn record(&self, action: &'static str, target: &str, before: Value, after: Value) {
        let action = AdminAction {
            action,
            target,
            before,
            after,
        };
        record(&self.operator, &self.request_id, &action);
    }
}

impl FromRequestParts<AdminState> for Change {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &AdminState) -> Result<Self, Problem> {
        let operator = Operator::from_request_parts(parts, state).await?;
        let Ok(request_id) = RequestId::from_request_parts(parts, state).await;
        Ok(Self {
            operator,
            request_id,
        })
    }
}
