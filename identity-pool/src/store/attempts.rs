//! Failed password attempts, by the name that was tried: a name that no user has is counted as well.

use postern_common::clock::Timestamp;

use super::{Store, reading, writing};

/// What is known about a name's failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, sqlx::FromRow)]
pub(crate) struct Attempts {
    pub(crate) failures: i64,
    pub(crate) locked_until: i64,
    pub(crate) last_at: i64,
}

impl Store {
    pub(crate) async fn attempts(&self, pool_id: &str, name: &str) -> Result<Attempts, sqlx::Error> {
        const SQL: &str =
            "SELECT failures, locked_until, last_at FROM pool_attempt WHERE pool_id = $1 AND name = $2";
        let found = reading!(self, db => {
            sqlx::query_as::<_, Attempts>(SQL).bind(pool_id).bind(name).fetch_optional(db).await
        })?;
        Ok(found.unwrap_or_default())
    }

    /// Counts a failure and returns how many there are now. After `quiet_since` without an attempt, the count
    /// begins anew.
    pub(crate) async fn count_failure(
        &self,
        (pool_id, name): (&str, &str),
        now: Timestamp,
        quiet_since: Timestamp,
    ) -> Result<i64, sqlx::Error> {
        const SQL: &str = "INSERT INTO pool_attempt (pool_id, name, failures, locked_until, last_at)
            VALUES ($1, $2, 1, 0, $3)
            ON CONFLICT (pool_id, name) DO UPDATE SET
                failures = CASE WHEN pool_attempt.last_at < $4 AND pool_attempt.locked_until < $4
                    THEN 1 ELSE pool_attempt.failures + 1 END,
                last_at = $3
            RETURNING failures";
        writing!(self, db => {
            let query = sqlx::query_scalar(SQL).bind(pool_id).bind(name).bind(now.0).bind(quiet_since.0);
            query.fetch_one(db).await
        })
    }

    /// Locks the name until `until`, or longer if it is locked for longer.
    pub(crate) async fn lock_name(
        &self,
        pool_id: &str,
        name: &str,
        until: Timestamp,
    ) -> Result<(), sqlx::Error> {
        const SQL: &str = "UPDATE pool_attempt SET locked_until = $3
            WHERE pool_id = $1 AND name = $2 AND locked_until < $3";
        writing!(self, db => sqlx::query(SQL).bind(pool_id).bind(name).bind(until.0).execute(db).await.map(drop))
    }

    pub(crate) async fn forget_attempts(&self, pool_id: &str, name: &str) -> Result<(), sqlx::Error> {
        const SQL: &str = "DELETE FROM pool_attempt WHERE pool_id = $1 AND name = $2";
        writing!(self, db => sqlx::query(SQL).bind(pool_id).bind(name).execute(db).await.map(drop))
    }
}
