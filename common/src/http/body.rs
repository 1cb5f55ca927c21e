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
use super::rim::Known;
use crate::decode::{self, Mistakes, Node, Object};
use crate::problem::{Code, Problem};

/// How long a body may take of which nothing has arrived.
const BASE_ARRIVAL_TIME: Duration = Duration::from_secs(5);
/// What arrives extends the time at this rate, up to [`MAX_ARRIVAL_TIME`].
const MIN_BYTES_PER_SECOND: u64 = 16 << 10;
/// How long any body may take.
const MAX_ARRIVAL_TIME: Duration = Duration::from_secs(30);

/// A request body that is JSON: the content type is right, the size within the limit, every name
/// stands once.
///
/// The refusals are 415, 413, 400 `invalid_request`, 503 where the caller's class has used up its
/// memory budget, and 429 where the caller has used up its share.
#[derive(Debug)]
pub struct Json(Node, Mistakes, BudgetPermit);

/// A request body as it came, within the limit. The refusals are those of [`Json`] without 415.
#[derive(Debug)]
pub struct Raw(pub Bytes, pub BudgetPermit);

impl Json {
    /// Reads the body as an object; whatever `read` does not take is an unknown field.
    ///
    /// # Errors
    /// 400 or 422 with every mistake.
    pub fn read<T>(self, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Result<T, Problem> {
        let Self(root, mistakes, _permit) = self;
        let value = mistakes.object(&root, read);
        mistakes.finish(value).map_err(Problem::from_mistakes)
    }

    /// The tree, for shapes that are the caller's business.
    ///
    /// # Errors
    /// 400 when a name stands twice.
    pub fn into_node(self) -> Result<Node, Problem> {
        let Self(root, mistakes, _permit) = self;
        mistakes.finish(Some(root)).map_err(Problem::from_mistakes)
    }

    /// The memory that the body has reserved, for whoever keeps what was read from it.
    #[must_use]
    pub fn permit(&self) -> BudgetPermit {
        self.2.clone()
    }
}

impl<S: Send + Sync> FromRequest<S> for Json {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::new(Code::UnsupportedMediaType)
                .detail("Content-Type must be application/json"));
        }
        let Raw(bytes, permit) = Raw::from_request(request, state).await?;
        let mistakes = Mistakes::default();
        match decode::json(&bytes, &mistakes) {
            Some(root) => Ok(Self(root, mistakes, permit)),
            None => Err(Problem::from_mistakes(
                mistakes.finish::<()>(None).err().unwrap_or_default(),
            )),
        }
    }
}

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        read(body, &parts.extensions).await
    }
}

async fn read(mut body: Body, extensions: &Extensions) -> Result<Raw, Problem> {
    let known = Known::of(extensions);
    let limit = known.map(|known| known.limits).unwrap_or_default().body;
    let announced = body.size_hint().lower();
    if announced > limit as u64 {
        return Err(too_large(limit));
    }
    let mut reservation = match known {
        Some(known) => known.budget.reserve(known.owner(), announced)?,
        // Without a server around it, as in a unit test.
        None => BodyMemoryBudget::new(BodyBudgets::anonymous(limit), limit)
            .reserve(BodyOwner::Anonymous(None), announced)?,
    };
    let (mut first, mut grown) = (Bytes::new(), BytesMut::new());
    let began = Instant::now();
    while let Some(frame) = next_frame(&mut body, began, first.len().max(grown.len())).await? {
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if first.len().max(grown.len()) + data.len() > limit {
            return Err(too_large(limit));
        }
        reservation.grow(data.len(), body.is_end_stream())?;
        if first.is_empty() && grown.is_empty() {
            first = data;
        } else {
            // One piece, for each of many small ones would cost more than what is in it.
            grown.extend_from_slice(&std::mem::take(&mut first));
            grown.extend_from_slice(&data);
        }
    }
    if !reservation.is_complete() {
        reservation.grow(0, true)?;
    }
    let bytes = if grown.is_empty() {
        first
    } else {
        grown.freeze()
    };
    Ok(Raw(bytes, reservation.into_permit()))
}

/// The next frame, within the time that a body has that has brought so many bytes.
async fn next_frame(
    body: &mut Body,
    began: Instant,
    received: usize,
) -> Result<Option<Frame<Bytes>>, Problem> {
    let frame = tokio::time::timeout_at(began + time_for(received), body.frame()).await;
    frame
        .map_err(|_| incomplete())?
        .transpose()
        .map_err(|_| incomplete())
}

/// How long a body may take that has brought so many bytes so far: memory is lent only to those who
/// keep sending.
fn time_for(received: usize) -> Duration {
    let millis = received as u64 * 1000 / MIN_BYTES_PER_SECOND;
    MAX_ARRIVAL_TIME.min(BASE_ARRIVAL_TIME + Duration::from_millis(millis))
}

fn too_large(limit: usize) -> Problem {
    Problem::new(Code::BodyTooLarge).detail(format!("the limit is {limit} bytes"))
}

fn incomplete() -> Problem {
    Problem::new(Code::InvalidRequest).detail("the body did not arrive whole")
}

/// `application/json` or `application/*+json`; a charset, if given, is UTF-8 (RFC 8259 section
/// 8.1).
fn is_json(headers: &http::HeaderMap) -> bool {
    let Some(value) = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
    else {
        return false;
    };
    let mut parts = value.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default().to_ascii_lowercase();
    let named = essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"));
    named
        && parts.all(|parameter| {
            let parameter = parameter.to_ascii_lowercase();
            match parameter.strip_prefix("charset=") {
                Some(charset) => charset.trim_matches('"') == "utf-8",
                None => true,
            }
        })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use futures_util::{FutureExt, StreamExt};

    use super::super::{Limits, Peer, RequestId};
    use super::*;

    fn known(body: usize, budget: &BodyMemoryBudget) -> Arc<Known> {
        let limits = Limits {
            body,
            ..Limits::default()
        };
        Known::new(
            Peer::default(),
            RequestId("r".into()),
            limits,
            budget.clone(),
        )
    }

    fn budget(bytes: usize) -> BodyMemoryBudget {
        BodyMemoryBudget::new(BodyBudgets::anonymous(bytes), bytes)
    }

    async fn refusal(content_type: &str, body: &'static str) -> Code {
        let request = Request::builder()
            .header(CONTENT_TYPE, content_type)
            .extension(known(16, &budget(16)))
            .body(Body::from(body))
            .expect("request");
        Json::from_request(request, &())
            .await
            .expect_err("refused")
            .code()
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_refused_by_name() {
        assert_eq!(
            refusal("text/plain", "{}").await,
            Code::UnsupportedMediaType
        );
        assert_eq!(
            refusal("application/json; charset=latin1", "{}").await,
            Code::UnsupportedMediaType
        );
        assert_eq!(
            refusal("application/json", "{\"a\":\"0123456789\"}").await,
            Code::BodyTooLarge
        );
        assert_eq!(
            refusal("application/json", "{\"a\":").await,
            Code::InvalidRequest
        );
    }

    /// A body of these pieces, announced with so many bytes where that is known.
    async fn arrives(
        budget: &BodyMemoryBudget,
        pieces: &'static [&'static str],
        announced: bool,
    ) -> Result<Raw, Problem> {
        let stream =
            futures_util::stream::iter(pieces.iter().map(|piece| Ok::<_, Infallible>(*piece)));
        let body = if announced {
            Body::from(pieces.concat())
        } else {
            Body::from_stream(stream)
        };
        let request = Request::builder().extension(known(20, budget)).body(body);
        Raw::from_request(request.expect("request"), &()).await
    }

    #[tokio::test]
    async fn bodies_beyond_the_budget_are_refused_until_it_is_released() {
        for announced in [true, false] {
            let budget = budget(20);
            let Raw(bytes, permit) = arrives(&budget, &["0123", "4567", "89"], announced)
                .await
                .expect("budget for it");
            assert_eq!(bytes, "0123456789");
            let refused = arrives(&budget, &["0123456", "7890"], announced)
                .await
                .expect_err("11 and 10 are more than 20");
            assert_eq!(refused.code(), Code::Unavailable);
            assert!(refused.render("x").headers.contains_key("retry-after"));
            let Raw(_, other) = arrives(&budget, &["0123456789"], announced)
                .await
                .expect("what was refused left nothing");
            let kept = permit.clone();
            drop((permit, other));
            arrives(&budget, &["0123456", "7890"], announced)
                .await
                .expect_err("a clone keeps the budget");
            drop(kept);
            arrives(&budget, &["01234567890123456789"], announced)
                .await
                .expect("all of it is free again");
        }
    }

    #[tokio::test]
    async fn announced_bytes_that_do_not_arrive_reserve_nothing() {
        let budget = budget(20);
        let silence = futures_util::stream::pending::<Result<Bytes, Infallible>>();
        let request = Request::builder()
            .extension(known(20, &budget))
            .body(Body::from_stream(silence));
        let request = request.expect("request");
        let mut waiting = Box::pin(Raw::from_request(request, &()));
        assert!((&mut waiting).now_or_never().is_none());
        arrives(&budget, &["01234567890123456789"], true)
            .await
            .expect("nothing is taken");
    }

    #[test]
    fn time_for_a_body_grows_with_what_has_arrived() {
        let seconds = |received: usize| time_for(received).as_secs();
        assert_eq!([0, 1, 64 << 10, 900 << 10].map(seconds), [5, 5, 9, 30]);
    }

    #[tokio::test]
    async fn stalled_body_is_given_up_before_a_long_one() {
        let first = futures_util::stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"{"))]);
        let body = Body::from_stream(first.chain(futures_util::stream::pending()));
        let request = Request::builder()
            .extension(known(20, &budget(20)))
            .body(body);
        let began = Instant::now();
        let refused = Raw::from_request(request.expect("request"), &())
            .await
            .expect_err("given up");
        assert_eq!(refused.code(), Code::InvalidRequest);
        assert!((BASE_ARRIVAL_TIME..MAX_ARRIVAL_TIME).contains(&began.elapsed()));
    }
}
