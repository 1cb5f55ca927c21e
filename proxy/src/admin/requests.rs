//! `GET /admin/requests`: the live tail, as server-sent events.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, RawQuery, State as Shared};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::CONTENT_TYPE;
use postern_core::{Code, Problem};
use postern_service::admin_api::Operator;
use postern_service::http::RequestId;
use tokio_util::sync::CancellationToken;

use crate::state::GatewayState;
use crate::telemetry::live_tail::{MAX_TAILS, TailFilter};

/// `Retry-After` of a reader that is rejected because of [`MAX_TAILS`], in seconds.
const RETRY_AFTER_S: u32 = 30;

/// The first bytes, so that the reader gets the head of the response at once.
const FOLLOWING: &[u8] = b": following\n\n";

/// Streams the requests that the query selects, until the reader or the listener ends. The operator
/// is optional, for the log.
///
/// # Errors
/// 400 for an invalid query, 429 if [`MAX_TAILS`] readers are connected.
pub(super) async fn follow(
    Shared(state): Shared<Arc<GatewayState>>,
    Extension(stop): Extension<CancellationToken>,
    RawQuery(query): RawQuery,
    operator: Result<Operator, Problem>,
    id: RequestId,
) -> Result<Response, Problem> {
    let config = state.runtime_config.load_full();
    let is_route = |name: &str| {
        config
            .route_table
            .routes
            .iter()
            .any(|route| route.name == name)
    };
    let filter = TailFilter::parse(query.as_deref().unwrap_or_default(), is_route)?;
    let answer = |body| ([(CONTENT_TYPE, "text/event-stream")], body).into_response();
    if filter.ends {
        return Ok(answer(Body::from(state.live_tail.recent(&filter).concat())));
    }
    let Some(reader) = state.live_tail.open(filter) else {
        let detail = format!("{MAX_TAILS} readers follow the requests of this gateway already");
        let problem = Problem::new(Code::RateLimited).detail(detail);
        return Err(problem.retry_after(RETRY_AFTER_S));
    };
    let operator = operator.as_ref().map_or("unknown", Operator::name);
    tracing::info!(operator, request_id = &*id.0, "live tail opened");
    let chunks = stream::unfold(reader, |mut reader| async move {
        let chunk = reader.next_chunk().await;
        Some((Ok::<_, io::Error>(chunk), reader))
    });
    let first = stream::iter([Ok(Bytes::from_static(FOLLOWING))]);
    let events = first.chain(chunks).take_until(stop.cancelled_owned());
    Ok(answer(Body::from_stream(events)))
}
