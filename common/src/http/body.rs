use std::pin::pin;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::Extensions;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use hyper::body::Body as _;

use super::Held;
use super::rim::Known;
use super::room::Room;
use crate::decode::{self, Mistakes, Node, Object};
use crate::problem::{Code, Problem};

/// How long a body may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(30);

/// A request body that is JSON: the content type is right, the size within the limit, every name stands once.
///
/// The refusals are 415, 413, 400 `invalid_request`, and 503 where the bodies in hand have taken all the room.
#[derive(Debug)]
pub struct Json(Node, Mistakes, Held);

/// A request body as it came, within the limit. The refusals are 413, 400 `invalid_request`, and 503 as for [`Json`].
#[derive(Debug)]
pub struct Raw(pub Bytes, pub Held);

impl Json {
    /// Reads the body as an object; whatever `read` does not take is an unknown field.
    ///
    /// # Errors
    /// 400 or 422 with every mistake.
    pub fn read<T>(self, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Result<T, Problem> {
        let Self(root, mistakes, _held) = self;
        let value = mistakes.object(&root, read);
        mistakes.finish(value).map_err(Problem::from_mistakes)
    }

    /// The tree, for shapes that are the caller's business.
    ///
    /// # Errors
    /// 400 when a name stands twice.
    pub fn into_node(self) -> Result<Node, Problem> {
        let Self(root, mistakes, _held) = self;
        mistakes.finish(Some(root)).map_err(Problem::from_mistakes)
    }

    /// The room that the body has taken, for whoever keeps what was read in it while others are waited for.
    #[must_use]
    pub fn held(&self) -> Held {
        self.2.clone()
    }
}

impl<S: Send + Sync> FromRequest<S> for Json {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(
                Problem::new(Code::UnsupportedMediaType).detail("Content-Type must be application/json")
            );
        }
        let Raw(bytes, held) = Raw::from_request(request, state).await?;
        let mistakes = Mistakes::default();
        match decode::json(&bytes, &mistakes) {
            Some(root) => Ok(Self(root, mistakes, held)),
            None => Err(Problem::from_mistakes(mistakes.finish::<()>(None).err().unwrap_or_default())),
        }
    }
}

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let mut reading = pin!(arrive(body, &parts.extensions));
        // Mostly it is there already.
        if let Some(arrived) = reading.as_mut().now_or_never() {
            return arrived;
        }
        tokio::time::timeout(ARRIVAL, reading).await.unwrap_or_else(|_| Err(broken()))
    }
}

/// Room is taken for what has come, and for nothing before.
async fn arrive(mut body: Body, extensions: &Extensions) -> Result<Raw, Problem> {
    let known = Known::of(extensions);
    let limit = known.map(|known| known.limits).unwrap_or_default().body;
    // Where no server stands around it, as in a unit test, the room is its own.
    let room = known.map_or_else(|| Room::new(limit), |known| known.room.clone());
    let announced = body.size_hint().lower();
    if announced > limit as u64 {
        return Err(too_large(limit));
    }
    room.expect(announced)?;
    let (mut taken, mut first, mut grown) = (None, Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| broken())?.into_data() else { continue };
        if first.len().max(grown.len()) + data.len() > limit {
            return Err(too_large(limit));
        }
        room.take(&mut taken, data.len())?;
        if first.is_empty() && grown.is_empty() {
            first = data;
        } else {
            // One piece, for each of many small ones would cost more than what is in it.
            grown.extend_from_slice(&std::mem::take(&mut first));
            grown.extend_from_slice(&data);
        }
    }
    let bytes = if grown.is_empty() { first } else { grown.freeze() };
    Ok(Raw(bytes, taken.into()))
}

fn too_large(limit: usize) -> Problem {
    Problem::new(Code::BodyTooLarge).detail(format!("the limit is {limit} bytes"))
}

fn broken() -> Problem {
    Problem::new(Code::InvalidRequest).detail("the body did not arrive whole")
}

/// `application/json` or `application/*+json`; a charset, if given, is UTF-8 (RFC 8259 section 8.1).
fn is_json(headers: &http::HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let mut parts = value.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default().to_ascii_lowercase();
    let named =
        essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
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

    use super::super::{Limits, Peer, RequestId};
    use super::*;

    /// What a server with this room for bodies, and this limit for each, would know of a request.
    fn known(body: usize, room: &Room) -> Arc<Known> {
        Known::new(Peer::default(), RequestId("r".into()), Limits { body, ..Limits::default() }, room.clone())
    }

    async fn refusal(content_type: &str, body: &'static str) -> Code {
        let request = Request::builder()
            .header(CONTENT_TYPE, content_type)
            .extension(known(16, &Room::new(16)))
            .body(Body::from(body))
            .expect("request");
        Json::from_request(request, &()).await.expect_err("refused").code()
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_refused_by_name() {
        assert_eq!(refusal("text/plain", "{}").await, Code::UnsupportedMediaType);
        assert_eq!(refusal("application/json; charset=latin1", "{}").await, Code::UnsupportedMediaType);
        assert_eq!(refusal("application/json", "{\"a\":\"0123456789\"}").await, Code::BodyTooLarge);
        assert_eq!(refusal("application/json", "{\"a\":").await, Code::InvalidRequest);
    }

    /// A body of these pieces, announced with so many bytes where that is known.
    async fn arrives(room: &Room, pieces: &'static [&'static str], announced: bool) -> Result<Raw, Problem> {
        let stream = futures_util::stream::iter(pieces.iter().map(|piece| Ok::<_, Infallible>(*piece)));
        let body = if announced { Body::from(pieces.concat()) } else { Body::from_stream(stream) };
        let request = Request::builder().extension(known(64, room)).body(body);
        Raw::from_request(request.expect("request"), &()).await
    }

    #[tokio::test]
    async fn bodies_in_hand_are_bounded_together_and_the_rest_is_told_to_come_back() {
        for announced in [true, false] {
            let room = Room::new(20);
            let Raw(bytes, held) =
                arrives(&room, &["0123", "4567", "89"], announced).await.expect("room for it");
            assert_eq!(bytes, "0123456789");
            let refused = arrives(&room, &["0123456", "7890"], announced)
                .await
                .expect_err("11 and 10 are more than 20");
            assert_eq!(refused.code(), Code::Unavailable);
            assert!(refused.render("x").headers.contains_key("retry-after"));
            let Raw(_, other) =
                arrives(&room, &["0123456789"], announced).await.expect("what was refused left nothing");
            let kept = held.clone();
            drop((held, other));
            arrives(&room, &["0123456", "7890"], announced).await.expect_err("a clone keeps the room");
            drop(kept);
            arrives(&room, &["01234567890123456789"], announced).await.expect("all of it is free again");
        }
    }

    #[tokio::test]
    async fn what_is_announced_and_does_not_come_takes_no_room() {
        let room = Room::new(20);
        let silence = futures_util::stream::pending::<Result<Bytes, Infallible>>();
        let request = Request::builder().extension(known(64, &room)).body(Body::from_stream(silence));
        let request = request.expect("request");
        let mut waiting = Box::pin(Raw::from_request(request, &()));
        assert!((&mut waiting).now_or_never().is_none());
        arrives(&room, &["01234567890123456789"], true).await.expect("nothing is taken");
    }
}
