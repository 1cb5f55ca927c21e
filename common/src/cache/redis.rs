//! The cache in Redis: one server, a cluster, or the master that sentinels name.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, join_all, try_join_all};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::sentinel::SentinelClient;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, FromRedisValue, Pipeline, RedisError,
    RedisFuture, Script, ServerErrorKind, TlsCertificates, Value,
};
use tokio::time::Instant;

use super::CacheError;
use super::breaker::{Breaker, Failed};

/// How long a connection may take to come up; callers that wait for it have their own deadline.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// The first of a window sets its end. One script, so that no crash leaves a count without an end.
const INCREMENT: &str = "local n = redis.call('INCR', KEYS[1]) \
                         if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end return n";

/// A count that is forgotten would come back without an end, and none is below zero.
const DECREMENT: &str = "local n = redis.call('GET', KEYS[1]) \
                         if n and n ~= '0' then return redis.call('DECR', KEYS[1]) end return 0";

const DELETE_IF_EQUAL: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] \
                               then return redis.call('DEL', KEYS[1]) end return 0";

/// Where connections come from.
#[derive(Clone)]
pub(super) enum Server {
    Single(Box<Client>),
    Cluster(Vec<ConnectionInfo>, Option<TlsCertificates>),
    Sentinel(Arc<tokio::sync::Mutex<SentinelClient>>),
}

pub(super) struct Redis {
    server: Server,
    deadline: Duration,
    breaker: Breaker,
    link: Mutex<Option<Connecting>>,
    increment: Script,
    decrement: Script,
    delete_if_equal: Script,
}

/// A connection, or one that is being made: whoever needs it waits for the same one.
type Connecting = Shared<BoxFuture<'static, Result<Link, RedisError>>>;

/// A connection that many calls share.
#[derive(Clone)]
enum Link {
    /// To one server, with its `run_id`: no connection outlives the process that it names.
    Plain(MultiplexedConnection, Arc<str>),
    Cluster(ClusterConnection),
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
            increment: Script::new(INCREMENT),
            decrement: Script::new(DECREMENT),
            delete_if_equal: Script::new(DELETE_IF_EQUAL),
        }
    }

    pub(super) async fn set(&self, key: &str, value: &[u8], ttl: Duration) -> Result<(), CacheError> {
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

    /// The nodes of a cluster know no order among themselves: they are asked twice.
    pub(super) async fn set_if_absent_and_get<const N: usize>(
        &self,
        key: &str,
        value: &[u8],
        ttl: Duration,
        wanted: &[String; N],
    ) -> Result<(bool, [Option<Vec<u8>>; N]), CacheError> {
        let lock = set_if_absent(key, value, ttl);
        let gets = wanted.each_ref().map(|key| redis::cmd("GET").arg(key).take());
        let answers: Vec<Value> = if self.is_cluster() {
            let kept = self.command(&lock).await?;
            let found = try_join_all(gets.iter().map(|get| self.command(get))).await?;
            std::iter::once(kept).chain(found).collect()
        } else {
            let pipeline = in_order(std::iter::once(lock).chain(gets));
            self.call(async |mut link| pipeline.query_async(&mut link).await).await?
        };
        let mut answers = answers.into_iter();
        let kept = answers.next() == Some(Value::Okay);
        let found = answers.map(Option::from_redis_value).collect::<Result<Vec<_>, _>>();
        let found = found.ok().and_then(|found| found.try_into().ok());
        Ok((kept, found.ok_or(CacheError::Unavailable)?))
    }

    /// All of it is tried, and the key deleted, whatever became of the rest.
    pub(super) async fn set_and_delete_if_equal(
        &self,
        kept: &[(String, &[u8], Duration)],
        key: &str,
        value: &[u8],
    ) -> Result<(), CacheError> {
        if self.is_cluster() {
            let set = join_all(kept.iter().map(|(key, value, ttl)| self.set(key, value, *ttl))).await;
            self.delete_if_equal(key, value).await?;
            return set.into_iter().collect();
        }
        let mut pipeline = in_order(kept.iter().map(|(key, value, ttl)| set(key, value, *ttl)));
        pipeline.cmd("EVALSHA").arg(self.delete_if_equal.get_hash()).arg(1).arg(key).arg(value);
        let mut delete = self.delete_if_equal.key(key);
        delete.arg(value);
        self.call(async |mut link| match pipeline.query_async::<Vec<Value>>(&mut link).await {
            // The values are kept, and the server has not seen the script yet.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                delete.invoke_async(&mut link).await
            }
            answer => answer.map(drop),
        })
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
        let mut script = self.increment.key(key);
        script.arg(millis(ttl));
        self.call(async |mut link| script.invoke_async(&mut link).await).await
    }

    pub(super) async fn decrement(&self, key: &str) -> Result<(), CacheError> {
        let script = self.decrement.key(key);
        self.call(async |mut link| script.invoke_async::<i64>(&mut link).await).await.map(drop)
    }

    pub(super) async fn delete_if_equal(&self, key: &str, value: &[u8]) -> Result<bool, CacheError> {
        let mut script = self.delete_if_equal.key(key);
        script.arg(value);
        self.call(async |mut link| script.invoke_async(&mut link).await).await
    }

    /// The `run_id` of the server that holds the key. A connection to one server knows it already; a cluster's heals
    /// itself without telling, so that the node is asked.
    pub(super) async fn run_id(&self, key: &str) -> Result<String, CacheError> {
        self.call(async |link| match link {
            Link::Plain(_, run_id) => Ok(run_id.to_string()),
            Link::Cluster(mut nodes) => {
                let node = SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master));
                let answer = nodes.route_command(info(), RoutingInfo::SingleNode(node)).await?;
                Ok(run_id(&String::from_redis_value(answer)?).to_owned())
            }
        })
        .await
    }

    async fn command<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, CacheError> {
        self.call(async |mut link| command.query_async(&mut link).await).await
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
        let answer = tokio::time::timeout(self.deadline, async { ask(link.clone().await?).await }).await;
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
            // A connection that is still being made is not given up: the next call may find it ready.
            Err(_) => (format!("no answer within {} ms", self.deadline.as_millis()), link.peek().is_some()),
        };
        let failed = self.breaker.failed(Instant::now());
        if failed == Failed::Opened {
            tracing::warn!(cause, "the cache is not available");
        }
        // A cluster's connection heals itself, and one node that hangs must not cost the others theirs.
        let heals = matches!(link.peek(), Some(Ok(Link::Cluster(_)))) && failed == Failed::StillClosed;
        if is_lost && !heals {
            self.forget(&link);
        }
        Err(CacheError::Unavailable)
    }

    /// The connection that is there, or the beginning of one. It comes up in a task of its own, because the
    /// caller's deadline is shorter than a slow handshake.
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

async fn connect(server: Server, deadline: Duration) -> Result<Link, RedisError> {
    let settings = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_WITHIN))
        .set_response_timeout(Some(CONNECT_WITHIN));
    let link = async {
        match &server {
            Server::Single(client) => {
                plain(client.get_multiplexed_async_connection_with_config(&settings).await?).await
            }
            Server::Sentinel(sentinel) => {
                plain(sentinel.lock().await.get_async_connection_with_config(&settings).await?).await
            }
            Server::Cluster(nodes, certificates) => {
                let mut client = ClusterClient::builder(nodes.clone())
                    .retries(1)
                    .connection_timeout(CONNECT_WITHIN)
                    .response_timeout(deadline);
                if let Some(certificates) = certificates {
                    client = client.certs(certificates.clone());
                }
                client.build()?.get_async_connection().await.map(Link::Cluster)
            }
        }
    };
    // The library's own timeouts do not bound the look-up of names, nor the sentinels.
    tokio::time::timeout(2 * CONNECT_WITHIN, link)
        .await
        .unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
}

/// A connection to one server, which is asked who it is. One that may not tell (an ACL without INFO) is used all the
/// same: then the operator alone keeps snapshots from bringing back what was taken.
async fn plain(mut link: MultiplexedConnection) -> Result<Link, RedisError> {
    let told: Result<String, RedisError> = info().query_async(&mut link).await;
    let told = match told {
        Ok(told) => told,
        Err(error) if is_answer(&error) => {
            tracing::warn!(%error, "the cache does not tell its run_id");
            String::new()
        }
        Err(error) => return Err(error),
    };
    Ok(Link::Plain(link, run_id(&told).into()))
}

/// Each after the one before, in one round trip.
fn in_order(commands: impl IntoIterator<Item = Cmd>) -> Pipeline {
    let mut pipeline = redis::pipe();
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
}

fn set(key: &str, value: &[u8], ttl: Duration) -> Cmd {
    redis::cmd("SET").arg(key).arg(value).arg("PX").arg(millis(ttl)).take()
}

fn set_if_absent(key: &str, value: &[u8], ttl: Duration) -> Cmd {
    set(key, value, ttl).arg("NX").take()
}

fn info() -> Cmd {
    redis::cmd("INFO").arg("server").take()
}

/// The `run_id` in the answer to INFO: 40 hexadecimal digits, drawn at each start of a server.
fn run_id(told: &str) -> &str {
    told.lines().find_map(|line| line.strip_prefix("run_id:")).map_or("", str::trim)
}

/// Whether the server answered, so that the connection is sound: a wrong type, an unknown command, no memory
/// left. A replica that was a master (READONLY), a server that loads or a cluster that is down is none of these.
fn is_answer(error: &RedisError) -> bool {
    use ServerErrorKind as Kind;
    if let ErrorKind::Server(kind) = error.kind() {
        return !matches!(
            kind,
            Kind::ReadOnly | Kind::MasterDown | Kind::BusyLoading | Kind::ClusterDown | Kind::TryAgain
        );
    }
    matches!(error.kind(), ErrorKind::UnexpectedReturnType | ErrorKind::Extension)
}

/// Redis knows no time to live of zero.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 50)
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

// === impl Link ===

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Plain(link, _) => link.req_packed_command(cmd),
            Self::Cluster(link) => link.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Plain(link, _) => link.req_packed_commands(pipeline, offset, count),
            Self::Cluster(link) => link.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Plain(link, _) => link.get_db(),
            Self::Cluster(link) => link.get_db(),
        }
    }
}
