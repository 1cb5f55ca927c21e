//! The state of the queue.

use axum::response::Response;
use http::StatusCode;
use postern_core::Problem;
use postern_service::http::json;
use serde_json::json as value;

use super::Api;
use crate::operations::queue;

/// Handles `GET /admin/queue`.
pub(super) async fn view(Api(api): Api) -> Result<Response, Problem> {
    let queues = queue::view(&api.store, &api.dispatch_state, api.clock.now()).await?;
    Ok(json(StatusCode::OK, &value!({ "queues": queues })))
}
