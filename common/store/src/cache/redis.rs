//! The cache in Redis: one server, a cluster, or the master that sentinels report.

mod connection;
pub(super) mod script;

use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ScriptInvocation, ServerErrorKind};
use tokio::time::Instant;

pub(super) use self::connection::RedisServerKind;
use self::connection::{RedisConnection, SharedConnection, connect};
use super::CacheError;
use postern_core::backoff::Backoff;
use postern_core::circuit_breaker::{BreakerPolicy, CircuitBreaker, FailureEffect};
use postern_core::{log_outage, log_outage_state};

/// The policy of the circuit breaker. A rejected command does not open it: callers do not wait for a
/// server that answers, and a server without memory rejects writes but still serves reads.
pub(super) const BREAKER_POLICY: BreakerPolicy = BreakerPolicy {
    failure_threshold: 5,
    open_time: Backoff::new(Duration::from_millis(500), Duration::from_millis(500)),
    counts_calls_in_flight: true,
};

/// A cache in Redis, with a circuit breaker and a time limit per call.
pub(super) struct RedisCache {
    /// The URL without password, for log events.
    label: String,
    server: RedisServerKind,
    deadline: Duration,
    breaker: Mutex<CircuitBreaker<Instant>>,
    connection: Mutex<Option<SharedConnection>>,
    last_error: Mutex<String>,
}

impl RedisCache {
    pub(super) fn new(label: String, server: RedisServerKind, deadline: Duration) -> Self {
        // Two TLS providers are linked, so rustls has no default by itself.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        Self {
            label,
            server,
            deadline,
            breaker: Mutex::new(CircuitBreaker::new(BREAKER_POLICY)),
            connection: Mutex::default(),
            last_error: Mutex::default(),
        }
    }

    /// Returns why the last call that failed did.
    pub(super) fn last_error(&self) -> String {
        self.last_error.lock().clone()
    }

    /// Runs a script over one key.
    pub(super) async fn invoke<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, CacheError> {
        self.call(async |mut connection| script.invoke_async(&mut connection).await)
            .await
    }

    /// Sends one command.
    pub(super) async fn command<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, CacheError> {
        self.call(async |mut connection| command.query_async(&mut connection).await)
            .await
    }

    /// Performs one call under the deadline and the circuit breaker.
    async fn call<T, F>(&self, send: impl FnOnce(RedisConnection) -> F) -> Result<T, CacheError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        if !self.breaker.lock().allows_call(Instant::now()) {
            return Err(CacheError::Unavailable);
        }
        let connection = self.connection();
        let answer = tokio::time::timeout(self.deadline, async {
            send(connection.clone().await?).await
        })
        .await;
        let (error, is_lost) = match answer {
            Ok(Ok(value)) => {
                if self.breaker.lock().record_success() {
                    tracing::info!(address = self.label, "cache available again");
                }
                return Ok(value);
            }
            Ok(Err(error)) if is_command_error(&error) => {
                *self.last_error.lock() = error.to_string();
                self.breaker.lock().record_success();
                log_outage!("cache", address = self.label, %error, "cache command rejected");
                return Err(CacheError::Unavailable);
            }
            Ok(Err(error)) => (error.to_string(), true),
            // A connection attempt continues in its task, so that the next call may find it
            // established.
            Err(_) => (
                format!("no answer within {} ms", self.deadline.as_millis()),
                connection.peek().is_some(),
            ),
        };
        self.last_error.lock().clone_from(&error);
        let effect = self.breaker.lock().record_failure(Instant::now());
        if matches!(effect, FailureEffect::Opened(_)) {
            log_outage_state!("cache", address = self.label, error, "cache unavailable");
        }
        // A cluster connection reconnects to its nodes by itself; one unresponsive node must not
        // cost the connections to the others.
        let reconnects = matches!(connection.peek(), Some(Ok(RedisConnection::Cluster(_))))
            && matches!(effect, FailureEffect::StillClosed(_));
        if is_lost && !reconnects {
            self.discard(&connection);
        }
        Err(CacheError::Unavailable)
    }

    /// Returns the connection, starting it if necessary. It is established in a separate task,
    /// because the caller's deadline may be shorter than a slow handshake.
    fn connection(&self) -> SharedConnection {
        let mut slot = self.connection.lock();
        slot.get_or_insert_with(|| {
            let connecting = connect(self.server.clone(), self.deadline).boxed().shared();
            tokio::spawn(connecting.clone());
            connecting
        })
        .clone()
    }

    /// Drops a failed connection, unless it has been replaced already.
    fn discard(&self, failed: &SharedConnection) {
        let mut slot = self.connection.lock();
        if slot
            .as_ref()
            .is_some_and(|connection| connection.ptr_eq(failed))
        {
            *slot = None;
        }
    }
}

pub(super) fn set(key: &str, value: &[u8], ttl: Duration) -> Cmd {
    redis::cmd("SET")
        .arg(key)
        .arg(value)
        .arg("PX")
        .arg(millis(ttl))
        .take()
}

/// Returns whether the server executed the command and answered with an error, so that the
/// connection is usable: a wrong type, an unknown command, no memory. Errors of a demoted master
/// (READONLY), a loading server or a cluster that is down do not count.
fn is_command_error(error: &RedisError) -> bool {
    use ServerErrorKind as Kind;
    if let ErrorKind::Server(kind) = error.kind() {
        return !matches!(
            kind,
            Kind::ReadOnly
                | Kind::MasterDown
                | Kind::BusyLoading
                | Kind::ClusterDown
                | Kind::TryAgain
        );
    }
    matches!(
        error.kind(),
        ErrorKind::UnexpectedReturnType | ErrorKind::Extension
    )
}

/// Converts to milliseconds; Redis rejects a time to live of zero.
pub(super) fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis())
        .unwrap_or(u64::MAX)
        .clamp(1, 1 << 50)
}
