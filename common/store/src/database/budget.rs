//! The PostgreSQL connections that a process may open, compared with those that the server allows.

use super::{Database, Dialect};

/// The maximum number of PostgreSQL connections of one process, by use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionBudget {
    parts: Vec<(&'static str, u32)>,
}

/// A connection budget compared with the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionBudgetReport {
    /// Maximum connections of the process.
    pub connections: u32,
    /// Connections that the server allows to ordinary users; `None` if it does not say.
    pub server_limit: Option<u32>,
    /// A sentence for operators.
    pub text: String,
}

/// Connections that the server allows to users without a privilege: those of `max_connections`
/// that are not reserved. `reserved_connections` exists since PostgreSQL 16.
const SERVER_LIMIT: &str = "SELECT current_setting('max_connections')::int8 \
     - current_setting('superuser_reserved_connections')::int8 \
     - coalesce(nullif(current_setting('reserved_connections', true), '')::int8, 0)";

// === impl ConnectionBudget ===

impl ConnectionBudget {
    /// Creates a budget of the maximum connections for each use.
    #[must_use]
    pub fn new(parts: &[(&'static str, u32)]) -> Self {
        Self {
            parts: parts.to_vec(),
        }
    }

    /// Returns the maximum number of connections.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.parts.iter().map(|(_, connections)| connections).sum()
    }

    /// Compares the budget with the limit of a server.
    #[must_use]
    pub fn compare(&self, server_limit: Option<u32>) -> ConnectionBudgetReport {
        let total = self.total();
        let parts: Vec<String> = self
            .parts
            .iter()
            .map(|(name, connections)| format!("{name} {connections}"))
            .collect();
        let budget = format!(
            "at most {total} connections per process ({})",
            parts.join(", ")
        );
        let text = match server_limit {
            None => budget,
            Some(limit) if total > limit => format!(
                "{budget}, but the server allows {limit}: raise its max_connections, or lower the connections of the process"
            ),
            Some(limit) => format!(
                "{budget}; the server allows {limit}, enough for {} such processes",
                limit.checked_div(total).unwrap_or(limit)
            ),
        };
        ConnectionBudgetReport {
            connections: total,
            server_limit,
            text,
        }
    }
}

// === impl ConnectionBudgetReport ===

impl ConnectionBudgetReport {
    /// Returns whether the server allows less connections than the process may open.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.server_limit
            .is_some_and(|limit| self.connections > limit)
    }
}

// === impl Database ===

impl Database {
    /// Compares a budget with the server. Returns `None` for SQLite, which has no connections.
    pub async fn compare_budget(
        &self,
        budget: &ConnectionBudget,
    ) -> Option<ConnectionBudgetReport> {
        let Dialect::Postgres(pool) = self else {
            return None;
        };
        let limit: Result<i64, sqlx::Error> =
            sqlx::query_scalar(SERVER_LIMIT).fetch_one(pool).await;
        Some(budget.compare(limit.ok().and_then(|limit| u32::try_from(limit).ok())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::testing;

    #[test]
    fn budget_above_the_servers_limit_is_exceeded() {
        let budget = ConnectionBudget::new(&[("main", 10), ("queue", 6), ("LISTEN", 1)]);
        let fits = budget.compare(Some(97));
        assert_eq!(
            fits.text,
            "at most 17 connections per process (main 10, queue 6, LISTEN 1); the server allows 97, \
             enough for 5 such processes"
        );
        assert!(!fits.is_exceeded() && !budget.compare(None).is_exceeded());
        assert!(!budget.compare(Some(17)).is_exceeded());
        let exceeded = budget.compare(Some(16));
        assert!(exceeded.is_exceeded());
        assert!(
            exceeded.text.contains("but the server allows 16"),
            "{}",
            exceeded.text
        );
    }

    #[tokio::test]
    async fn limit_of_the_server_is_read() {
        let test = testing::postgres().await;
        let budget = ConnectionBudget::new(&[("main", 10)]);
        let report = test.database.compare_budget(&budget).await;
        let limit = report.expect("PostgreSQL").server_limit;
        assert!(limit.is_some_and(|limit| limit >= 10), "{limit:?}");
        let file = testing::sqlite().await;
        assert_eq!(file.database.compare_budget(&budget).await, None);
    }
}
