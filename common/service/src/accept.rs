//! The accept loop of a server, with a limit of connections and graceful shutdown.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use postern_core::backoff::{Backoff, Delays};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Size of the accept queue of a listener (tokio's default).
const ACCEPT_QUEUE_SIZE: usize = 1024;

/// Delays after errors of the operating system, such as no file descriptors.
const RETRY_DELAYS: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(100));

/// Serves each connection in a task of its own, at most `limit` at a time; further ones wait in the
/// accept queue. Returns when all connections are closed after the shutdown, or false if that takes
/// longer than `drain`; then their tasks continue.
pub async fn serve_connections<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    limit: usize,
    drain: Duration,
    shutdown: &CancellationToken,
    serve: impl Fn(TcpStream, SocketAddr) -> F,
) -> bool {
    let (permits, tasks) = (Arc::new(Semaphore::new(limit)), TaskTracker::new());
    let spawn = |stream: TcpStream, peer, permit: OwnedSemaphorePermit| {
        let _best_effort = stream.set_nodelay(true);
        let serving = serve(stream, peer);
        tasks.spawn(async move {
            serving.await;
            drop(permit);
        });
    };
    accept_connections(listener, &permits, shutdown, spawn).await;
    tasks.close();
    tokio::time::timeout(drain, tasks.wait()).await.is_ok()
}

/// Accepts a connection for each permit until the shutdown, and then those in the accept queue,
/// because closing the listener would reset them.
pub async fn accept_connections(
    listener: TcpListener,
    permits: &Arc<Semaphore>,
    shutdown: &CancellationToken,
    spawn: impl Fn(TcpStream, SocketAddr, OwnedSemaphorePermit),
) {
    let mut delays = RETRY_DELAYS.delays();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, permits, &mut delays) => accepted,
        };
        if let Some((stream, peer, permit)) = accepted {
            spawn(stream, peer, permit);
        }
    }
    drain_accept_queue(listener, permits, spawn);
}

/// Accepts the next connection. Returns `None` after an error of the operating system.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
    delays: &mut Delays,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => {
            delays.reset();
            Some((stream, peer, permit))
        }
        Err(error) => {
            warn_of_failed_accept(&error);
            tokio::time::sleep(delays.next_delay()).await;
            None
        }
    }
}

/// Logs at most one warning in ten seconds: without file descriptors, each attempt fails.
fn warn_of_failed_accept(error: &std::io::Error) {
    postern_core::log_limited!(warn, %error, "connection accept failed");
}

fn drain_accept_queue(
    listener: TcpListener,
    permits: &Arc<Semaphore>,
    spawn: impl Fn(TcpStream, SocketAddr, OwnedSemaphorePermit),
) {
    let Ok(listener) = listener.into_std() else {
        return;
    };
    for _ in 0..ACCEPT_QUEUE_SIZE {
        let Ok(permit) = Arc::clone(permits).try_acquire_owned() else {
            return;
        };
        match listener.accept() {
            Ok((stream, peer)) => {
                if stream.set_nonblocking(true).is_ok()
                    && let Ok(stream) = TcpStream::from_std(stream)
                {
                    spawn(stream, peer, permit);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            // The error concerns this connection only (accept(2)); others may follow it.
            Err(error) => warn_of_failed_accept(&error),
        }
    }
}
