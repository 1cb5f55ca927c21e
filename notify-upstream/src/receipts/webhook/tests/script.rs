//! Scripted responses in place of Amazon's servers.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use url::Url;

use crate::receipts::webhook::sns::FetchError;

/// Returns the same response to each fetch, as soon as a permit is available.
#[derive(Clone, Debug)]
pub(in crate::receipts::webhook) struct ScriptedFetches(Arc<ScriptState>);

#[derive(Debug)]
struct ScriptState {
    response: Mutex<Result<String, FetchError>>,
    fetches: Mutex<Vec<String>>,
    permits: Semaphore,
}

impl ScriptedFetches {
    /// Creates a script that responds to `permits` fetches; later ones wait.
    pub(in crate::receipts::webhook) fn new(
        response: Result<String, FetchError>,
        permits: usize,
    ) -> Self {
        let (response, fetches) = (Mutex::new(response), Mutex::default());
        Self(Arc::new(ScriptState {
            response,
            fetches,
            permits: Semaphore::new(permits),
        }))
    }

    /// Sets the response to further fetches.
    pub(in crate::receipts::webhook) fn set_response(&self, response: Result<String, FetchError>) {
        *self.0.response.lock() = response;
    }

    /// Lets `fetches` further fetches complete.
    pub(in crate::receipts::webhook) fn add_permits(&self, fetches: usize) {
        self.0.permits.add_permits(fetches);
    }

    /// Returns the fetched URLs.
    pub(in crate::receipts::webhook) fn fetches(&self) -> Vec<String> {
        self.0.fetches.lock().clone()
    }

    pub(in crate::receipts::webhook) async fn fetch_text(
        &self,
        url: &Url,
    ) -> Result<String, FetchError> {
        self.0.fetches.lock().push(url.to_string());
        self.0
            .permits
            .acquire()
            .await
            .map_err(|_| FetchError::Unavailable)?
            .forget();
        self.0.response.lock().clone()
    }
}
