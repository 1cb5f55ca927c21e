//! External authorization: a service that decides on requests which the policy of their route
//! allows, as by `ext_authz` of Envoy over HTTP and `auth_request` of nginx.
//!
//! - **Enters:** header fields with method, target, host, scheme, client address and caller of a
//!   request.
//! - **Leaves:** header fields to add to it, or a rejection. Everything but a response with
//!   2xx, 401 or 403 in time rejects the request with 503.
//! - **May depend on:** [`crate::config`], [`postern_http::client_shares`], and [`crate::telemetry`] for
//!   metrics.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use parking_lot::Mutex;
use postern_core::backoff::Backoff;
use postern_core::circuit_breaker::{BreakerPolicy, CircuitBreaker, FailureEffect};
use postern_core::exit::Exit;
use postern_core::{Code, Problem};
use postern_core::{log_outage, log_outage_state};
use postern_http::client_shares::SharedBudget;
use prometheus::{Histogram, IntCounter};
use reqwest::redirect::Policy;
use tokio::time::Instant;
use uuid::Uuid;

use crate::config::ExternalAuthorization;
use crate::telemetry::metrics::GatewayMetrics;

/// Maximum bytes of the header fields that are added to a request.
const MAX_ADDED_BYTES: usize = 8 << 10;

/// Maximum bytes of the body of a response that are read, so that the connection can be reused.
const MAX_BODY_BYTES: usize = 64 << 10;

/// Consecutive calls without a response (or 502 to 504) after which none is made for a time.
const FAILURE_THRESHOLD: u32 = 5;

/// Time for which no call is made: at first, and at most.
const OPEN_TIME: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));

/// Header fields to add to a request.
pub(crate) type AddedHeaders = Arc<[(HeaderName, HeaderValue)]>;

pub(crate) struct ExternalAuthorizer {
    pub(crate) config: ExternalAuthorization,
    client: reqwest::Client,
    calls: Arc<SharedBudget>,
    circuit: Mutex<Circuit>,
    allowed: IntCounter,
    denied: IntCounter,
    failed: IntCounter,
    call_seconds: Histogram,
}

/// The circuit breaker, and what shows that a failure is one of the service.
#[derive(Debug)]
struct Circuit {
    breaker: CircuitBreaker<Instant>,
    last_success: Option<Instant>,
    last_timed_out: Option<u64>,
}

/// The decision on a check, or the reason for which there is none.
type AuthorizationResult = Result<Decision, Failure>;

#[derive(Clone, Debug)]
enum Decision {
    Allowed(AddedHeaders),
    Denied(Code),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Failure {
    #[error("no response in time")]
    TimedOut,
    #[error("no connection, or no valid response")]
    Unreachable,
    #[error("unexpected status {}", .0.as_u16())]
    Status(StatusCode),
    #[error("the header fields to add are too large")]
    HeadersTooLarge,
    #[error("as many calls in flight as in_flight allows")]
    AtCapacity,
    #[error("the calls before have failed")]
    CircuitOpen,
}

impl Failure {
    /// Returns whether the service is unavailable, as by outlier detection of upstreams. A response
    /// to one request, such as 500, does not count, so that a client cannot open the circuit.
    fn is_outage(self) -> bool {
        match self {
            Self::TimedOut | Self::Unreachable => true,
            Self::Status(status) => (502..=504).contains(&status.as_u16()),
            Self::HeadersTooLarge | Self::AtCapacity | Self::CircuitOpen => false,
        }
    }
}

impl ExternalAuthorizer {
    /// # Errors
    /// Status 64 if the certificate authorities for an `https` URL cannot be loaded.
    pub(crate) fn new(
        config: ExternalAuthorization,
        route: &str,
        metrics: &GatewayMetrics,
    ) -> Result<Self, Exit> {
        let builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .timeout(config.timeout);
        let builder = match config.url.scheme() {
            "https" => builder,
            // Without loading certificate authorities.
            _ => builder.tls_certs_only([]),
        };
        let client = builder
            .build()
            .map_err(|error| Exit::usage(format!("{}: cannot be called: {error}", config.url)))?;
        let metrics = &metrics.external_authorization;
        let counter = |result| metrics.results.with_label_values(&[route, result]);
        Ok(Self {
            client,
            calls: SharedBudget::new(config.in_flight),
            circuit: Mutex::new(Circuit {
                breaker: CircuitBreaker::new(BreakerPolicy {
                    failure_threshold: FAILURE_THRESHOLD,
                    open_time: OPEN_TIME,
                    counts_calls_in_flight: false,
                }),
                last_success: None,
                last_timed_out: None,
            }),
            allowed: counter("allowed"),
            denied: counter("denied"),
            failed: counter("failed"),
            call_seconds: metrics.call_seconds.with_label_values(&[route]),
            config,
        })
    }

    /// Has the service decide on a request of a client, whose key in shares is `None` if it is not
    /// known. Returns the header fields to add to it.
    ///
    /// # Errors
    /// `authorization_denied` (403) or `authorization_required` (401) if the service refuses,
    /// `authorization_unavailable` (503) if it does not decide.
    pub(crate) async fn check(
        &self,
        request_id: Uuid,
        client: Option<u64>,
        headers: impl FnOnce() -> HeaderMap,
    ) -> Result<AddedHeaders, Problem> {
        match self.call(client, headers).await {
            Ok(Decision::Allowed(added)) => {
                self.allowed.inc();
                Ok(added)
            }
            Ok(Decision::Denied(code)) => {
                self.denied.inc();
                Err(code.into())
            }
            Err(failure) => {
                self.failed.inc();
                let url = &self.config.url;
                log_outage!(self.cause(), %request_id, %url, error = %failure, "external authorization failed");
                Err(Code::AuthorizationUnavailable.into())
            }
        }
    }

    async fn call(
        &self,
        client: Option<u64>,
        headers: impl FnOnce() -> HeaderMap,
    ) -> AuthorizationResult {
        let permit = self.calls.reserve(client, 1);
        let _permit = permit.ok_or(Failure::AtCapacity)?;
        let began = Instant::now();
        if !self.circuit.lock().breaker.allows_call(began) {
            return Err(Failure::CircuitOpen);
        }
        let result = self.send(headers()).await;
        self.call_seconds.observe(began.elapsed().as_secs_f64());
        self.record_outcome(result.as_ref().err().copied(), client, began);
        result
    }

    /// Reports the outcome of a call to the circuit breaker.
    fn record_outcome(&self, failure: Option<Failure>, client: Option<u64>, began: Instant) {
        let (mut circuit, url) = (self.circuit.lock(), &self.config.url);
        let Some(failure) = failure.filter(|failure| failure.is_outage()) else {
            circuit.last_success = Some(Instant::now());
            if circuit.breaker.record_success() {
                tracing::info!(%url, "circuit breaker closed");
            }
            return;
        };
        if !circuit.counts(failure, client, began) {
            return;
        }
        if let FailureEffect::Opened(time) = circuit.breaker.record_failure(Instant::now()) {
            let next_probe_s = time.as_secs();
            log_outage_state!(self.cause(), %url, next_probe_s, "circuit breaker opened");
        }
    }

    /// Sends the check and reads the response within the timeout.
    async fn send(&self, headers: HeaderMap) -> AuthorizationResult {
        let request = self.client.get(self.config.url.clone());
        let sent = request.headers(headers).send().await;
        let mut response = sent.map_err(|error| match error.is_timeout() {
            true => Failure::TimedOut,
            false => Failure::Unreachable,
        })?;
        let decision = match response.status() {
            status if status.is_success() => Decision::Allowed(self.added(response.headers())?),
            StatusCode::UNAUTHORIZED => Decision::Denied(Code::AuthorizationRequired),
            StatusCode::FORBIDDEN => Decision::Denied(Code::AuthorizationDenied),
            status => return Err(Failure::Status(status)),
        };
        let mut read = 0;
        while read < MAX_BODY_BYTES
            && let Ok(Some(part)) = response.chunk().await
        {
            read += part.len();
        }
        Ok(decision)
    }

    fn added(&self, response: &HeaderMap) -> Result<AddedHeaders, Failure> {
        let names = self.config.forward_headers.iter();
        let fields = names.flat_map(|name| {
            let values = response.get_all(name).iter();
            values.map(move |value| (name.clone(), value.clone()))
        });
        let fields: Vec<_> = fields.collect();
        let bytes: usize = fields
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len())
            .sum();
        match bytes <= MAX_ADDED_BYTES {
            true => Ok(fields.into()),
            false => Err(Failure::HeadersTooLarge),
        }
    }

    /// Returns the cause that its log events share.
    fn cause(&self) -> String {
        format!("authorization {}", self.config.url)
    }
}

impl Circuit {
    /// Returns whether a failure of a call that began then is one of the service, and not of the
    /// checks of one client: no call has succeeded meanwhile, and it is not another timeout of the
    /// client whose check timed out last.
    fn counts(&mut self, failure: Failure, client: Option<u64>, began: Instant) -> bool {
        if self.breaker.is_probing() {
            return true;
        }
        let is_same = failure == Failure::TimedOut
            && client.is_some()
            && std::mem::replace(&mut self.last_timed_out, client) == client;
        !is_same && self.last_success.is_none_or(|success| success < began)
    }
}

impl fmt::Debug for ExternalAuthorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalAuthorizer")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
