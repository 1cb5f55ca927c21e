//! A start while the database is away: the process waits, answers 503 and is not ready.

use std::os::fd::AsFd;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use axum::Router;
use axum::routing::any;
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::admin::{self, Health};
use crate::database::{Contact, Database, Options};
use crate::exit::Exit;
use crate::http::{Limits, serve};
use crate::problem::{Code, Problem};
use crate::supervisor::Supervisor;

/// The pause between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Attempts between two lines in the log.
const ATTEMPTS_PER_WARNING: u32 = 30;

/// Returns once the database answers; `false` if the stop began before. Until then requests get
/// 503, and `/readyz` says why.
///
/// # Errors
/// Status 64 if the URL names no store that we know; 69 if the store turns us down, as for a wrong
/// password, or a socket cannot be shared: waiting would not help.
pub async fn until_database(
    url: &str,
    name: &str,
    (public, admin): (&TcpListener, &TcpListener),
    supervisor: Option<&Supervisor>,
    stop: &CancellationToken,
) -> Result<bool, Exit> {
    let options = Options::new(name);
    let Contact::Away(reason) = Database::contact(url, &options).await? else {
        return Ok(true);
    };
    tracing::warn!(%reason, "the database is away; waiting for it");
    if let Some(supervisor) = supervisor {
        supervisor.announce();
    }
    let health = Health::new();
    let check = health.check("database");
    check.set_failed(reason);
    let (waiting, mut servers) = (stop.child_token(), JoinSet::new());
    let unavailable = || any(|| async { Problem::new(Code::Unavailable).retry_after(1) });
    let unavailable = Router::new()
        .route("/", unavailable())
        .route("/{*path}", unavailable());
    let operators = admin::router(health, Registry::new());
    for (listener, router) in [(public, unavailable), (admin, operators)] {
        servers.spawn(serve(
            shared(listener)?,
            router,
            Limits::default(),
            waiting.clone(),
        ));
    }
    let mut is_there = false;
    for attempt in 1_u32.. {
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(RETRY_INTERVAL) => {}
        }
        match Database::contact(url, &options).await? {
            Contact::Made => {
                is_there = true;
                break;
            }
            Contact::Away(reason) => {
                if attempt % ATTEMPTS_PER_WARNING == 0 {
                    tracing::warn!(%reason, "the database is still away");
                }
                check.set_failed(reason);
            }
        }
    }
    waiting.cancel();
    servers.join_all().await;
    Ok(is_there)
}

/// The same socket once more; the caller's stays open.
fn shared(listener: &TcpListener) -> Result<TcpListener, Exit> {
    let copy = listener
        .as_fd()
        .try_clone_to_owned()
        .map(std::net::TcpListener::from);
    copy.and_then(TcpListener::from_std)
        .map_err(|error| Exit::unavailable(format!("cannot share a listening socket: {error}")))
}
