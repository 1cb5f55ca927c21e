//! A stub of the actor service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;

use super::{CallPauses, PausePoint, spawn};

/// An actor service on a loopback socket.
pub(crate) struct StubActors {
    pub(crate) url: String,
    profiles: Mutex<BTreeMap<String, Value>>,
    /// The number of next calls that fail with 503.
    pub(crate) failures_left: AtomicU32,
    /// The status with which profiles are rejected, or 0.
    pub(crate) rejection_status: AtomicU32,
    pub(crate) calls: AtomicU32,
    /// Paused calls.
    pub(crate) pauses: CallPauses,
}

impl StubActors {
    pub(super) async fn start() -> Arc<Self> {
        let mut stub = None;
        spawn(|url| {
            let actors = Arc::new(Self {
                url: url.to_owned(),
                profiles: Mutex::default(),
                failures_left: AtomicU32::new(0),
                rejection_status: AtomicU32::new(0),
                calls: AtomicU32::new(0),
                pauses: CallPauses::default(),
            });
            stub = Some(Arc::clone(&actors));
            Router::new()
                .route("/actors/register", post(register))
                .route("/actors/{id}", get(find))
                .with_state(actors)
        })
        .await;
        stub.expect("created with the router")
    }

    pub(crate) fn profile(&self, subject: &str) -> Option<Value> {
        self.profiles.lock().get(subject).cloned()
    }

    fn fails(&self) -> bool {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.failures_left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            })
            .is_ok()
    }
}

async fn register(
    State(actors): State<Arc<StubActors>>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> StatusCode {
    if actors.fails() {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    if !headers
        .get("authorization")
        .is_some_and(|value| value.as_bytes().starts_with(b"Bearer "))
    {
        return StatusCode::UNAUTHORIZED;
    }
    let rejection_status = actors.rejection_status.load(Ordering::SeqCst);
    if rejection_status != 0 {
        return StatusCode::from_u16(rejection_status.try_into().expect("a status"))
            .expect("a status");
    }
    actors.pauses.pass("register", PausePoint::Before).await;
    let subject = body["actorId"].as_str().expect("actorId").to_owned();
    let before = actors.profiles.lock().insert(subject, body);
    actors.pauses.pass("register", PausePoint::After).await;
    if before.is_some() {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    }
}

async fn find(
    State(actors): State<Arc<StubActors>>,
    Path(id): Path<String>,
) -> (StatusCode, Json<Value>) {
    if actors.fails() {
        return (StatusCode::SERVICE_UNAVAILABLE, Json(Value::Null));
    }
    match actors.profile(&id) {
        Some(profile) => (StatusCode::OK, Json(profile)),
        None => (StatusCode::NOT_FOUND, Json(Value::Null)),
    }
}
