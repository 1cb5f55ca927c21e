//! Status queries with ETags, and cancellation.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, IF_NONE_MATCH};
use postern_core::{Code, Problem};
use sha2::{Digest, Sha256};

use super::{ApiState, AuthenticatedCaller};
use crate::notification::NotificationId;
use crate::status::view::{NotificationStatus, StatusView};
use crate::store::{NotificationSnapshot, StoreError};

/// Number of concurrent reads. They use the connections of the dispatcher, which needs the others.
pub(crate) const CONCURRENT_READS: usize = 2;
/// Maximum time of a read. Afterwards the response is 503.
const READ_TIMEOUT: Duration = Duration::from_millis(2_500);

/// Handles `GET /notifications/{id}`.
pub(super) async fn get(
    State(service): State<Arc<ApiState>>,
    caller: AuthenticatedCaller,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let snapshot = find(&service, &id).await?;
    let (creator, addressee) = (&snapshot.record.creator, &snapshot.record.addressee);
    if !caller.may_read_all && !caller.principal.may_read(creator, addressee.as_deref()) {
        return Err(Code::NotFound.into());
    }
    response(&view(&service, &snapshot), &headers)
}

/// Handles `DELETE /notifications/{id}`.
pub(super) async fn cancel(
    State(service): State<Arc<ApiState>>,
    caller: AuthenticatedCaller,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    let snapshot = find(&service, &id).await?;
    if *snapshot.record.creator != *caller.principal.creator {
        // The addressee may read the status and may not cancel.
        return Err(Code::NotFound.into());
    }
    cancel_notification(&service, snapshot.id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Cancels a notification and returns its status. A repeated cancellation returns the result of the
/// first.
///
/// # Errors
/// 409 `already_attempted` if its delivery has started.
pub(super) async fn cancel_notification(
    service: &ApiState,
    id: NotificationId,
) -> Result<StatusView, Problem> {
    let is_cancelled = service.store.cancel(id, service.clock.now()).await?;
    let snapshot = read(service, id).await?.ok_or(Code::NotFound)?;
    let view = view(service, &snapshot);
    if is_cancelled || view.status == NotificationStatus::Cancelled {
        return Ok(view);
    }
    let detail = "delivery has started; GET the notification for its status";
    Err(Problem::new(Code::AlreadyAttempted).detail(detail))
}

/// Returns a notification.
///
/// # Errors
/// 404 if it does not exist.
pub(super) async fn find(service: &ApiState, id: &str) -> Result<NotificationSnapshot, Problem> {
    let id = NotificationId::parse(id).ok_or(Code::NotFound)?;
    let snapshot = read(service, id).await?;
    snapshot.ok_or_else(|| Code::NotFound.into())
}

/// Returns a notification, or `None` if it does not exist.
///
/// # Errors
/// 503 if the store is unavailable or too many reads wait.
pub(super) async fn read(
    service: &ApiState,
    id: NotificationId,
) -> Result<Option<NotificationSnapshot>, Problem> {
    let reading = async {
        let _permit = service.status_reads.acquire().await;
        service.store.read(&[id]).await
    };
    let found = tokio::time::timeout(READ_TIMEOUT, reading).await;
    let found = found.map_err(|_| Problem::new(Code::Unavailable).retry_after(1))?;
    let found = found.map_err(|error| {
        postern_core::log_outage!("database", %error, "status read failed");
        Problem::new(Code::Unavailable)
    });
    Ok(found?.pop())
}

pub(super) fn view(service: &ApiState, snapshot: &NotificationSnapshot) -> StatusView {
    let flow = |channel| service.dispatch_state.channel(channel).flow();
    StatusView::of(snapshot, service.clock.earliest(), flow)
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        postern_core::log_outage!("database", %error, "store operation failed");
        (&error).into()
    }
}

/// Returns a status with its `ETag`, a digest of the bytes; 304 if the client already has this
/// version (RFC 9110 section 13.1.2).
fn response(view: &StatusView, headers: &HeaderMap) -> Result<Response, Problem> {
    let body = serde_json::to_vec(view).map_err(|_| Problem::new(Code::Internal))?;
    let digest = Sha256::digest(&body);
    let prefix = u128::from_be_bytes(*digest.first_chunk().ok_or(Code::Internal)?);
    let etag = format!("\"{prefix:032x}\"");
    let known = headers.get_all(IF_NONE_MATCH).iter();
    let known = known.filter_map(|value| value.to_str().ok());
    let mut known = known.flat_map(|value| value.split(',')).map(str::trim);
    let is_known = known.any(|known| known == "*" || known.trim_start_matches("W/") == etag);
    let version = [(ETAG, &*etag), (CACHE_CONTROL, "private, no-cache")];
    Ok(if is_known {
        (StatusCode::NOT_MODIFIED, version).into_response()
    } else {
        (version, [(CONTENT_TYPE, "application/json")], body).into_response()
    })
}
