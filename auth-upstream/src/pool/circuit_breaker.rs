//! A circuit breaker for calls to the pool, with early detection of a pool that failed.
//!
//! A call that takes longer than [`PROBE_AFTER`] triggers a liveness probe: a request for the
//! pool's public keys, which every pool answers at once. If the probe succeeds, the pool is only
//! busy and the call may take its whole deadline; if not, the call fails in less than a second.
//!
//! ```text
//!            3 consecutive failures              open time elapsed
//!   Closed ─────────────────────────► Open ────────────────────────► HalfOpen
//!     ▲                                ▲                                │
//!     │                                └── one call fails: open again ──┤
//!     └────────────────────────────────────── one call succeeds ────────┘
//! ```

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_cognitoidentityprovider::config::http::HttpResponse;
use aws_sdk_cognitoidentityprovider::error::{ProvideErrorMetadata, SdkError};
use postern_common::Clock;
use postern_common::clock::Timestamp;
use postern_common::service::http_client;
use tokio::time::Instant;
use url::Url;

use super::error::PoolError;
use crate::telemetry::{Metrics, PoolCallOutcome};

/// Consecutive failures that open the breaker.
const FAILURE_THRESHOLD: u32 = 3;
/// The time for which the breaker opens first; doubled by each failed call afterwards.
const INITIAL_OPEN_TIME: Duration = Duration::from_millis(500);
/// The maximum time for which the breaker opens.
const MAX_OPEN_TIME: Duration = Duration::from_secs(5);

/// The duration of a call after which the pool is probed.
const PROBE_AFTER: Duration = Duration::from_millis(300);
/// Timeout of a liveness probe.
const PROBE_TIMEOUT: Duration = Duration::from_millis(450);

/// A circuit breaker that rejects calls to a failing pool.
#[derive(Debug)]
pub(crate) struct CircuitBreaker {
    clock: Clock,
    record: Mutex<FailureRecord>,
    probe: LivenessProbe,
    metrics: Metrics,
}

/// The state of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    /// Calls pass.
    Closed,
    /// Calls fail at once.
    Open,
    /// One call passes, to find out whether the pool has recovered.
    HalfOpen,
}

/// The failures from which the state follows.
#[derive(Debug)]
struct FailureRecord {
    consecutive_failures: u32,
    open_until: Timestamp,
    /// The time for which the breaker opens next.
    open_time: Duration,
}

/// Probes the pool, one request at a time.
#[derive(Debug)]
struct LivenessProbe {
    http: reqwest::Client,
    /// The URL of the pool's public keys.
    url: Url,
    last: tokio::sync::Mutex<Option<ProbeResult>>,
}

#[derive(Clone, Copy, Debug)]
struct ProbeResult {
    started_at: Instant,
    is_alive: bool,
}

// === impl CircuitBreaker ===

impl CircuitBreaker {
    pub(crate) fn new(clock: Clock, jwks_url: Url, metrics: Metrics) -> Self {
        let record = FailureRecord {
            consecutive_failures: 0,
            open_until: Timestamp(i64::MIN),
            open_time: INITIAL_OPEN_TIME,
        };
        let probe = LivenessProbe {
            http: http_client(),
            url: jwks_url,
            last: tokio::sync::Mutex::default(),
        };
        Self {
            clock,
            record: Mutex::new(record),
            probe,
            metrics,
        }
    }

    /// Makes a call, unless the breaker is open.
    pub(crate) async fn call<T, E: ProvideErrorMetadata>(
        &self,
        call: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, PoolError> {
        let started_at = Instant::now();
        if !self.allows_call() {
            self.metrics
                .observe_pool_call(PoolCallOutcome::Unavailable, Duration::ZERO);
            return Err(PoolError::Unavailable("circuit breaker open"));
        }
        let result = tokio::select! {
            result = Box::pin(call) => result.map_err(|error| PoolError::from_sdk(&error)),
            () = self.probe.wait_for_failure() => Err(PoolError::Unavailable("no response, liveness probe failed")),
        };
        let outcome = match &result {
            Ok(_) => PoolCallOutcome::Ok,
            Err(PoolError::Unavailable(_)) => PoolCallOutcome::Unavailable,
            Err(_) => PoolCallOutcome::Refused,
        };
        self.record(outcome == PoolCallOutcome::Unavailable);
        self.metrics
            .observe_pool_call(outcome, started_at.elapsed());
        result
    }

    /// Returns whether a call may be made now. While half-open, one call is allowed; the
    /// others are rejected until it succeeds, or for another open time.
    fn allows_call(&self) -> bool {
        let mut record = self.lock();
        let now = self.clock.now();
        match record.state(now) {
            BreakerState::Closed => true,
            BreakerState::Open => false,
            BreakerState::HalfOpen => {
                record.open_until = now.plus(record.open_time);
                true
            }
        }
    }

    fn record(&self, is_failure: bool) {
        let mut record = self.lock();
        if !is_failure {
            record.consecutive_failures = 0;
            record.open_time = INITIAL_OPEN_TIME;
            return;
        }
        record.consecutive_failures = record.consecutive_failures.saturating_add(1);
        if record.consecutive_failures >= FAILURE_THRESHOLD {
            record.open_until = self.clock.now().plus(record.open_time);
            record.open_time = (record.open_time * 2).min(MAX_OPEN_TIME);
        }
    }

    fn lock(&self) -> MutexGuard<'_, FailureRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl FailureRecord ===

impl FailureRecord {
    fn state(&self, now: Timestamp) -> BreakerState {
        if self.consecutive_failures < FAILURE_THRESHOLD {
            BreakerState::Closed
        } else if now < self.open_until {
            BreakerState::Open
        } else {
            BreakerState::HalfOpen
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
        let response = self
            .http
            .get(self.url.clone())
            .timeout(PROBE_TIMEOUT)
            .send()
            .await;
        let is_alive = response.is_ok();
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

    use super::*;

    /// Starts a server that accepts connections and never responds.
    async fn unresponsive_server() -> Url {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let url = format!(
            "http://{}/jwks.json",
            listener.local_addr().expect("an address")
        );
        tokio::spawn(async move {
            let mut connections = Vec::new();
            while let Ok(connection) = listener.accept().await {
                connections.push(connection);
            }
        });
        url.parse().expect("a URL")
    }

    #[tokio::test]
    async fn hanging_calls_fail_long_before_their_deadline() {
        let breaker = CircuitBreaker::new(
            Clock::system(),
            unresponsive_server().await,
            Metrics::new().expect("metrics"),
        );
        let call = || async {
            let never =
                std::future::pending::<Result<(), SdkError<InitiateAuthError, HttpResponse>>>();
            breaker.call(never).await
        };
        let failed = Err(PoolError::Unavailable("no response, liveness probe failed"));
        assert_eq!(
            tokio::join!(call(), call(), call()),
            (failed.clone(), failed.clone(), failed)
        );
        assert!(!breaker.allows_call());
    }

    #[test]
    fn breaker_opens_after_three_failures_and_recovers() {
        let clock = Clock::manual(Timestamp(0));
        let jwks_url = "http://127.0.0.1:1/".parse().expect("a URL");
        let breaker =
            CircuitBreaker::new(clock.clone(), jwks_url, Metrics::new().expect("metrics"));
        for _ in 0..3 {
            assert!(breaker.allows_call());
            breaker.record(true);
        }
        assert!(!breaker.allows_call());
        clock.advance(Duration::from_millis(500));
        assert!(breaker.allows_call(), "half-open: one call passes");
        assert!(!breaker.allows_call(), "half-open: others do not");
        breaker.record(true);
        clock.advance(Duration::from_millis(999));
        assert!(!breaker.allows_call(), "open for twice as long");
        clock.advance(Duration::from_millis(1));
        assert!(breaker.allows_call());
        breaker.record(false);
        assert!(breaker.allows_call() && breaker.allows_call());
    }
}
