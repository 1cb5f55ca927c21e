//! Startup while the database is unavailable: the process waits, answers 503 and is not ready.

use std::os::fd::AsFd;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use axum::Router;
use axum::routing::any;
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::admin::{self, Health};
use crate::database::{Availability, Database, DatabaseOptions};
use crate::exit::Exit;
use crate::http::{Limits, serve};
use crate::problem::{Code, Problem};
use crate::service_manager::ServiceManager;

/// Time between two connection attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Failed attempts per log message.
const ATTEMPTS_PER_WARNING: u32 = 30;

/// Waits until the database accepts connections. Returns `false` if `stop` is cancelled first.
///
/// While it waits, `public` answers every request with 503 `unavailable`, and `/readyz` on `admin`
/// reports the reason.
///
/// # Errors
/// Exit status 64 if the URL names no supported database; 69 if the database rejects the
/// connection, for example because of a wrong password, or if a socket cannot be duplicated.
/// Waiting would not help in these cases.
pub async fn wait_for_database(
    url: &str,
    name: &str,
    public: &TcpListener,
    admin: &TcpListener,
    service_manager: Option<&ServiceManager>,
    stop: &CancellationToken,
) -> Result<bool, Exit> {
    let options = DatabaseOptions::new(name);
    let Availability::Unavailable(reason) = Database::probe(url, &options).await? else {
        return Ok(true);
    };
    tracing::warn!(%reason, "database unavailable, waiting");
    if let Some(service_manager) = service_manager {
        service_manager.notify_ready();
    }
    let health = Health::new();
    let check = health.check("database");
    check.set_failed(reason);
    let (waiting, mut servers) = (stop.child_token(), JoinSet::new());
    let unavailable = || any(|| async { Problem::new(Code::Unavailable).retry_after(1) });
    let unavailable = Router::new()
        .route("/", unavailable())
        .route("/{*path}", unavailable());
    let admin_router = admin::router(health, Registry::new());
    for (listener, router) in [(public, unavailable), (admin, admin_router)] {
        servers.spawn(serve(
            duplicate_listener(listener)?,
            router,
            Limits::default(),
            waiting.clone(),
        ));
    }
    let mut is_available = false;
    for attempt in 1_u32.. {
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(RETRY_INTERVAL) => {}
        }
        match Database::probe(url, &options).await? {
            Availability::Available => {
                is_available = true;
                break;
            }
            Availability::Unavailable(reason) => {
                if attempt % ATTEMPTS_PER_WARNING == 0 {
                    tracing::warn!(%reason, attempt, "database still unavailable");
                }
                check.set_failed(reason);
            }
        }
    }
    waiting.cancel();
    servers.join_all().await;
    Ok(is_available)
}

/// Duplicates the file descriptor, so that the caller's listener stays open.
fn duplicate_listener(listener: &TcpListener) -> Result<TcpListener, Exit> {
    let copy = listener
        .as_fd()
        .try_clone_to_owned()
        .map(std::net::TcpListener::from);
    copy.and_then(TcpListener::from_std)
        .map_err(|error| Exit::unavailable(format!("cannot duplicate a listening socket: {error}")))
}
