//! Streams of server-sent events: a fragment every 5 s, and the live tail of all gateways.
//!
//! The script reads them by `fetch` with the header `Authorization`, because `EventSource` cannot
//! send one. A stream ends when its token is no longer accepted. Depends on `access`,
//! `processes`, `sampling` and `state`.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Uri};
use postern_common::{Code, Problem};
use tokio_util::sync::CancellationToken;

use crate::access::Person;
use crate::config::ProcessKind;
use crate::processes::{Call, ProcessDirectory};
use crate::sampling::SAMPLE_INTERVAL;
use crate::state::ConsoleState;

/// Streams a fragment, rendered again after each sample, until the token is not accepted any more.
pub(crate) fn fragments(
    state: Arc<ConsoleState>,
    person: Person,
    page: String,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let shutdown = state.shutdown.clone();
    let parts = (state, person, page, uri, headers);
    let events = stream::unfold(parts, |(state, person, page, uri, headers)| async move {
        tokio::time::sleep(SAMPLE_INTERVAL).await;
        let event = match state.access.authenticate(&headers).await {
            Ok(_) => match state.render(&person, &page, &uri).await {
                Ok(markup) => event("fragment", &markup.into_string()),
                Err(_) => event("failed", ""),
            },
            // The next request of the page shows the sign-in.
            Err(_) => return None,
        };
        Some((
            Ok::<_, std::io::Error>(event),
            (state, person, page, uri, headers),
        ))
    });
    response(Body::from_stream(
        events.take_until(shutdown.cancelled_owned()),
    ))
}

/// Streams the requests of all gateways that offer a live tail.
///
/// # Errors
/// 503 with the reason if none does.
pub(crate) async fn requests(
    directory: &ProcessDirectory,
    query: &str,
    shutdown: CancellationToken,
) -> Result<Response, Problem> {
    let call = Call::get(format!("/admin/requests?{query}"));
    let (mut tails, mut reason) = (Vec::new(), "no gateway is configured".to_owned());
    for process in directory.of(ProcessKind::Gateway) {
        match directory.send(&process, &call).await {
            Ok(response) if response.status().is_success() => {
                let chunks = response
                    .bytes_stream()
                    .map(|chunk| chunk.map_err(std::io::Error::other));
                tails.push(complete_events(chunks).boxed());
            }
            Ok(response) if response.status() == http::StatusCode::NOT_FOUND => {
                reason = format!("{} does not offer a live tail", process.name);
            }
            Ok(response) => reason = format!("{}: {}", process.name, response.status()),
            Err(error) => reason = format!("{}: {error}", process.name),
        }
    }
    if tails.is_empty() {
        return Err(Problem::new(Code::Unavailable).detail(reason));
    }
    let merged = stream::select_all(tails).take_until(shutdown.cancelled_owned());
    Ok(response(Body::from_stream(merged)))
}

/// Splits a stream behind complete events, so that those of several gateways are not mixed.
fn complete_events(
    chunks: impl stream::Stream<Item = std::io::Result<Bytes>> + Send + 'static,
) -> impl stream::Stream<Item = std::io::Result<Bytes>> + Send {
    /// Maximum bytes of an incomplete event.
    const MAX_EVENT_BYTES: usize = 64 << 10;
    chunks
        .scan(Vec::new(), |pending, chunk| {
            let event = chunk.map(|chunk| {
                pending.extend_from_slice(&chunk);
                let end = pending.windows(2).rposition(|pair| pair == b"\n\n");
                let rest = pending.split_off(end.map_or(0, |at| at + 2));
                let complete = std::mem::replace(pending, rest);
                if pending.len() > MAX_EVENT_BYTES {
                    pending.clear();
                }
                Bytes::from(complete)
            });
            futures_util::future::ready(Some(event))
        })
        .filter(|event| {
            let is_empty = matches!(event, Ok(bytes) if bytes.is_empty());
            futures_util::future::ready(!is_empty)
        })
}

/// Formats an event; each line of the data has its own field.
fn event(name: &str, data: &str) -> Bytes {
    let mut text = format!("event: {name}\n");
    for line in data.lines() {
        text.push_str("data: ");
        text.push_str(line);
        text.push('\n');
    }
    text.push('\n');
    Bytes::from(text)
}

fn response(body: Body) -> Response {
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn events_of_a_tail_are_passed_on_complete() {
        let chunks = ["data: a\n", "\ndata: b\n\nda", "ta: c", "\n\n"];
        let chunks = chunks.map(|chunk| Ok(Bytes::from(chunk)));
        let events = complete_events(stream::iter(chunks)).map(|event| event.expect("no error"));
        let events: Vec<Bytes> = events.collect().await;
        assert_eq!(events, ["data: a\n\ndata: b\n\n", "data: c\n\n"]);
    }
}
