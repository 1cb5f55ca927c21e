//! Connections to Redis.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Shared};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::SentinelClient;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, Pipeline, RedisError, RedisFuture,
    TlsCertificates, Value,
};

/// Maximum time for establishing a connection. Callers have their own, shorter deadline.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The deployment that connections are made to.
#[derive(Clone)]
pub(in crate::cache) enum RedisServerKind {
    Single(Box<Client>),
    Cluster(Vec<ConnectionInfo>, Option<TlsCertificates>),
    Sentinel(Arc<tokio::sync::Mutex<SentinelClient>>),
}

/// A connection, or a connection attempt that all callers share.
pub(super) type SharedConnection = Shared<BoxFuture<'static, Result<RedisConnection, RedisError>>>;

/// A connection multiplexed among calls.
#[derive(Clone)]
pub(super) enum RedisConnection {
    Plain(MultiplexedConnection),
    Cluster(ClusterConnection),
}

pub(super) async fn connect(
    server: RedisServerKind,
    deadline: Duration,
) -> Result<RedisConnection, RedisError> {
    let settings = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(CONNECT_TIMEOUT));
    let connection = async {
        match &server {
            RedisServerKind::Single(client) => client
                .get_multiplexed_async_connection_with_config(&settings)
                .await
                .map(RedisConnection::Plain),
            RedisServerKind::Sentinel(sentinel) => sentinel
                .lock()
                .await
                .get_async_connection_with_config(&settings)
                .await
                .map(RedisConnection::Plain),
            RedisServerKind::Cluster(nodes, certificates) => {
                let mut client = ClusterClient::builder(nodes.clone())
                    .retries(1)
                    .connection_timeout(CONNECT_TIMEOUT)
                    .response_timeout(deadline);
                if let Some(certificates) = certificates {
                    client = client.certs(certificates.clone());
                }
                client
                    .build()?
                    .get_async_connection()
                    .await
                    .map(RedisConnection::Cluster)
            }
        }
    };
    // The library's timeouts cover neither name resolution nor the sentinels.
    tokio::time::timeout(2 * CONNECT_TIMEOUT, connection)
        .await
        .unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
}

impl ConnectionLike for RedisConnection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Plain(connection) => connection.req_packed_command(cmd),
            Self::Cluster(connection) => connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Plain(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Plain(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}
