//! What runs, and how it stops: the gateway first, then the upstreams, then what they lean on.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use futures_util::FutureExt;
use postern_common::exit::Exit;
use tokio::task::JoinSet;

use crate::environment::Environment;
use crate::folder::Folder;
use crate::mail::Mailbox;
use crate::sockets::Addresses;

/// How long the parts of one stage may take to end, unless the stage says otherwise. What is cut
/// off then was not acknowledged, and what was acknowledged is on disk.
const PATIENCE: Duration = Duration::from_millis(600);

/// Parts that stop together.
#[derive(Debug)]
pub(crate) struct Stage {
    stop: CancellationToken,
    parts: JoinSet<&'static str>,
    patience: Duration,
}

/// A running installation. Dropping it begins the stop of every part at once and waits for none;
/// [`Running::stop`] does it in order.
#[derive(Debug)]
pub struct Running {
    /// Where each part listens; none where the configuration files say it.
    addresses: Option<Addresses>,
    environment: Environment,
    mailbox: Option<Arc<Mailbox>>,
    stages: Vec<Stage>,
    _folder: Option<Folder>,
}

// === impl Stage ===

impl Stage {
    /// The stop of this stage.
    pub(crate) fn shutdown(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Waits for its parts for so long, if that is longer than it would.
    pub(crate) fn wait_for(&mut self, patience: Duration) {
        self.patience = self.patience.max(patience);
    }

    /// Starts a part. It should end only when the stage stops.
    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        part: impl Future<Output = ()> + Send + 'static,
    ) {
        self.parts.spawn(async move {
            if AssertUnwindSafe(part).catch_unwind().await.is_err() {
                tracing::error!(part = name, "panicked");
            }
            name
        });
    }

    /// Waits until a part has ended; for ever if the stage has none.
    async fn ended(&mut self) -> &'static str {
        match self.parts.join_next().await {
            Some(ended) => ended.unwrap_or("a part"),
            None => std::future::pending().await,
        }
    }

    async fn stop(&mut self) {
        self.stop.cancel();
        let all = async { while self.parts.join_next().await.is_some() {} };
        if tokio::time::timeout(self.patience, all).await.is_err() {
            tracing::warn!(parts = self.parts.len(), "cut off while stopping");
            self.parts.abort_all();
        }
    }
}

impl Default for Stage {
    fn default() -> Self {
        Self {
            stop: CancellationToken::default(),
            parts: JoinSet::default(),
            patience: PATIENCE,
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop.cancel();
        // They end by themselves; cut off, they would leave behind what they have started.
        self.parts.detach_all();
    }
}

// === impl Running ===

impl Running {
    pub(crate) fn new(
        addresses: Addresses,
        environment: Environment,
        mailbox: Arc<Mailbox>,
        stages: Vec<Stage>,
        folder: Folder,
    ) -> Self {
        Self {
            addresses: Some(addresses),
            environment,
            mailbox: Some(mailbox),
            stages,
            _folder: Some(folder),
        }
    }

    /// Without development parts and without a folder of its own.
    pub(crate) fn configured(stages: Vec<Stage>) -> Self {
        Self {
            addresses: None,
            environment: Environment::default(),
            mailbox: None,
            stages,
            _folder: None,
        }
    }

    /// Where each part listens; none when configuration files said it.
    #[must_use]
    pub fn addresses(&self) -> Option<&Addresses> {
        self.addresses.as_ref()
    }

    /// A variable of `standalone.env`.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name)
    }

    /// Every variable of `standalone.env`, in order.
    #[must_use]
    pub fn variables(&self) -> &[(String, String)] {
        self.environment.pairs()
    }

    /// What the mail catcher has caught.
    #[must_use]
    pub fn mailbox(&self) -> Option<&Arc<Mailbox>> {
        self.mailbox.as_ref()
    }

    /// Runs until the stop begins, then stops every part.
    ///
    /// # Errors
    /// 69 when a part ended by itself.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), Exit> {
        let ended = {
            let parts = self.stages.iter_mut().map(|stage| Box::pin(stage.ended()));
            tokio::select! {
                () = shutdown.cancelled() => None,
                (name, ..) = futures_util::future::select_all(parts) => Some(name),
            }
        };
        self.stop().await;
        match ended {
            None => Ok(()),
            Some(name) => Err(Exit::unavailable(format!(
                "{name} ended by itself; the log says why"
            ))),
        }
    }

    /// Stops every part, within two seconds unless a provider has a call in hand and does not
    /// answer: what was begun is finished, so that it need not be sent again.
    pub async fn stop(mut self) {
        for stage in &mut self.stages {
            stage.stop().await;
        }
    }
}
