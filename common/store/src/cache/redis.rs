//! The cache in Redis: one server, a cluster, or the master that sentinels report.

mod connection;
mod script;

use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, Script, ServerErrorKind, ToRedisArgs};
use tokio::time::Instant;

pub(super) use self::connection::RedisServerKind;
use self::connection::{RedisConnection, SharedConnection, connect};
use self::script::ScriptSet;
use super::breaker::ServerCircuitBreaker;
use super::pace::MAX_SLOTS_AHEAD;
use super::{AttemptPolicy, CacheError};
use postern_core::circuit_breaker::FailureEffect;
use postern_core::{log_outage, log_outage_state};

/// A cache in Redis, with a circuit breaker and a time limit per call.
pub(super) struct RedisCache {
    /// The URL without password, for log events.
    label: String,
    server: RedisServerKind,
    deadline: Duration,
    breaker: ServerCircuitBreaker,
    connection: Mutex<Option<SharedConnection>>,
    scripts: ScriptSet,
    /// Why the last call that failed did.
    pub(super) last_error: Mutex<String>,
}

// === impl RedisCache ===

impl RedisCache {
    pub(super) fn new(label: String, server: RedisServerKind, deadline: Duration) -> Self {
        // Two TLS providers are linked, so rustls has no default by itself.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        Self {
            label,
            server,
            deadline,
            breaker: ServerCircuitBreaker::default(),
            connection: Mutex::default(),
            scripts: ScriptSet::new(),
            last_error: Mutex::default(),
        }
    }

    pub(super) async fn set(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
    ) -> Result<(), CacheError> {
        self.command(&set(key, value, ttl)).await
    }

    pub(super) async fn set_if_absent(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, CacheError> {
        let stored: Option<String> = self.command(&set_if_absent(key, value, ttl)).await?;
        Ok(stored.is_some())
    }

    pub(super) async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, CacheError> {
        self.command(redis::cmd("GET").arg(key)).await
    }

    pub(super) async fn delete(&self, key: &str) -> Result<bool, CacheError> {
        self.command(redis::cmd("DEL").arg(key)).await
    }

    pub(super) async fn increment(&self, key: &str, ttl: Duration) -> Result<u64, CacheError> {
        self.script(&self.scripts.increment, key, [&millis(ttl).to_string()])
            .await
    }

    /// Returns the microseconds until the reserved slot begins.
    pub(super) async fn reserve_slot(&self, key: &str, interval: i64) -> Result<i64, CacheError> {
        let arguments = [interval, MAX_SLOTS_AHEAD].map(|argument| argument.to_string());
        let script = &self.scripts.reserve_slot;
        self.script(script, key, arguments.each_ref().map(String::as_str))
            .await
    }

    pub(super) async fn delete_if_equal(
        &self,
        key: &str,
        value: &[u8],
    ) -> Result<bool, CacheError> {
        self.script(&self.scripts.delete_if_equal, key, [value])
            .await
    }

    pub(super) async fn extend_if_equal(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, CacheError> {
        let ttl = millis(ttl).to_string();
        self.script(&self.scripts.extend_if_equal, key, [value, ttl.as_bytes()])
            .await
    }

    /// Returns the epoch of the server that stores the key.
    pub(super) async fn epoch(&self, key: &str) -> Result<String, CacheError> {
        self.script::<_, &str, 0>(&self.scripts.epoch, key, [])
            .await
    }

    pub(super) async fn take_with_epoch(
        &self,
        key: &str,
    ) -> Result<(Option<Vec<u8>>, String), CacheError> {
        self.script::<_, &str, 0>(&self.scripts.take, key, []).await
    }

    pub(super) async fn set_if_absent_in(
        &self,
        epoch: &str,
        key: &str,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, CacheError> {
        let ttl = millis(ttl).to_string();
        self.script(
            &self.scripts.set_if_absent,
            key,
            [value, ttl.as_bytes(), epoch.as_bytes()],
        )
        .await
    }

    /// Returns the count and the token of the first attempt of the window, or `None` during a
    /// delay.
    pub(super) async fn reserve_attempt(
        &self,
        key: &str,
        token: &str,
        policy: &AttemptPolicy,
    ) -> Result<Option<(u64, String)>, CacheError> {
        let mut script = self.scripts.reserve_attempt.key(key);
        script.arg(token).arg(&policy_arguments(policy));
        let (count, era): (u64, String) = self
            .call(async |mut connection| script.invoke_async(&mut connection).await)
            .await?;
        Ok((count > 0).then_some((count, era)))
    }

    /// Records the outcome of an attempt with the tokens of the attempt and of its window.
    pub(super) async fn settle_attempt(
        &self,
        key: &str,
        policy: &AttemptPolicy,
        [token, era]: [&str; 2],
        is_failure: bool,
    ) -> Result<(), CacheError> {
        let mut script = self.scripts.settle_attempt.key(key);
        script.arg(token).arg(&policy_arguments(policy)).arg(era);
        script.arg(if is_failure { "failed" } else { "released" });
        self.call(async |mut connection| script.invoke_async(&mut connection).await)
            .await
            .map(|_: i64| ())
    }

    /// Runs a script over one key.
    async fn script<T: FromRedisValue, A: ToRedisArgs, const N: usize>(
        &self,
        script: &Script,
        key: &str,
        arguments: [A; N],
    ) -> Result<T, CacheError> {
        let mut script = script.key(key);
        for argument in arguments {
            script.arg(argument);
        }
        self.call(async |mut connection| script.invoke_async(&mut connection).await)
            .await
    }

    /// Sends one command.
    async fn command<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, CacheError> {
        self.call(async |mut connection| command.query_async(&mut connection).await)
            .await
    }

    /// Performs one call under the deadline and the circuit breaker.
    async fn call<T, F>(&self, send: impl FnOnce(RedisConnection) -> F) -> Result<T, CacheError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        if !self.breaker.allows_call(Instant::now()) {
            return Err(CacheError::Unavailable);
        }
        let connection = self.connection();
        let answer = tokio::time::timeout(self.deadline, async {
            send(connection.clone().await?).await
        })
        .await;
        let (error, is_lost) = match answer {
            Ok(Ok(value)) => {
                if self.breaker.record_answer() {
                    tracing::info!(address = self.label, "cache available again");
                }
                return Ok(value);
            }
            Ok(Err(error)) if is_command_error(&error) => {
                *self.last_error.lock() = error.to_string();
                self.breaker.record_answer();
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
        let effect = self.breaker.record_failure(Instant::now());
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

fn set(key: &str, value: &[u8], ttl: Duration) -> Cmd {
    redis::cmd("SET")
        .arg(key)
        .arg(value)
        .arg("PX")
        .arg(millis(ttl))
        .take()
}

fn set_if_absent(key: &str, value: &[u8], ttl: Duration) -> Cmd {
    set(key, value, ttl).arg("NX").take()
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

/// Returns a policy as arguments of a script.
fn policy_arguments(policy: &AttemptPolicy) -> [u64; 5] {
    let [window, initial, max] =
        [policy.window, policy.delays.initial, policy.delays.max].map(millis);
    [policy.free, policy.delayed_from, window, initial, max]
}

/// Converts to milliseconds; Redis rejects a time to live of zero.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis())
        .unwrap_or(u64::MAX)
        .clamp(1, 1 << 50)
}

impl std::fmt::Debug for RedisCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
