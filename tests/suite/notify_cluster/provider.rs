//! A provider of text messages that records every call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use http::StatusCode;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};

use super::EVENT_POLL_TIMEOUT;

/// A call received by the provider.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The `Idempotency-Key`, which is the notification's id.
    pub(crate) id: String,
    pub(crate) at: Instant,
}

/// A provider of text messages over HTTP.
#[derive(Clone)]
pub(crate) struct Provider {
    pub(super) url: String,
    shared: Arc<Shared>,
}

struct Shared {
    calls: Mutex<Vec<Call>>,
    changed: Notify,
    /// Responses are sent while this is true; calls are recorded before.
    responds: watch::Sender<bool>,
    /// Status of every response; 202 without one.
    status: Mutex<Option<u16>>,
}

// === impl Provider ===

impl Provider {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("the loopback has a free port");
        let url = format!(
            "http://{}",
            listener
                .local_addr()
                .expect("a bound socket has an address")
        );
        let shared = Arc::new(Shared {
            calls: Mutex::default(),
            changed: Notify::new(),
            responds: watch::Sender::new(true),
            status: Mutex::default(),
        });
        let router = Router::new()
            .route("/messages", axum::routing::post(record_call))
            .with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, shared }
    }

    /// Waits for the next call, for at most [`EVENT_POLL_TIMEOUT`].
    pub(crate) async fn next_call_or_timeout(&self) {
        let _ = tokio::time::timeout(EVENT_POLL_TIMEOUT, self.shared.changed.notified()).await;
    }

    /// Records further calls without responding until [`Provider::resume_responses`].
    pub(crate) fn pause_responses(&self) {
        self.shared.responds.send_replace(false);
    }

    /// Sends the delayed responses, and those to further calls at once.
    pub(crate) fn resume_responses(&self) {
        self.shared.responds.send_replace(true);
    }

    /// Responds to further calls with this status, or with 202 for `None`.
    pub(crate) fn respond_with(&self, status: Option<u16>) {
        *self.shared.status.lock() = status;
    }

    /// Returns the recorded calls.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.shared.calls.lock().clone()
    }

    /// Returns the recorded calls once they satisfy a condition.
    pub(crate) async fn until(
        &self,
        timeout: Duration,
        is_satisfied: impl Fn(&[Call]) -> bool,
    ) -> Vec<Call> {
        let waited = tokio::time::timeout(timeout, async {
            loop {
                let changed = self.shared.changed.notified();
                if is_satisfied(&self.shared.calls.lock()) {
                    return;
                }
                changed.await;
            }
        });
        let calls = waited.await.map(|()| self.calls());
        calls.unwrap_or_else(|_| {
            panic!(
                "condition not reached in {timeout:?}: {} calls",
                self.calls().len()
            )
        })
    }
}

async fn record_call(State(shared): State<Arc<Shared>>, request: Request) -> StatusCode {
    let id = request.headers()["idempotency-key"]
        .to_str()
        .expect("an id")
        .to_owned();
    let status = *shared.status.lock();
    shared.calls.lock().push(Call {
        id,
        at: Instant::now(),
    });
    shared.changed.notify_waiters();
    let mut responds = shared.responds.subscribe();
    let _ = responds.wait_for(|responds| *responds).await;
    status.map_or(StatusCode::ACCEPTED, |status| {
        StatusCode::from_u16(status).expect("a status")
    })
}
