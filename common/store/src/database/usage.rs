//! The use of connection pools, as metrics.

use prometheus::IntGaugeVec;

/// The connections of a pool at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Maximum number of connections.
    pub max: usize,
    /// Connections in use, or being opened.
    pub in_use: usize,
    /// Open connections that are not in use.
    pub idle: usize,
    /// Callers that wait for a connection.
    pub waiting: usize,
}

postern_core::metrics! {
    /// The gauges of the connection pools of a process. Clones share them.
    pub struct PoolMetrics {
        /// Connections to PostgreSQL.
        connections: IntGaugeVec = "postern_database_connections" ["pool", "state"];
        /// Maximum number of connections to PostgreSQL.
        max: IntGaugeVec = "postern_database_connections_max" ["pool"];
        /// Callers that wait for a connection to PostgreSQL.
        waiting: IntGaugeVec = "postern_database_acquires_waiting" ["pool"];
    }
}

impl PoolMetrics {
    /// Records the use of a pool. A store without a pool, such as SQLite, has no usage.
    pub fn record(&self, pool: &str, usage: Option<PoolUsage>) {
        let Some(usage) = usage else { return };
        let set = |gauge: &IntGaugeVec, labels: &[&str], count: usize| {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            gauge.with_label_values(labels).set(count);
        };
        set(&self.connections, &[pool, "in_use"], usage.in_use);
        set(&self.connections, &[pool, "idle"], usage.idle);
        set(&self.max, &[pool], usage.max);
        set(&self.waiting, &[pool], usage.waiting);
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::database::testing;

    #[tokio::test]
    async fn connections_in_use_and_waiting_callers_are_counted() {
        let test = testing::postgres().await;
        let pool = test.pool();
        let pool = pool.separate(1, &[], pool.deadline());
        let registry = Registry::new();
        let metrics = PoolMetrics::new(&registry).expect("registered");
        let connection = pool.acquire().await.expect("a connection");
        let waiting = tokio::spawn({
            let pool = pool.clone();
            async move { pool.acquire().await.map(drop) }
        });
        tokio::task::yield_now().await;
        let busy = PoolUsage {
            max: 1,
            in_use: 1,
            idle: 0,
            waiting: 1,
        };
        assert_eq!(pool.usage(), busy);
        metrics.record("main", Some(pool.usage()));
        assert_eq!(metrics.waiting.with_label_values(&["main"]).get(), 1);
        connection.release();
        waiting.await.expect("no panic").expect("a connection");
        let unused = PoolUsage {
            in_use: 0,
            waiting: 0,
            ..busy
        };
        assert_eq!(pool.usage(), unused);
    }
}
