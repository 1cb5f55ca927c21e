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

/// How long a connection may take to come up; callers that wait for it have their own deadline.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// Where connections come from.
#[derive(Clone)]
pub(in crate::cache) enum Server {
    Single(Box<Client>),
    Cluster(Vec<ConnectionInfo>, Option<TlsCertificates>),
    Sentinel(Arc<tokio::sync::Mutex<SentinelClient>>),
}

/// A connection, or one that is being made: whoever needs it waits for the same one.
pub(super) type Connecting = Shared<BoxFuture<'static, Result<Link, RedisError>>>;

/// A connection that many calls share.
#[derive(Clone)]
pub(super) enum Link {
    Plain(MultiplexedConnection),
    Cluster(ClusterConnection),
}

pub(super) async fn connect(server: Server, deadline: Duration) -> Result<Link, RedisError> {
    let settings = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_WITHIN))
        .set_response_timeout(Some(CONNECT_WITHIN));
    let link = async {
        match &server {
            Server::Single(client) => client
                .get_multiplexed_async_connection_with_config(&settings)
                .await
                .map(Link::Plain),
            Server::Sentinel(sentinel) => sentinel
                .lock()
                .await
                .get_async_connection_with_config(&settings)
                .await
                .map(Link::Plain),
            Server::Cluster(nodes, certificates) => {
                let mut client = ClusterClient::builder(nodes.clone())
                    .retries(1)
                    .connection_timeout(CONNECT_WITHIN)
                    .response_timeout(deadline);
                if let Some(certificates) = certificates {
                    client = client.certs(certificates.clone());
                }
                client
                    .build()?
                    .get_async_connection()
                    .await
                    .map(Link::Cluster)
            }
        }
    };
    // The library's own timeouts do not bound the look-up of names, nor the sentinels.
    tokio::time::timeout(2 * CONNECT_WITHIN, link)
        .await
        .unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
}

// === impl Link ===

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Plain(link) => link.req_packed_command(cmd),
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
            Self::Plain(link) => link.req_packed_commands(pipeline, offset, count),
            Self::Cluster(link) => link.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Plain(link) => link.get_db(),
            Self::Cluster(link) => link.get_db(),
        }
    }
}
