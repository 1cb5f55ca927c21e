//! A circuit breaker for calls to the pool, with early detection of a pool that failed.
//!
//! A call that takes longer than [`PROBE_AFTER`] triggers a liveness probe: a request for the
//! pool's public keys, which every pool answers at once. If the probe succeeds, the pool is only
//! busy and the call may take its whole deadline; if not, the call fails in less than a second.

use std::borrow::Cow;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aws_sdk_cognitoidentityprovider::config::http::HttpResponse;
use aws_sdk_cognitoidentityprovider::error::{ProvideErrorMetadata, SdkError};
use parking_lot::Mutex;
use postern_core::Clock;
use postern_core::backoff::Backoff;
use postern_core::circuit_breaker::{BreakerPolicy, CircuitBreaker};
use postern_core::dependency::{Dependency, origin, root_cause};
use postern_core::trace::{ActiveSpan, KeyValue, client_span, set_server};
use postern_service::calls::http_client;
use tokio::time::Instant;
use url::Url;

use super::error::{PoolError, PoolFault, PoolResult};
use crate::telemetry::{Metrics, PoolCallOutcome, PoolOperation};

/// The open time doubles with each failed call.
const POLICY: BreakerPolicy = BreakerPolicy {
    failure_threshold: 3,
    open_time: Backoff::new(Duration::from_millis(500), Duration::from_secs(5)),
    counts_calls_in_flight: true,
};

/// The duration of a call after which the pool is probed.
const PROBE_AFTER: Duration = Duration::from_millis(300);
const SLOW_CALL: Duration = Duration::from_secs(2);
/// Slow calls in a row from which on the pool counts as failing.
const MAX_SLOW_CALLS: u32 = 3;
const PROBE_TIMEOUT: Duration = Duration::from_millis(450);

#[derive(Debug)]
pub(crate) struct PoolCircuitBreaker {
    clock: Clock,
    breaker: Mutex<CircuitBreaker>,
    probe: LivenessProbe,
    metrics: Metrics,
    availability: Dependency,
    slow_calls: AtomicU32,
}

/// Probes the pool, one request at a time.
#[derive(Debug)]
struct LivenessProbe {
    http: reqwest::Client,
    url: Url,
    last: tokio::sync::Mutex<Option<ProbeResult>>,
}

#[derive(Debug)]
struct CallFailure {
    error: PoolError,
    /// The reason for which no response arrived, for operators.
    cause: String,
    /// The name of the pool's exception, or a class of errors.
    error_type: Cow<'static, str>,
}

#[derive(Clone, Copy, Debug)]
struct ProbeResult {
    started_at: Instant,
    is_alive: bool,
}

// === impl PoolCircuitBreaker ===

impl PoolCircuitBreaker {
    pub(crate) fn new(clock: Clock, jwks_url: Url, metrics: Metrics) -> Self {
        let address = origin(&jwks_url);
        let availability = metrics.dependencies.optional("identity_pool", address);
        let probe = LivenessProbe {
            http: http_client(),
            url: jwks_url,
            last: tokio::sync::Mutex::default(),
        };
        Self {
            clock,
            breaker: Mutex::new(CircuitBreaker::new(POLICY)),
            probe,
            metrics,
            availability,
            slow_calls: AtomicU32::new(0),
        }
    }

    /// Makes a call within a client span, unless the breaker is open.
    pub(crate) async fn call<T, E: ProvideErrorMetadata>(
        &self,
        operation: PoolOperation,
        call: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> PoolResult<T> {
        let fault = |error| PoolFault { operation, error };
        let started_at = Instant::now();
        if !self.allows_call() {
            self.metrics
                .observe_pool_call(operation, PoolCallOutcome::Unavailable, Duration::ZERO);
            return Err(fault(PoolError::Unavailable("circuit breaker open")));
        }
        let result = client_span(
            operation.span_name(),
            |span| self.describe(span, operation),
            Box::pin(self.call_or_probe(operation, call)),
            |result| {
                let failure = result.as_ref().err();
                failure.map(|failure| failure.error_type.clone())
            },
        )
        .await;
        let elapsed = started_at.elapsed();
        let outcome = match result.as_ref().map_err(|failure| &failure.error) {
            Ok(_) => PoolCallOutcome::Ok,
            Err(PoolError::Unavailable(_)) => PoolCallOutcome::Unavailable,
            Err(PoolError::Throttled) => PoolCallOutcome::Throttled,
            Err(PoolError::Misconfigured(_)) => PoolCallOutcome::Misconfigured,
            Err(_) => PoolCallOutcome::Refused,
        };
        match &result {
            Err(failure) if outcome == PoolCallOutcome::Unavailable => {
                self.availability.record_failure(&failure.cause);
                self.breaker.lock().record_failure(self.clock.now());
            }
            Ok(_) | Err(_) => {
                self.record_answer(operation, elapsed);
                self.breaker.lock().record_success();
            }
        }
        self.metrics.observe_pool_call(operation, outcome, elapsed);
        result.map_err(|failure| fault(failure.error))
    }

    pub(crate) async fn run<T, E: ProvideErrorMetadata>(
        &self,
        operation: PoolOperation,
        call: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> PoolResult {
        self.call(operation, call).await.map(drop)
    }

    /// Records an answer. A pool that answers slowly again and again degrades the service.
    fn record_answer(&self, operation: PoolOperation, elapsed: Duration) {
        if elapsed < SLOW_CALL {
            self.slow_calls.store(0, Ordering::Relaxed);
        } else if self.slow_calls.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_SLOW_CALLS {
            let (name, seconds) = (operation.name(), elapsed.as_secs_f64());
            let reason = format!("slow: {name} took {seconds:.1} s");
            return self.availability.record_failure(reason);
        }
        self.availability.record_success();
    }

    async fn call_or_probe<T, E: ProvideErrorMetadata>(
        &self,
        operation: PoolOperation,
        call: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, CallFailure> {
        tokio::select! {
            result = call => result.map_err(|error| CallFailure::from_sdk(operation, &error)),
            () = self.probe.wait_for_failure() => {
                let error = PoolError::Unavailable("no response, liveness probe failed");
                let cause = "no response, liveness probe failed".to_owned();
                Err(CallFailure { error, cause, error_type: Cow::Borrowed("timeout") })
            }
        }
    }

    /// Sets the attributes of a call by the semantic conventions of the AWS SDK. The server is that
    /// of the public keys, which is the pool's.
    fn describe(&self, span: &mut ActiveSpan, operation: PoolOperation) {
        span.set(KeyValue::new("rpc.system", "aws-api"));
        span.set(KeyValue::new("rpc.service", "Cognito Identity Provider"));
        span.set(KeyValue::new("rpc.method", operation.name()));
        let url = &self.probe.url;
        set_server(
            span,
            url.host_str().unwrap_or_default(),
            url.port_or_known_default(),
        );
    }

    fn allows_call(&self) -> bool {
        self.breaker.lock().allows_call(self.clock.now())
    }
}

// === impl CallFailure ===

impl CallFailure {
    fn from_sdk<E: ProvideErrorMetadata>(
        operation: PoolOperation,
        error: &SdkError<E, HttpResponse>,
    ) -> Self {
        let exception = error.as_service_error().and_then(|error| error.code());
        let error_type = match (exception, error) {
            (Some(name), _) => Cow::Owned(name.to_owned()),
            (None, SdkError::TimeoutError(_)) => Cow::Borrowed("timeout"),
            (None, SdkError::DispatchFailure(_)) => Cow::Borrowed("connect"),
            (None, _) => Cow::Borrowed("_OTHER"),
        };
        let unreachable = if let SdkError::DispatchFailure(failure) = error {
            failure.as_connector_error()
        } else {
            None
        };
        let error = PoolError::from_sdk(operation, error);
        let cause = match (unreachable, &error) {
            (Some(cause), _) => root_cause(cause),
            (None, PoolError::Unavailable(reason)) => (*reason).to_owned(),
            (None, _) => String::new(),
        };
        Self {
            error,
            cause,
            error_type,
        }
    }
}

// === impl LivenessProbe ===

impl LivenessProbe {
    /// Returns when a probe fails. Never returns while probes succeed.
    async fn wait_for_failure(&self) {
        loop {
            let call_started_at = Instant::now();
            tokio::time::sleep(PROBE_AFTER).await;
            if !self.is_alive(call_started_at).await {
                return;
            }
        }
    }

    /// Returns whether the pool answered a probe that started at or after `since`. Concurrent
    /// callers share one probe.
    async fn is_alive(&self, since: Instant) -> bool {
        let mut last = self.last.lock().await;
        if let Some(result) = *last
            && result.started_at >= since
        {
            return result.is_alive;
        }
        let started_at = Instant::now();
        let probe = self.http.get(self.url.clone()).timeout(PROBE_TIMEOUT);
        let is_alive = probe.send().await.is_ok();
        *last = Some(ProbeResult {
            started_at,
            is_alive,
        });
        is_alive
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_cognitoidentityprovider::operation::initiate_auth::InitiateAuthError;
    use postern_core::clock::Timestamp;
    use postern_core::testing::CapturedLog;

    use super::*;

    async fn unresponsive_server() -> Url {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let url = format!("http://{}/jwks.json", listener.local_addr().expect("bound"));
        tokio::spawn(async move {
            let mut connections = Vec::new();
            while let Ok(connection) = listener.accept().await {
                connections.push(connection);
            }
        });
        url.parse().expect("a URL")
    }

    #[tokio::test]
    async fn third_slow_call_in_a_row_degrades() {
        let metrics = Metrics::new().expect("metrics");
        let clock = Clock::manual(Timestamp(0));
        let url = unresponsive_server().await;
        let breaker = PoolCircuitBreaker::new(clock, url, metrics.clone());
        let degraded = || metrics.health.degraded().get("identity_pool").cloned();
        let answer = |elapsed| breaker.record_answer(PoolOperation::InitiateAuth, elapsed);
        for elapsed in [SLOW_CALL, SLOW_CALL, Duration::ZERO, SLOW_CALL, SLOW_CALL] {
            answer(elapsed);
            assert_eq!(degraded(), None);
        }
        answer(SLOW_CALL);
        let reason = "slow: InitiateAuth took 2.0 s";
        assert_eq!(degraded().as_deref(), Some(reason));
        answer(Duration::ZERO);
        assert_eq!(degraded(), None);
    }

    #[tokio::test]
    async fn hanging_calls_fail_long_before_their_deadline() {
        let (log, _guard) = CapturedLog::start();
        let metrics = Metrics::new().expect("metrics");
        // The breaker's open period does not pass, however long the probes take on a busy machine.
        let breaker = PoolCircuitBreaker::new(
            Clock::manual(Timestamp(0)),
            unresponsive_server().await,
            metrics.clone(),
        );
        let call = || async {
            let never =
                std::future::pending::<Result<(), SdkError<InitiateAuthError, HttpResponse>>>();
            let called = breaker.call(PoolOperation::InitiateAuth, never).await;
            called.map_err(|fault| fault.error)
        };
        let failed = Err(PoolError::Unavailable("no response, liveness probe failed"));
        assert_eq!(
            tokio::join!(call(), call(), call()),
            (failed.clone(), failed.clone(), failed)
        );
        assert!(!breaker.allows_call());
        let event = [
            "WARN",
            "dependency unavailable",
            "identity_pool",
            "http://127.0.0.1:",
        ];
        assert_eq!(log.with(&event), 1, "{}", log.text());
        assert_eq!(log.with(&["jwks.json"]), 0, "only the origin is logged");
        let degraded = metrics.health.degraded();
        assert_eq!(
            degraded["identity_pool"],
            "no response, liveness probe failed"
        );
        assert!(metrics.health.is_ready());
        let families = metrics.registry.gather();
        let name = "postern_auth_pool_call_seconds";
        let calls = families.iter().find(|family| family.name() == name);
        let labels = calls.expect("the histogram").get_metric()[0].get_label();
        let labels = labels.iter().map(|label| (label.name(), label.value()));
        let labels: Vec<_> = labels.collect();
        assert_eq!(
            labels,
            [("operation", "InitiateAuth"), ("outcome", "unavailable")]
        );
    }
}
