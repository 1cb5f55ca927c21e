//! Extractors of request bodies, limited in size, time and memory.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use http::Extensions;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame};
use tokio::time::Instant;

use super::budget::{BodyBudgets, BodyMemoryBudget, BodyOwner, BudgetPermit};
use super::request_layer::RequestInfo;
use postern_core::decode::{self, Mistakes, Node, Object};
use postern_core::problem::{Code, Problem};

/// Base time for receiving a body.
const BASE_ARRIVAL_TIME: Duration = Duration::from_secs(5);
/// Minimum rate: each received byte extends the time by its share, up to [`MAX_ARRIVAL_TIME`].
const MIN_BYTES_PER_SECOND: u64 = 16 << 10;
/// Maximum time for receiving any body.
const MAX_ARRIVAL_TIME: Duration = Duration::from_secs(30);

/// A JSON request body with a correct content type, within the size limit, and without duplicate
/// names.
///
/// Rejections are 415, 413, 400 `invalid_request`, 503 if the memory budget of the caller's class
/// is exhausted, and 429 if the caller's share of it is.
#[derive(Debug)]
pub struct Json(Node, Mistakes, BudgetPermit);

/// A [`Json`] of at most this number of bytes, below the size limit of the server: for routes that
/// anybody may call.
#[derive(Debug)]
pub struct SmallJson<const MAX_BYTES: usize>(pub Json);

/// An unparsed request body within the size limit. Rejections are those of [`Json`] without 415.
#[derive(Debug)]
pub struct Raw(pub Bytes, pub BudgetPermit);

impl Json {
    /// Reads the body as an object. Fields that `read` does not take are reported as unknown.
    pub fn read<T>(self, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Result<T, Problem> {
        let Self(root, mistakes, _permit) = self;
        let value = mistakes.object(&root, read);
        mistakes.finish(value).map_err(Problem::from_mistakes)
    }

    /// Returns the tree, for bodies whose structure the caller validates.
    pub fn into_node(self) -> Result<Node, Problem> {
        let Self(root, mistakes, _permit) = self;
        mistakes.finish(Some(root)).map_err(Problem::from_mistakes)
    }

    /// Receives a body of at most `max` bytes, or of a lower limit of the server.
    async fn receive(request: Request, max: usize) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::new(Code::UnsupportedMediaType)
                .detail("Content-Type must be application/json"));
        }
        let (parts, body) = request.into_parts();
        let Raw(bytes, permit) = read_body(body, &parts.extensions, max).await?;
        let mistakes = Mistakes::default();
        let Some(root) = decode::json(&bytes, &mistakes) else {
            let mistakes = mistakes.finish::<()>(None).err();
            return Err(Problem::from_mistakes(mistakes.unwrap_or_default()));
        };
        Ok(Self(root, mistakes, permit))
    }

    /// Returns the memory reservation of the body, to be kept together with data read from it.
    #[must_use]
    pub fn permit(&self) -> BudgetPermit {
        self.2.clone()
    }
}

impl<S: Send + Sync> FromRequest<S> for Json {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        Self::receive(request, usize::MAX).await
    }
}

impl<S: Send + Sync, const MAX_BYTES: usize> FromRequest<S> for SmallJson<MAX_BYTES> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        Json::receive(request, MAX_BYTES).await.map(Self)
    }
}

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        read_body(body, &parts.extensions, usize::MAX).await
    }
}

async fn read_body(mut body: Body, extensions: &Extensions, max: usize) -> Result<Raw, Problem> {
    let info = RequestInfo::of(extensions);
    let limit = info.map(|info| info.limits).unwrap_or_default().body;
    let limit = limit.min(max);
    let announced = body.size_hint().lower();
    if announced > limit as u64 {
        return Err(too_large(limit));
    }
    let mut reservation = match info {
        Some(info) => info.budget.reserve(info.owner(), announced)?,
        // Outside a server, as in a unit test.
        None => BodyMemoryBudget::new(BodyBudgets::anonymous(limit), limit)
            .reserve(BodyOwner::Anonymous(None), announced)?,
    };
    // One contiguous buffer: a list of many small chunks would cost more memory than their contents.
    let mut bytes = BytesMut::new();
    let started = Instant::now();
    while let Some(frame) = next_frame(&mut body, started, bytes.len()).await? {
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if bytes.len() + data.len() > limit {
            return Err(too_large(limit));
        }
        reservation.grow(data.len(), body.is_end_stream())?;
        bytes.extend_from_slice(&data);
    }
    if !reservation.is_complete {
        reservation.grow(0, true)?;
    }
    Ok(Raw(bytes.freeze(), reservation.into_permit()))
}

/// Returns the next frame, within the time limit for a body of which `received` bytes have arrived.
async fn next_frame(
    body: &mut Body,
    started: Instant,
    received: usize,
) -> Result<Option<Frame<Bytes>>, Problem> {
    let frame = tokio::time::timeout_at(started + arrival_timeout(received), body.frame()).await;
    let frame = frame.ok().and_then(|frame| frame.transpose().ok());
    frame.ok_or_else(|| Problem::new(Code::InvalidRequest).detail("the body is incomplete"))
}

/// Returns the time limit for a body of which `received` bytes have arrived. The limit grows only
/// while data arrives, so that an idle client does not hold memory.
fn arrival_timeout(received: usize) -> Duration {
    let millis = received as u64 * 1000 / MIN_BYTES_PER_SECOND;
    MAX_ARRIVAL_TIME.min(BASE_ARRIVAL_TIME + Duration::from_millis(millis))
}

fn too_large(limit: usize) -> Problem {
    Problem::new(Code::BodyTooLarge).detail(format!("the limit is {limit} bytes"))
}

/// Returns whether the content type is `application/json` or `application/*+json`, with no charset
/// or UTF-8 (RFC 8259 section 8.1).
fn is_json(headers: &http::HeaderMap) -> bool {
    let value = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let value = value.unwrap_or_default().to_ascii_lowercase();
    let mut parts = value.split(';').map(str::trim);
    let subtype = parts
        .next()
        .and_then(|essence| essence.strip_prefix("application/"));
    subtype.is_some_and(|subtype| subtype == "json" || subtype.ends_with("+json"))
        && parts.all(|parameter| {
            let charset = parameter.strip_prefix("charset=");
            charset.is_none_or(|charset| charset.trim_matches('"') == "utf-8")
        })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use futures_util::{FutureExt, StreamExt};

    use super::super::{Limits, Peer, RequestId};
    use super::*;

    fn info(body: usize, budget: &BodyMemoryBudget) -> Arc<RequestInfo> {
        let limits = Limits {
            body,
            ..Limits::default()
        };
        let id = RequestId("r".into());
        RequestInfo::new(Peer::default(), id, limits, budget.clone())
    }

    fn budget(bytes: usize) -> BodyMemoryBudget {
        BodyMemoryBudget::new(BodyBudgets::anonymous(bytes), bytes)
    }

    async fn read(budget: &BodyMemoryBudget, body: Body) -> Result<Raw, Code> {
        let request = Request::builder().extension(info(20, budget)).body(body);
        let read = Raw::from_request(request.expect("request"), &()).await;
        read.map_err(|rejected| {
            let has_time = rejected.render("x").headers.contains_key("retry-after");
            assert_eq!(has_time, rejected.code() == Code::Unavailable);
            rejected.code()
        })
    }

    #[tokio::test]
    async fn unreadable_body_is_rejected_with_its_code() {
        let json = "application/json";
        for (content_type, body, code) in [
            ("text/plain", "{}", Code::UnsupportedMediaType),
            (
                "application/json; charset=latin1",
                "{}",
                Code::UnsupportedMediaType,
            ),
            (json, "{\"a\":\"0123456789\"}", Code::BodyTooLarge),
            (json, "{\"a\":", Code::InvalidRequest),
        ] {
            let request = Request::builder().header(CONTENT_TYPE, content_type);
            let request = request.extension(info(16, &budget(16)));
            let request = request.body(Body::from(body)).expect("request");
            let rejected = Json::from_request(request, &()).await;
            assert_eq!(rejected.expect_err("rejected").code(), code, "{body}");
        }
    }

    /// Reads a body that arrives in `pieces`, with an announced length if `announced` is set.
    async fn read_pieces(
        budget: &BodyMemoryBudget,
        pieces: &'static [&'static str],
        announced: bool,
    ) -> Result<Raw, Code> {
        let pieces = pieces.iter().map(|piece| Ok::<_, Infallible>(*piece));
        let stream = Body::from_stream(futures_util::stream::iter(pieces.clone()));
        let whole: String = pieces.flatten().collect();
        read(budget, if announced { whole.into() } else { stream }).await
    }

    #[tokio::test]
    async fn body_beyond_the_budget_is_rejected_until_it_is_released() {
        for announced in [true, false] {
            let budget = budget(20);
            let read = async |pieces: &'static [&'static str]| {
                read_pieces(&budget, pieces, announced).await
            };
            let first = read(&["0123", "4567", "89"]).await;
            let Raw(bytes, permit) = first.expect("budget for it");
            assert_eq!(bytes, "0123456789");
            let rejected = read(&["0123456", "7890"]).await;
            let code = rejected.expect_err("11 and 10 are more than 20");
            assert_eq!(code, Code::Unavailable);
            let other = read(&["0123456789"]).await;
            let Raw(_, other) = other.expect("a rejected body releases its reservation");
            let kept = permit.clone();
            drop((permit, other));
            let rejected = read(&["0123456", "7890"]).await;
            rejected.expect_err("a clone keeps the budget");
            drop(kept);
            let whole = read(&["01234567890123456789"]).await;
            whole.expect("the whole budget is available again");
        }
    }

    #[tokio::test]
    async fn announced_bytes_reserve_nothing_until_they_arrive() {
        let budget = budget(20);
        let stalled = futures_util::stream::pending::<Result<Bytes, Infallible>>();
        let mut waiting = Box::pin(read(&budget, Body::from_stream(stalled)));
        assert!((&mut waiting).now_or_never().is_none());
        let other = read(&budget, Body::from("01234567890123456789")).await;
        other.expect("no memory is reserved");
    }

    #[test]
    fn time_limit_grows_with_received_bytes() {
        let seconds = |received: usize| arrival_timeout(received).as_secs();
        assert_eq!([0, 1, 64 << 10, 900 << 10].map(seconds), [5, 5, 9, 30]);
    }

    #[tokio::test]
    async fn stalled_body_times_out_before_a_long_one() {
        let first = futures_util::stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"{"))]);
        let body = Body::from_stream(first.chain(futures_util::stream::pending()));
        let started = Instant::now();
        let rejected = read(&budget(20), body).await;
        assert_eq!(rejected.expect_err("a timeout"), Code::InvalidRequest);
        assert!((BASE_ARRIVAL_TIME..MAX_ARRIVAL_TIME).contains(&started.elapsed()));
    }
}
