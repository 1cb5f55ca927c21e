//! The live tail of all gateways, merged into one stream of server-sent events for a browser.
//!
//! The events `request` and `dropped` are those of the gateways. `source` names the gateway of the
//! events that follow it, `gateway` tells whether a gateway is followed. A browser that reads slowly
//! slows the reading from the gateways down, which then drop events and count them; the console
//! keeps few chunks. Depends on `access`, `config`, `live`, `processes` and `state`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream;
use postern_core::{Code, Problem};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::access::{Caller, Person};
use crate::config::ProcessKind;
use crate::live::{event, event_stream};
use crate::processes::{Call, Process, Reply, Unreachable};
use crate::state::ConsoleState;

/// Interval at which the token of the browser and the list of gateways are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Delay after which a gateway that cannot be followed is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(3);
/// Maximum time until a gateway answers.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without a byte after which a gateway is taken for dead: it sends a comment every 15 s.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(40);
/// Chunks that wait for the browser.
const MAX_WAITING_CHUNKS: usize = 8;
/// Maximum bytes of the reason for which a gateway refuses.
const MAX_REFUSAL_BYTES: usize = 64 << 10;
/// The reason of a 404.
const NOT_OFFERED: &str = "does not offer a live tail: it is older, or has no [admin] token_env";
/// Maximum bytes of an incomplete event.
const MAX_EVENT_BYTES: usize = 64 << 10;

/// What the tasks of one browser share.
#[derive(Clone, Debug)]
struct Follower {
    state: Arc<ConsoleState>,
    /// Path and query of the tail.
    path: String,
    /// The person, for the log of the gateways.
    subject: String,
    sender: mpsc::Sender<Bytes>,
}

/// Splits a stream behind complete events, so that those of several gateways are not mixed.
#[derive(Debug, Default)]
struct EventSplitter {
    pending: Vec<u8>,
}

/// Streams the requests of all gateways that the query selects, until the token is not accepted any
/// more.
///
/// # Errors
/// 429 if the person follows two others; 400 if the gateways refuse the query; otherwise 503 with the
/// reason if none can be followed.
pub(crate) async fn requests(
    state: Arc<ConsoleState>,
    person: &Person,
    caller: Caller,
    query: &str,
) -> Result<Response, Problem> {
    let permit = state.tail_limit.admit(&person.tail_owner)?;
    let (sender, receiver) = mpsc::channel(MAX_WAITING_CHUNKS);
    let follower = Follower {
        state,
        path: format!("/admin/requests?{query}"),
        subject: person.subject.clone(),
        sender,
    };
    let gateways = follower.state.directory.of(ProcessKind::Gateway);
    let opener = &follower;
    let opened = gateways.into_iter().map(|gateway| async move {
        let result = opener.open(&gateway).await;
        (gateway, result)
    });
    let opened = join_all(opened).await;
    if !opened.iter().any(|(_, result)| result.is_ok()) {
        return Err(refusal(opened));
    }
    tokio::spawn(follower.run(opened, caller));
    // The permit ends when the browser has gone and the body is dropped.
    let chunks = stream::unfold((receiver, permit), |(mut receiver, permit)| async move {
        let chunk = receiver.recv().await?;
        Some((Ok::<_, io::Error>(chunk), (receiver, permit)))
    });
    Ok(event_stream(Body::from_stream(chunks)))
}

/// Returns the problem of gateways of which none can be followed.
fn refusal(opened: Vec<(Process, Result<reqwest::Response, Problem>)>) -> Problem {
    let mut text = "no gateway is configured".to_owned();
    for (gateway, result) in opened {
        match result {
            Err(problem) if problem.code() == Code::InvalidRequest => return problem,
            Err(problem) => text = format!("{}: {}", gateway.name, problem.message()),
            Ok(_) => {}
        }
    }
    Problem::new(Code::Unavailable).detail(text)
}

// === impl Follower ===

impl Follower {
    /// Follows the gateways until the browser, its token or the console ends, or the gateways are
    /// others. The page opens the next stream, or shows the sign-in.
    async fn run(self, opened: Vec<(Process, Result<reqwest::Response, Problem>)>, caller: Caller) {
        let names: Vec<String> = opened.iter().map(|(it, _)| it.name.clone()).collect();
        // Dropping the set ends its tasks.
        let mut tasks = JoinSet::new();
        for (gateway, result) in opened {
            tasks.spawn(self.clone().follow(gateway, result));
        }
        loop {
            tokio::select! {
                () = self.sender.closed() => return,
                () = self.state.shutdown.cancelled() => return,
                () = sleep(CHECK_INTERVAL) => {}
            }
            let gateways = self.state.directory.of(ProcessKind::Gateway);
            let is_same = gateways.iter().map(|it| &it.name).eq(&names);
            if !is_same || self.state.access.authenticate(&caller).await.is_err() {
                return;
            }
        }
    }

    /// Follows one gateway, again and again.
    async fn follow(self, gateway: Process, mut opened: Result<reqwest::Response, Problem>) {
        loop {
            let reason = match opened {
                Ok(response) => {
                    let following = json!({ "name": gateway.name, "isFollowed": true });
                    self.send(event("gateway", &following.to_string())).await;
                    self.pass_on(&gateway, response).await.to_owned()
                }
                Err(problem) => problem.message().to_owned(),
            };
            let ended = json!({ "name": gateway.name, "isFollowed": false, "reason": reason });
            self.send(event("gateway", &ended.to_string())).await;
            sleep(RETRY_DELAY).await;
            opened = self.open(&gateway).await;
        }
    }

    async fn send(&self, chunk: Bytes) {
        // Without a browser, the task is about to be ended.
        let _no_browser = self.sender.send(chunk).await;
    }

    /// Opens the tail of a gateway.
    async fn open(&self, gateway: &Process) -> Result<reqwest::Response, Problem> {
        let call = Call {
            operator: Some(self.subject.as_str()),
            ..Call::get(self.path.as_str())
        };
        let opening = async {
            let sent = self.state.directory.send(gateway, &call).await;
            let response = sent.map_err(|error| (Code::Unavailable, error.reason))?;
            let status = response.status().as_u16();
            let code = match status {
                200..300 => return Ok(response),
                404 => return Err((Code::Unavailable, NOT_OFFERED.to_owned())),
                400 => Code::InvalidRequest,
                _ => Code::Unavailable,
            };
            let reply = Reply::read(response, MAX_REFUSAL_BYTES).await;
            let cut = |error: Unreachable| format!("{status}: {}", error.reason);
            Err((code, reply.map_or_else(cut, |reply| reply.problem())))
        };
        let late = format!("no answer within {} s", OPEN_TIMEOUT.as_secs());
        let opened = timeout(OPEN_TIMEOUT, opening).await;
        let opened = opened.unwrap_or(Err((Code::Unavailable, late)));
        opened.map_err(|(code, reason)| Problem::new(code).detail(reason))
    }

    /// Passes events on until the gateway ends the stream. Returns the reason.
    async fn pass_on(&self, gateway: &Process, mut response: reqwest::Response) -> &'static str {
        let source = event("source", &json!({ "name": gateway.name }).to_string());
        let mut splitter = EventSplitter::default();
        loop {
            let chunk = match timeout(SILENCE_TIMEOUT, response.chunk()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => return "the gateway ended the stream",
                Ok(Err(_)) => return "the connection was lost",
                Err(_) => return "the gateway is silent",
            };
            let complete = splitter.push(&chunk);
            if !complete.is_empty() {
                let mut events = source.to_vec();
                events.extend_from_slice(&complete);
                self.send(Bytes::from(events)).await;
            }
        }
    }
}

// === impl EventSplitter ===

impl EventSplitter {
    /// Adds a chunk. Returns the events that are complete.
    fn push(&mut self, chunk: &[u8]) -> Vec<u8> {
        self.pending.extend_from_slice(chunk);
        let end = self.pending.windows(2).rposition(|pair| pair == b"\n\n");
        let rest = self.pending.split_off(end.map_or(0, |at| at + 2));
        let complete = std::mem::replace(&mut self.pending, rest);
        if self.pending.len() > MAX_EVENT_BYTES {
            self.pending.clear();
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_a_tail_are_passed_on_complete() {
        let mut splitter = EventSplitter::default();
        let chunks = ["data: a\n", "\ndata: b\n\nda", "ta: c", "\n\n"];
        let events = chunks.map(|chunk| splitter.push(chunk.as_bytes()));
        let expected: [&[u8]; 4] = [b"", b"data: a\n\ndata: b\n\n", b"", b"data: c\n\n"];
        assert_eq!(events, expected);
    }

    #[test]
    fn endless_event_is_not_kept() {
        let mut splitter = EventSplitter::default();
        for _ in 0..100 {
            assert!(splitter.push(&[b'x'; 1024]).is_empty());
        }
        assert!(splitter.pending.len() <= MAX_EVENT_BYTES);
    }
}
