//! Streams of server-sent events: a fragment after each sample.
//!
//! The script reads them by `fetch` with the header `Authorization`, because `EventSource` cannot
//! send one. A stream ends when its token is no longer accepted. Depends on `access`, `pages`,
//! `sampling`, `state` and `widgets`.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::Uri;
use http::header::CONTENT_TYPE;
use postern_core::Code;

use crate::access::Caller;
use crate::pages::{Context, render};
use crate::sampling::SAMPLE_INTERVAL;
use crate::state::ConsoleState;
use crate::widgets::to_text;

/// Streams a fragment, rendered again after each sample, until the token is not accepted any more.
pub(crate) fn fragments(
    state: Arc<ConsoleState>,
    page: String,
    uri: Uri,
    caller: Caller,
) -> Response {
    let shutdown = state.shutdown.clone();
    let parts = (state, page, uri, caller);
    let events = stream::unfold(parts, |(state, page, uri, caller)| async move {
        tokio::select! {
            () = state.sampler.sampled.notified() => {}
            () = tokio::time::sleep(SAMPLE_INTERVAL) => {}
        }
        let rendered = match state.access.authenticate(&caller).await {
            Ok(person) => {
                let context = Context::new(&state, &person, uri.query());
                Box::pin(render(&page, &context)).await
            }
            Err(problem) => Err(problem),
        };
        let event = match rendered {
            Ok(markup) => event("fragment", &to_text(markup)),
            Err(problem) if problem.code() == Code::Unavailable => {
                event("failed", problem.message())
            }
            // The next request of the page shows the sign-in, or the problem.
            Err(_) => return None,
        };
        Some((Ok::<_, std::io::Error>(event), (state, page, uri, caller)))
    });
    event_stream(Body::from_stream(
        events.take_until(shutdown.cancelled_owned()),
    ))
}

/// Formats an event; each line of the data has its own field.
pub(crate) fn event(name: &str, data: &str) -> Bytes {
    let mut text = format!("event: {name}\n");
    for line in data.lines() {
        text.push_str("data: ");
        text.push_str(line);
        text.push('\n');
    }
    text.push('\n');
    Bytes::from(text)
}

/// Returns the response with a stream of events.
pub(crate) fn event_stream(body: Body) -> Response {
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}
