//! Scripted responses in place of Amazon's servers.

use std::sync::Arc;

use parking_lot::Mutex;
use url::Url;

use crate::receipts::webhook::WebhookRejection;

/// Returns the same response to each fetch.
#[derive(Clone, Debug)]
pub(in crate::receipts::webhook) struct ScriptedFetches(Arc<ScriptState>);

#[derive(Debug)]
struct ScriptState {
    response: Mutex<Result<String, WebhookRejection>>,
    fetches: Mutex<Vec<String>>,
}

impl ScriptedFetches {
    pub(in crate::receipts::webhook) fn new(response: Result<String, WebhookRejection>) -> Self {
        let (response, fetches) = (Mutex::new(response), Mutex::default());
        Self(Arc::new(ScriptState { response, fetches }))
    }

    /// Sets the response to further fetches.
    pub(in crate::receipts::webhook) fn set_response(
        &self,
        response: Result<String, WebhookRejection>,
    ) {
        *self.0.response.lock() = response;
    }

    /// Returns the fetched URLs.
    pub(in crate::receipts::webhook) fn fetches(&self) -> Vec<String> {
        self.0.fetches.lock().clone()
    }

    pub(in crate::receipts::webhook) fn fetch_text(
        &self,
        url: &Url,
    ) -> Result<String, WebhookRejection> {
        self.0.fetches.lock().push(url.to_string());
        self.0.response.lock().clone()
    }
}
