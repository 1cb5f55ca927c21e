use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use postern_common::{Code, Problem};
use sha2::{Digest, Sha256};

use super::{Authenticated, Service};
use crate::notification::NotificationId;
use crate::request::Principal;
use crate::store::{Cancelled, Snapshot, StoreError};
use crate::view::{Status, View};

pub(super) async fn get(
    State(service): State<Arc<Service>>,
    Authenticated(principal): Authenticated,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let snapshot = find(&service, &principal, &id).await?;
    Ok(answer(&view(&service, &snapshot), &headers))
}

pub(super) async fn cancel(
    State(service): State<Arc<Service>>,
    Authenticated(principal): Authenticated,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let snapshot = find(&service, &principal, &id).await?;
    if *snapshot.record.creator != *principal.creator {
        // The addressee may look, and may not call it back; for it there is nothing here to cancel.
        return Err(Code::NotFound.into());
    }
    let outcome =
        service.store.cancel(snapshot.id, service.clock.now()).await.map_err(|error| unavailable(&error))?;
    let snapshot = find(&service, &principal, &id).await?;
    let view = view(&service, &snapshot);
    match (outcome, view.status) {
        // A second wish to cancel finds what the first did.
        (Cancelled::Now, _) | (Cancelled::TooLate, Status::Cancelled) => Ok(answer(&view, &headers)),
        (Cancelled::TooLate, _) => Err(Problem::new(Code::NotCancellable)
            .detail("it was begun already; GET the notification to see where it stands")),
    }
}

/// What the caller may see; anything else is not there.
async fn find(service: &Service, principal: &Principal, id: &str) -> Result<Arc<Snapshot>, Problem> {
    let id = NotificationId::parse(id).ok_or(Code::NotFound)?;
    let snapshot = service.reader.read(id).await?.ok_or(Code::NotFound)?;
    let record = &snapshot.record;
    if !principal.may_read(&record.creator, record.addressee.as_deref()) {
        return Err(Code::NotFound.into());
    }
    Ok(snapshot)
}

fn view(service: &Service, snapshot: &Snapshot) -> View {
    View::of(snapshot, service.clock.now(), |channel| service.board.desk(channel).gate())
}

pub(super) fn unavailable(error: &StoreError) -> Problem {
    tracing::warn!(%error, "the store failed");
    match error {
        StoreError::Unavailable(_) => Code::Unavailable.into(),
        StoreError::Refused(_) => Code::Internal.into(),
    }
}

/// The document with its `ETag`, or 304 when the client has it (RFC 9110 section 13.1.2).
fn answer(view: &View, headers: &HeaderMap) -> Response {
    let Ok(body) = serde_json::to_vec(view) else { return Problem::new(Code::Internal).into_response() };
    let digest = Sha256::digest(&body);
    let tag: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    let tag = format!("\"{tag}\"");
    let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok()).any(|value| {
        value.split(',').map(str::trim).any(|known| known == "*" || known.trim_start_matches("W/") == tag)
    });
    let mut response = if known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        (StatusCode::OK, [(CONTENT_TYPE, "application/json")], body).into_response()
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    response
}
