//! The accept loop of a server, with a limit of connections and graceful shutdown.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Size of the accept queue of a listener (tokio's default).
const ACCEPT_QUEUE_SIZE: usize = 1024;

/// Pause after an error of the operating system, such as no file descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// Serves each connection in a task of its own, at most `limit` at a time; further ones wait in the
/// accept queue. After the shutdown the connections in the accept queue are served as well, because
/// closing the listener would reset them. Returns when all connections are closed, or false if that
/// takes longer than `drain`; then their tasks continue.
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
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &permits) => accepted,
        };
        if let Some((stream, peer, permit)) = accepted {
            spawn(stream, peer, permit);
        }
    }
    drain_accept_queue(listener, &permits, spawn);
    tasks.close();
    tokio::time::timeout(drain, tasks.wait()).await.is_ok()
}

/// Accepts the next connection. Returns `None` after an error of the operating system.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer, permit)),
        Err(error) => {
            postern_core::log_limited!(warn, %error, "accept failed");
            tokio::time::sleep(RETRY_DELAY).await;
            None
        }
    }
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
            Err(error) => postern_core::log_limited!(warn, %error, "accept failed"),
        }
    }
}
