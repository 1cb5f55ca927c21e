//! Calls of other services with this service's own token.

use std::time::Duration;

use http::{Method, StatusCode};
use postern_core::dependency::{Dependency, root_cause};
use postern_core::trace;
use postern_service::calls::ServiceClient;
use serde_json::Value;
use url::Url;

use crate::telemetry::log_consequence;

/// Another service. Its outages are logged, and counted by its [`Dependency`].
#[derive(Debug)]
pub(crate) struct ServiceEndpoint {
    pub(crate) client: ServiceClient,
    pub(crate) base: Url,
    pub(crate) availability: Dependency,
    pub(crate) timeout: Duration,
}

// === impl ServiceEndpoint ===

impl ServiceEndpoint {
    /// Calls the service once, with an idempotency key if there is one.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
        key: Option<&str>,
    ) -> Result<reqwest::Response, String> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let request = self.client.request(method, url).await.map_err(|error| {
            log_consequence!(%error, "service token unavailable");
            error.to_string()
        })?;
        let mut request = request.timeout(self.timeout);
        if let Some(body) = body {
            request = request.json(body);
        }
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let answered = trace::send(request).await;
        let answered = answered.map_err(|error| root_cause(&error.without_url()));
        match &answered {
            Err(cause) => self.availability.record_failure(cause),
            Ok(response) => match response.status() {
                status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                    let status = status.as_u16();
                    self.availability
                        .record_failure(format_args!("status {status}"));
                }
                _ => self.availability.record_success(),
            },
        }
        answered
    }
}
