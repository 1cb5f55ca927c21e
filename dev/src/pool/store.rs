//! Persistence in SQLite. All SQL of the crate is in this module; it depends on `model`.

mod codes;
mod groups;
mod pools;
mod schema;
mod sessions;
mod signing_keys;
mod users;

pub(crate) use self::codes::{CodeCheck, CodeKey, CodeTimes};
pub(crate) use self::groups::GroupRow;
pub(crate) use self::sessions::{
    ChallengeRow, RefreshSession, RotateToken, StartSession, TokenFamily,
};
pub(crate) use self::users::{Page, UserColumn, UserFilter};

use postern_common::clock::Timestamp;
use postern_common::database::{Database, Sqlite};
use postern_common::exit::Exit;

/// The store, with the schema of this version.
#[derive(Clone, Debug)]
pub(crate) struct PoolStore {
    sqlite: Sqlite,
}

// === impl PoolStore ===

impl PoolStore {
    /// Migrates and returns the store.
    ///
    /// # Errors
    /// Exit status 64 if the database is not SQLite; 69 if it is unavailable.
    pub(crate) async fn open(database: Database) -> Result<Self, Exit> {
        let Database::Sqlite(sqlite) = &database else {
            return Err(Exit::usage(
                "identity pool: the database must begin with sqlite://",
            ));
        };
        database.migrate(&schema::MIGRATIONS).await?;
        Ok(Self {
            sqlite: sqlite.clone(),
        })
    }

    /// Closes the connections and checkpoints the write-ahead log.
    pub(crate) async fn close(&self) {
        Database::Sqlite(self.sqlite.clone()).close().await;
    }

    /// Deletes expired rows. Returns their number.
    pub(crate) async fn delete_expired(&self, now: Timestamp) -> Result<u64, sqlx::Error> {
        const EXPIRED: [&str; 4] = [
            "DELETE FROM pool_family WHERE expires_at < $1",
            // After a week, the reuse of a rotated token is no longer detected and the token is
            // unknown.
            "DELETE FROM pool_refresh_token WHERE rotated_at < $1 - 604800000",
            "DELETE FROM pool_challenge WHERE expires_at < $1",
            "DELETE FROM pool_code WHERE expires_at < $1 AND window_start < $1 - 3600000",
        ];
        let mut swept = 0;
        for statement in EXPIRED {
            let done = sqlx::query(statement)
                .bind(now.0)
                .execute(&self.sqlite.writer)
                .await?;
            swept += done.rows_affected();
        }
        Ok(swept)
    }

    /// Returns a setting that the server stores about itself.
    pub(crate) async fn setting(&self, name: &str) -> Result<Option<String>, sqlx::Error> {
        const SQL: &str = "SELECT value FROM pool_setting WHERE name = $1";
        sqlx::query_scalar(SQL)
            .bind(name)
            .fetch_optional(&self.sqlite.readers)
            .await
    }

    pub(crate) async fn set_setting(&self, name: &str, value: &str) -> Result<(), sqlx::Error> {
        const SQL: &str = "INSERT INTO pool_setting (name, value) VALUES ($1, $2)
            ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        sqlx::query(SQL)
            .bind(name)
            .bind(value)
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
    async fn postgres_is_rejected() {
        let test = testing::postgres().await;
        let rejected = PoolStore::open(test.database.clone()).await;
        assert_eq!(rejected.expect_err("rejected").status(), 64);
    }
}
