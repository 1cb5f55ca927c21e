//! What stands between us and the pool, so that one that is away or hangs costs its callers little.
//!
//! A call that takes long is suspected: the pool's public keys are asked for meanwhile, which every
//! pool answers at once. If they come, the pool is only busy, and the call may take its whole
//! deadline; if not, it hangs, and the call ends in less than a second. After some failures in a
//! row calls fail at once, and one at a time tries whether the pool is back.

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

use super::fault::Fault;
use crate::metrics::Metrics;

/// Failures in a row that close the gate.
const THRESHOLD: u32 = 3;
/// How long it stays closed; doubled by each try that fails, up to the second number.
const CLOSED: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// From when on a call is suspected, and how long a sign of life is waited for.
const SUSPICIOUS: Duration = Duration::from_millis(300);
const SIGN_OF_LIFE: Duration = Duration::from_millis(450);

/// Lets calls through, or not.
#[derive(Debug)]
pub(crate) struct Gate {
    clock: Clock,
    state: Mutex<State>,
    probe: Probe,
    metrics: Metrics,
}

/// Asks for signs of life, one at a time.
#[derive(Debug)]
struct Probe {
    http: reqwest::Client,
    /// The pool's public keys.
    url: Url,
    /// When the last one was asked for, and whether it came.
    last: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

#[derive(Debug)]
struct State {
    failures: u32,
    /// No call before this instant, once there were too many failures.
    closed_until: Timestamp,
    patience: Duration,
}

// === impl Gate ===

impl Gate {
    pub(crate) fn new(clock: Clock, keys: Url, metrics: Metrics) -> Self {
        let state = State {
            failures: 0,
            closed_until: Timestamp(i64::MIN),
            patience: CLOSED.0,
        };
        let probe = Probe {
            http: http_client(),
            url: keys,
            last: tokio::sync::Mutex::default(),
        };
        Self {
            clock,
            state: Mutex::new(state),
            probe,
            metrics,
        }
    }

    /// Makes the call, unless the gate is closed.
    pub(crate) async fn call<T, E: ProvideErrorMetadata>(
        &self,
        call: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, Fault> {
        let began = Instant::now();
        if !self.is_open() {
            self.metrics.pool_call("unavailable", Duration::ZERO);
            return Err(Fault::Unavailable("it failed just now and was not asked"));
        }
        let outcome = tokio::select! {
            outcome = Box::pin(call) => outcome.map_err(|error| Fault::of(&error)),
            () = self.probe.until_dead() => Err(Fault::Unavailable("it hangs")),
        };
        let word = match &outcome {
            Ok(_) => "ok",
            Err(Fault::Unavailable(_)) => "unavailable",
            Err(_) => "refused",
        };
        self.note(word == "unavailable");
        self.metrics.pool_call(word, began.elapsed());
        outcome
    }

    /// The one that finds the time over tries; the others wait for its outcome.
    fn is_open(&self) -> bool {
        let mut state = self.lock();
        if state.failures < THRESHOLD {
            return true;
        }
        let now = self.clock.now();
        if now < state.closed_until {
            return false;
        }
        state.closed_until = now.plus(state.patience);
        true
    }

    fn note(&self, failed: bool) {
        let mut state = self.lock();
        if !failed {
            state.failures = 0;
            state.patience = CLOSED.0;
            return;
        }
        state.failures = state.failures.saturating_add(1);
        if state.failures >= THRESHOLD {
            state.closed_until = self.clock.now().plus(state.patience);
            state.patience = (state.patience * 2).min(CLOSED.1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Probe ===

impl Probe {
    /// Returns when the pool gives no sign of life; never, as long as it does.
    async fn until_dead(&self) {
        loop {
            let asked_at = Instant::now();
            tokio::time::sleep(SUSPICIOUS).await;
            if !self.is_alive(asked_at).await {
                return;
            }
        }
    }

    /// Whether a sign of life came that was asked for after `since`; calls that are suspected
    /// together share one.
    async fn is_alive(&self, since: Instant) -> bool {
        let mut last = self.last.lock().await;
        if let Some((at, alive)) = *last
            && at >= since
        {
            return alive;
        }
        let at = Instant::now();
        let answer = self
            .http
            .get(self.url.clone())
            .timeout(SIGN_OF_LIFE)
            .send()
            .await;
        *last = Some((at, answer.is_ok()));
        answer.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_cognitoidentityprovider::operation::initiate_auth::InitiateAuthError;

    use super::*;

    /// Takes connections and never answers.
    async fn silent() -> Url {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let url = format!(
            "http://{}/jwks.json",
            listener.local_addr().expect("an address")
        );
        tokio::spawn(async move {
            let mut taken = Vec::new();
            while let Ok(connection) = listener.accept().await {
                taken.push(connection);
            }
        });
        url.parse().expect("a URL")
    }

    #[tokio::test]
    async fn calls_to_a_pool_that_hangs_end_together_long_before_their_deadline() {
        let gate = Gate::new(
            Clock::system(),
            silent().await,
            Metrics::new().expect("metrics"),
        );
        let call = || async {
            let never =
                std::future::pending::<Result<(), SdkError<InitiateAuthError, HttpResponse>>>();
            gate.call(never).await
        };
        let hangs = Err(Fault::Unavailable("it hangs"));
        assert_eq!(
            tokio::join!(call(), call(), call()),
            (hangs.clone(), hangs.clone(), hangs)
        );
        assert!(!gate.is_open());
    }

    #[test]
    fn after_three_failures_one_at_a_time_tries() {
        let clock = Clock::manual(Timestamp(0));
        let keys = "http://127.0.0.1:1/".parse().expect("a URL");
        let gate = Gate::new(clock.clone(), keys, Metrics::new().expect("metrics"));
        for _ in 0..3 {
            assert!(gate.is_open());
            gate.note(true);
        }
        assert!(!gate.is_open());
        clock.advance(Duration::from_millis(500));
        assert!(gate.is_open(), "the one that tries");
        assert!(!gate.is_open(), "the others wait");
        gate.note(true);
        clock.advance(Duration::from_millis(999));
        assert!(!gate.is_open(), "twice as long");
        clock.advance(Duration::from_millis(1));
        assert!(gate.is_open());
        gate.note(false);
        assert!(gate.is_open() && gate.is_open());
    }
}
