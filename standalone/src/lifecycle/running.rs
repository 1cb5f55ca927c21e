//! A running installation and its ordered shutdown: the gateway stops first, then the upstreams,
//! then the development services.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use futures_util::FutureExt;
use postern_core::Secret;
use postern_core::exit::Exit;
use postern_dev::Addresses;
use postern_dev::data_folder::DataFolder;
use postern_dev::mail::Mailbox;
use tokio::task::JoinSet;

use crate::lifecycle::EnvironmentFile;

/// Default time for the parts of one stage to stop. Work that is aborted then was not acknowledged;
/// acknowledged work is on disk.
const DEFAULT_STOP_TIMEOUT: Duration = Duration::from_millis(600);

/// Parts that stop together.
#[derive(Debug)]
pub(crate) struct ShutdownStage {
    stop: CancellationToken,
    parts: JoinSet<&'static str>,
    stop_timeout: Duration,
}

/// A running installation. Dropping it stops all parts at once without waiting; [`Running::stop`]
/// stops them in order.
#[derive(Debug)]
pub struct Running {
    stages: Vec<ShutdownStage>,
    /// `None` if started from configuration files.
    embedded: Option<Embedded>,
}

/// What an installation with development services has besides its parts.
#[derive(Debug)]
pub(crate) struct Embedded {
    /// Address of each part.
    pub(crate) addresses: Addresses,
    pub(crate) environment: EnvironmentFile,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) console_link: Secret,
    pub(crate) _folder: DataFolder,
}

// === impl ShutdownStage ===

impl ShutdownStage {
    pub(crate) fn shutdown(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Raises the stop timeout to at least `stop_timeout`.
    pub(crate) fn raise_stop_timeout(&mut self, stop_timeout: Duration) {
        self.stop_timeout = self.stop_timeout.max(stop_timeout);
    }

    /// Starts a part. It should run until the stage stops.
    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        part: impl Future<Output = ()> + Send + 'static,
    ) {
        self.parts.spawn(async move {
            if AssertUnwindSafe(part).catch_unwind().await.is_err() {
                tracing::error!(part = name, "part panicked");
            }
            name
        });
    }

    /// Waits until a part ends. Never returns if the stage has none.
    async fn wait_for_exit(&mut self) -> &'static str {
        match self.parts.join_next().await {
            Some(name) => name.unwrap_or("a part"),
            None => std::future::pending().await,
        }
    }

    async fn stop(&mut self) {
        self.stop.cancel();
        let all = async { while self.parts.join_next().await.is_some() {} };
        if tokio::time::timeout(self.stop_timeout, all).await.is_err() {
            tracing::warn!(parts = self.parts.len(), "parts aborted after stop timeout");
            self.parts.abort_all();
        }
    }
}

impl Default for ShutdownStage {
    fn default() -> Self {
        Self {
            stop: CancellationToken::default(),
            parts: JoinSet::default(),
            stop_timeout: DEFAULT_STOP_TIMEOUT,
        }
    }
}

impl Drop for ShutdownStage {
    fn drop(&mut self) {
        self.stop.cancel();
        // The parts end by themselves; aborting them would leave their child tasks running.
        self.parts.detach_all();
    }
}

// === impl Running ===

impl Running {
    pub(crate) fn new(stages: Vec<ShutdownStage>, embedded: Option<Embedded>) -> Self {
        Self { stages, embedded }
    }

    /// Returns the one-time link to the console, or `None` if started from configuration files.
    #[must_use]
    pub fn console_link(&self) -> Option<&Secret> {
        Some(&self.embedded.as_ref()?.console_link)
    }

    /// Returns the address of each part, or `None` if started from configuration files.
    #[must_use]
    pub fn addresses(&self) -> Option<&Addresses> {
        Some(&self.embedded.as_ref()?.addresses)
    }

    /// Returns a variable of `standalone.env`.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.embedded.as_ref()?.environment.get(name)
    }

    /// Returns every variable of `standalone.env`, in order.
    #[must_use]
    pub fn variables(&self) -> &[(String, String)] {
        let embedded = self.embedded.as_ref();
        embedded.map_or(&[], |embedded| embedded.environment.pairs())
    }

    /// Returns the mailbox of the mail catcher.
    #[must_use]
    pub fn mailbox(&self) -> Option<&Arc<Mailbox>> {
        Some(&self.embedded.as_ref()?.mailbox)
    }

    /// Runs until `shutdown` is cancelled or a part ends, then stops every part.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), Exit> {
        let ended_part = {
            let stages = self.stages.iter_mut();
            let parts = stages.map(|stage| Box::pin(stage.wait_for_exit()));
            tokio::select! {
                () = shutdown.cancelled() => None,
                (name, ..) = futures_util::future::select_all(parts) => Some(name),
            }
        };
        self.stop().await;
        let ended = |name| Exit::unavailable(format!("{name} ended unexpectedly; see the log"));
        ended_part.map(ended).map_or(Ok(()), Err)
    }

    /// Stops every part within two seconds, unless a call to a provider is in flight: it is
    /// awaited, so that the message need not be sent again.
    pub async fn stop(mut self) {
        for stage in &mut self.stages {
            stage.stop().await;
        }
    }
}
