//! The signals of all programs; docs/manual/operate.md lists them.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use postern_core::exit::Exit;

/// Installs the handlers of all signals, and returns a token that SIGTERM or SIGINT cancels. The
/// first thing that a program does when it starts to run: a signal without a handler ends it.
///
/// SIGHUP, SIGUSR1 and SIGUSR2 have no effect but where a task listens for them.
pub fn install() -> Result<CancellationToken, Exit> {
    let mut terminate = handler(SignalKind::terminate())?;
    let mut interrupt = handler(SignalKind::interrupt())?;
    ignore_requests()?;
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    });
    Ok(token)
}

/// Keeps the signals that request something, such as a reload, from ending the process. For a program
/// that reads its configuration before it can [`install`] all handlers.
pub fn ignore_requests() -> Result<(), Exit> {
    for kind in [
        SignalKind::hangup(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
    ] {
        // The handler stays installed.
        drop(handler(kind)?);
    }
    Ok(())
}

fn handler(kind: SignalKind) -> Result<Signal, Exit> {
    signal(kind)
        .map_err(|error| Exit::unavailable(format!("cannot install signal handlers: {error}")))
}
