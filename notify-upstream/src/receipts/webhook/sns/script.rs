//! Scripted responses in place of Amazon's servers.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Semaphore;
use url::Url;

use super::certificate::FetchError;

/// Returns the same response to each fetch, as soon as a permit is available.
#[derive(Clone, Debug)]
pub(in crate::receipts::webhook) struct ScriptedFetches(Arc<ScriptState>);

#[derive(Debug)]
struct ScriptState {
    answer: Mutex<Result<String, FetchError>>,
    visits: Mutex<Vec<String>>,
    open: Semaphore,
}

impl ScriptedFetches {
    /// Creates a script that responds to `open` fetches; later ones wait.
    pub(in crate::receipts::webhook) fn new(
        answer: Result<String, FetchError>,
        open: usize,
    ) -> Self {
        let (answer, visits) = (Mutex::new(answer), Mutex::default());
        Self(Arc::new(ScriptState {
            answer,
            visits,
            open: Semaphore::new(open),
        }))
    }

    /// Sets the response to further fetches.
    pub(in crate::receipts::webhook) fn say(&self, answer: Result<String, FetchError>) {
        *self.0.answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }

    /// Permits further fetches to complete.
    pub(in crate::receipts::webhook) fn open(&self, visits: usize) {
        self.0.open.add_permits(visits);
    }

    /// Returns the fetched URLs.
    pub(in crate::receipts::webhook) fn visits(&self) -> Vec<String> {
        self.0
            .visits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) async fn visit(&self, url: &Url) -> Result<String, FetchError> {
        self.0
            .visits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(url.to_string());
        self.0
            .open
            .acquire()
            .await
            .map_err(|_| FetchError::Unavailable)?
            .forget();
        self.0
            .answer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
