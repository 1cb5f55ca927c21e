//! Failed password attempts, by name. Unknown names are counted as well.

use postern_common::clock::Timestamp;

use super::PoolStore;

/// End of a lock in Unix milliseconds; 0 if the name was never locked.
type LockedUntil = i64;

impl PoolStore {
    pub(crate) async fn locked_until(
        &self,
        pool_id: &str,
        name: &str,
    ) -> Result<LockedUntil, sqlx::Error> {
        Ok(self.last_lock(pool_id, name).await?.unwrap_or(0))
    }

    /// Returns `None` if no failure is recorded.
    async fn last_lock(
        &self,
        pool_id: &str,
        name: &str,
    ) -> Result<Option<LockedUntil>, sqlx::Error> {
        const SQL: &str = "SELECT locked_until FROM pool_attempt WHERE pool_id = $1 AND name = $2";
        sqlx::query_scalar(SQL)
            .bind(pool_id)
            .bind(name)
            .fetch_optional(&self.sqlite.readers)
            .await
    }

    /// Counts a failure, and locks the name from the fifth on: for one second, doubled with each
    /// further failure, up to 15 minutes. Without attempts since `quiet_since`, the count restarts.
    ///
    /// One statement, so that each of several concurrent attempts sees the previous ones. Returns
    /// `false`, and counts nothing, if the name is locked.
    pub(crate) async fn count_failure(
        &self,
        pool_id: &str,
        name: &str,
        now: Timestamp,
        quiet_since: Timestamp,
    ) -> Result<bool, sqlx::Error> {
        const SQL: &str =
            "INSERT INTO pool_attempt (pool_id, name, failures, locked_until, last_at)
            VALUES ($1, $2, 1, 0, $3)
            ON CONFLICT (pool_id, name) DO UPDATE SET
                failures = CASE WHEN pool_attempt.last_at < $4 AND pool_attempt.locked_until < $4
                    THEN 1 ELSE pool_attempt.failures + 1 END,
                locked_until = CASE
                    WHEN pool_attempt.last_at < $4 AND pool_attempt.locked_until < $4 THEN 0
                    WHEN pool_attempt.failures < 4 THEN 0
                    WHEN pool_attempt.failures >= 14 THEN $3 + 900000
                    ELSE $3 + (1000 << CAST(pool_attempt.failures - 4 AS INTEGER)) END,
                last_at = $3
            WHERE pool_attempt.locked_until <= $3";
        let query = sqlx::query(SQL)
            .bind(pool_id)
            .bind(name)
            .bind(now.0)
            .bind(quiet_since.0);
        query
            .execute(&self.sqlite.writer)
            .await
            .map(|done| done.rows_affected() == 1)
    }

    /// Deletes the failures of a name that is not locked. Returns `false` if it is locked. Usually
    /// there are none, and nothing is written.
    pub(crate) async fn clear_failures(
        &self,
        pool_id: &str,
        name: &str,
        now: Timestamp,
    ) -> Result<bool, sqlx::Error> {
        const SQL: &str =
            "DELETE FROM pool_attempt WHERE pool_id = $1 AND name = $2 AND locked_until <= $3";
        if self.last_lock(pool_id, name).await?.is_none() {
            return Ok(true);
        }
        let done = sqlx::query(SQL)
            .bind(pool_id)
            .bind(name)
            .bind(now.0)
            .execute(&self.sqlite.writer)
            .await?;
        let forgotten = done.rows_affected() == 1;
        Ok(forgotten || self.locked_until(pool_id, name).await? <= now.0)
    }

    /// Deletes the failures of a name, locked or not.
    pub(crate) async fn clear_attempts(
        &self,
        pool_id: &str,
        name: &str,
    ) -> Result<(), sqlx::Error> {
        const SQL: &str = "DELETE FROM pool_attempt WHERE pool_id = $1 AND name = $2";
        sqlx::query(SQL)
            .bind(pool_id)
            .bind(name)
            .execute(&self.sqlite.writer)
            .await
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use postern_common::database::testing;

    use super::*;

    #[tokio::test]
    async fn lock_doubles_from_fifth_failure_to_fifteen_minutes() {
        let test = testing::sqlite().await;
        let store = PoolStore::open(test.database.clone())
            .await
            .expect("tables");
        let (mut now, mut locks) = (Timestamp(1_000_000_000), Vec::new());
        for _ in 0..17 {
            let quiet_since = Timestamp(now.0 - 900_000);
            assert!(
                store
                    .count_failure("p", "n", now, quiet_since)
                    .await
                    .expect("counted")
            );
            let until = store.locked_until("p", "n").await.expect("read");
            if until > now.0 {
                let counted = store.count_failure("p", "n", now, quiet_since).await;
                assert!(!counted.expect("rejected"), "not counted while locked");
                assert!(!store.clear_failures("p", "n", now).await.expect("rejected"));
            }
            locks.push((until - now.0).max(0) / 1000);
            now = Timestamp(until.max(now.0));
        }
        assert_eq!(
            locks,
            [
                0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900
            ]
        );
        assert!(
            store
                .clear_failures("p", "n", now)
                .await
                .expect("forgotten")
        );
        assert_eq!(store.locked_until("p", "n").await.expect("read"), 0);
    }
}
