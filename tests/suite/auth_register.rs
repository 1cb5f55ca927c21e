//! SIGKILL during a registration: repeating the registration completes it without duplicates.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::extract::{Path, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use postern_tests::http_body::json;
use postern_tests::surface::{PASSWORD, text};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::auth_cluster::{AuthCluster, Changes};

/// An actor service that never answers its first request.
#[derive(Default)]
struct Actors {
    has_held: AtomicBool,
    arrived: Notify,
    saved: AtomicUsize,
}

async fn start(actors: Arc<Actors>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("the loopback has a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let router = Router::new()
        .route("/actors/register", post(register))
        .route(
            "/actors/{id}",
            get(async |Path(_): Path<String>| StatusCode::NOT_FOUND),
        )
        .with_state(actors);
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

async fn register(State(actors): State<Arc<Actors>>, Json(_): Json<Value>) -> StatusCode {
    if !actors.has_held.swap(true, Ordering::SeqCst) {
        actors.arrived.notify_one();
        std::future::pending::<()>().await;
    }
    actors.saved.fetch_add(1, Ordering::SeqCst);
    StatusCode::CREATED
}

#[tokio::test]
async fn repeated_registration_completes_after_a_kill() {
    let mut cluster = AuthCluster::start().await;
    let actors = Arc::new(Actors::default());
    let changes = Changes {
        actor_service: Some(start(Arc::clone(&actors)).await),
        ..Changes::default()
    };
    let first = cluster.replica(&changes).await;
    let body = json!({"email": "kill@example.com", "password": PASSWORD});
    let client = first.surface.client().clone();
    let cut_off = tokio::spawn({
        let body = body.clone();
        async move { client.post("/auth/register").json(&body).try_send().await }
    });
    actors.arrived.notified().await;
    // The pool has created the user, and the profile is being saved.
    first.running.kill().await;
    assert!(cut_off.await.expect("no panic").is_none(), "no response");
    // The lock of the killed process expires after 45 s, or with Redis at once.
    cluster.redis.kill().await;
    cluster.redis.restart().await;
    let second = cluster.replica(&changes).await;
    let tokens = second
        .post("/auth/register", &body)
        .await
        .expect(201)
        .json();
    assert!(!text(&tokens, "accessToken").is_empty());
    assert_eq!(actors.saved.load(Ordering::SeqCst), 1);
    let login = second
        .post(
            "/auth/login",
            &json!({"email": "kill@example.com", "password": PASSWORD}),
        )
        .await;
    let _ = login.expect(200);
    let _ = second.running.stop("TERM").await;
}
