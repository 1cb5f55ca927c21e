//! The cache in Redis: one server, a cluster, or the master that sentinels name.

mod link;
mod script;

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join_all, try_join_all};
use redis::{
    Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, Script, ServerErrorKind, ToRedisArgs,
    Value,
};
use tokio::time::Instant;

pub(super) use self::link::Server;
use self::link::{Connecting, Link, connect};
use self::script::Scripts;
use super::breaker::{Breaker, Failed};
use super::{CacheError, Change, Found};

pub(super) struct Redis {
    server: Server,
    deadline: Duration,
    breaker: Breaker,
    link: Mutex<Option<Connecting>>,
    scripts: Scripts,
}

// === impl Redis ===

impl Redis {
    pub(super) fn new(server: Server, deadline: Duration) -> Self {
        // Two providers are linked into our processes, so that none is the default by itself.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        Self {
            server,
            deadline,
            breaker: Breaker::default(),
            link: Mutex::default(),
            scripts: Scripts::new(),
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
        let kept: Option<String> = self.command(&set_if_absent(key, value, ttl)).await?;
        Ok(kept.is_some())
    }

    /// The epoch is read first: what is read after it may be of a later one, and is not committed
    /// then. The nodes of a cluster know no order among themselves: they are asked one after the
    /// other.
    pub(super) async fn set_if_absent_and_get<const N: usize>(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
        wanted: &[String; N],
    ) -> Result<(bool, Found<N>), CacheError> {
        let lock = set_if_absent(key, value, ttl);
        let gets = wanted
            .each_ref()
            .map(|key| redis::cmd("GET").arg(key).take());
        let first = wanted.first().map_or(key, String::as_str);
        let (epoch, answers) = if self.is_cluster() {
            let epoch = self.epoch(first).await?;
            let kept: Value = self.command(&lock).await?;
            let found = try_join_all(gets.iter().map(|get| self.command(get))).await?;
            (epoch, std::iter::once(kept).chain(found).collect())
        } else {
            let mut pipeline = redis::pipe();
            pipeline
                .cmd("EVAL")
                .arg(&self.scripts.epoch_text)
                .arg(1)
                .arg(first);
            let pipeline = in_order(pipeline, std::iter::once(lock).chain(gets));
            let mut answers: Vec<Value> = self
                .call(async |mut link| pipeline.query_async(&mut link).await)
                .await?;
            let epoch = if answers.is_empty() {
                Value::Nil
            } else {
                answers.remove(0)
            };
            (
                String::from_redis_value(epoch).map_err(|_| CacheError::Unavailable)?,
                answers,
            )
        };
        let mut answers = answers.into_iter();
        let kept = answers.next() == Some(Value::Okay);
        let values = answers
            .map(Option::from_redis_value)
            .collect::<Result<Vec<_>, _>>();
        let values = values
            .ok()
            .and_then(|values| values.try_into().ok())
            .ok_or(CacheError::Unavailable)?;
        Ok((kept, Found { values, epoch }))
    }

    /// One script; over a cluster, where the keys are on different nodes, the comparison is one and
    /// the others follow.
    pub(super) async fn commit(
        &self,
        change: &Change<'_>,
        kept: &[(String, &[u8], Duration)],
        lock: Option<(&str, &[u8])>,
    ) -> Result<bool, CacheError> {
        let mut script = self.scripts.commit.prepare_invoke();
        script
            .key(change.key)
            .arg(change.epoch)
            .arg(change.value)
            .arg(millis(change.ttl));
        script.arg(if change.expected.is_some() {
            "present"
        } else {
            "absent"
        });
        script
            .arg(change.expected.unwrap_or_default())
            .arg(lock.map_or(&b""[..], |(_, token)| token));
        if self.is_cluster() {
            let committed: bool = self
                .call(async |mut link| script.invoke_async(&mut link).await)
                .await?;
            if committed {
                // Each is tried, and the lock deleted, whatever became of the rest: the change is
                // what counts.
                let set = join_all(
                    kept.iter()
                        .map(|(key, value, ttl)| self.set(key, value, *ttl)),
                )
                .await;
                let is_released = match lock {
                    Some((lock, token)) => self.delete_if_equal(lock, token).await.is_ok(),
                    None => true,
                };
                if !is_released || set.iter().any(Result::is_err) {
                    tracing::warn!("commit left out what is kept beside it");
                }
            }
            return Ok(committed);
        }
        if let Some((lock, _)) = lock {
            script.key(lock);
        }
        for (key, value, ttl) in kept {
            script.key(key).arg(value).arg(millis(*ttl));
        }
        self.call(async |mut link| script.invoke_async(&mut link).await)
            .await
    }

    pub(super) async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, CacheError> {
        self.command(redis::cmd("GET").arg(key)).await
    }

    pub(super) async fn take(&self, key: &str) -> Result<Option<Vec<u8>>, CacheError> {
        self.command(redis::cmd("GETDEL").arg(key)).await
    }

    pub(super) async fn delete(&self, key: &str) -> Result<bool, CacheError> {
        self.command(redis::cmd("DEL").arg(key)).await
    }

    pub(super) async fn ping(&self) -> Result<(), CacheError> {
        self.command::<String>(&redis::cmd("PING")).await.map(drop)
    }

    pub(super) async fn increment(&self, key: &str, ttl: Duration) -> Result<u64, CacheError> {
        self.script(&self.scripts.increment, key, [&millis(ttl).to_string()])
            .await
    }

    pub(super) async fn decrement(&self, key: &str) -> Result<(), CacheError> {
        self.script::<i64, &str, 0>(&self.scripts.decrement, key, [])
            .await
            .map(drop)
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

    /// The epoch of the server that holds the key.
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
        self.call(async |mut link| script.invoke_async(&mut link).await)
            .await
    }

    async fn command<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, CacheError> {
        self.call(async |mut link| command.query_async(&mut link).await)
            .await
    }

    fn is_cluster(&self) -> bool {
        matches!(self.server, Server::Cluster(..))
    }

    /// One call under the deadline and the breaker.
    async fn call<T, F>(&self, ask: impl FnOnce(Link) -> F) -> Result<T, CacheError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        if !self.breaker.admits(Instant::now()) {
            return Err(CacheError::Unavailable);
        }
        let link = self.link();
        let answer =
            tokio::time::timeout(self.deadline, async { ask(link.clone().await?).await }).await;
        let (cause, is_lost) = match answer {
            Ok(Ok(value)) => {
                if self.breaker.succeeded() {
                    tracing::info!("the cache answers again");
                }
                return Ok(value);
            }
            Ok(Err(error)) if is_answer(&error) => {
                if self.breaker.refused(Instant::now()) {
                    tracing::warn!(%error, "the cache refused a command");
                }
                return Err(CacheError::Unavailable);
            }
            Ok(Err(error)) => (error.to_string(), true),
            // A connection that is still being made is not given up: the next call may find it
            // ready.
            Err(_) => (
                format!("no answer within {} ms", self.deadline.as_millis()),
                link.peek().is_some(),
            ),
        };
        let failed = self.breaker.failed(Instant::now());
        if failed == Failed::Opened {
            tracing::warn!(cause, "the cache is not available");
        }
        // A cluster's connection heals itself, and one node that hangs must not cost the others
        // theirs.
        let heals =
            matches!(link.peek(), Some(Ok(Link::Cluster(_)))) && failed == Failed::StillClosed;
        if is_lost && !heals {
            self.forget(&link);
        }
        Err(CacheError::Unavailable)
    }

    /// The connection that is there, or the beginning of one. It comes up in a task of its own,
    /// because the caller's deadline is shorter than a slow handshake.
    fn link(&self) -> Connecting {
        let mut slot = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert_with(|| {
            let connecting = connect(self.server.clone(), self.deadline).boxed().shared();
            tokio::spawn(connecting.clone());
            connecting
        })
        .clone()
    }

    /// Drops a connection that failed, unless another has replaced it already.
    fn forget(&self, failed: &Connecting) {
        let mut slot = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.as_ref().is_some_and(|link| link.ptr_eq(failed)) {
            *slot = None;
        }
    }
}

/// Each after the one before, in one round trip.
fn in_order(mut pipeline: Pipeline, commands: impl IntoIterator<Item = Cmd>) -> Pipeline {
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
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

/// Whether the server answered, so that the connection is sound: a wrong type, an unknown command,
/// no memory left. A replica that was a master (READONLY), a server that loads or a cluster that is
/// down is none of these.
fn is_answer(error: &RedisError) -> bool {
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

/// Redis knows no time to live of zero.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis())
        .unwrap_or(u64::MAX)
        .clamp(1, 1 << 50)
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
