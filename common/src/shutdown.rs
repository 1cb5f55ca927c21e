//! The stop, told to everything that runs.

use tokio_util::sync::CancellationToken;

/// A handle on one stop. Clones share it; children stop with their parent but not the other way
/// round.
#[derive(Clone, Debug, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// A stop that has not come yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins the stop.
    pub fn begin(&self) {
        self.0.cancel();
    }

    /// Whether the stop has begun.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Returns when the stop begins.
    pub async fn begun(&self) {
        self.0.cancelled().await;
    }

    /// A stop of one part, which the whole brings with it.
    #[must_use]
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    /// A stop that begins with SIGTERM or SIGINT.
    ///
    /// # Errors
    /// If the process cannot install signal handlers.
    pub fn on_signals() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let shutdown = Self::new();
        let begin = shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            begin.begin();
        });
        Ok(shutdown)
    }
}
