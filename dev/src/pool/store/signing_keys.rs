//! Rows of signing keys. A key is identified by the start of its signing period: of two processes
//! that create the same key, one succeeds.

use postern_common::clock::Timestamp;
use postern_common::from_row;

use super::PoolStore;

/// A signing key, as stored.
#[derive(Clone)]
pub(crate) struct SigningKeyRow {
    pub(crate) kid: String,
    pub(crate) pool_id: String,
    /// PKCS #8 in base64.
    pub(crate) der: String,
    pub(crate) signs_from: i64,
}

from_row!(SigningKeyRow {
    kid: String,
    pool_id: String,
    der: String,
    signs_from: i64,
});

impl PoolStore {
    pub(crate) async fn keys(&self) -> Result<Vec<SigningKeyRow>, sqlx::Error> {
        const SQL: &str =
            "SELECT kid, pool_id, der, signs_from FROM pool_key ORDER BY pool_id, signs_from";
        sqlx::query_as(SQL).fetch_all(&self.sqlite.readers).await
    }

    pub(crate) async fn add_key(&self, key: &SigningKeyRow) -> Result<(), sqlx::Error> {
        const SQL: &str =
            "INSERT INTO pool_key (kid, pool_id, der, signs_from) VALUES ($1, $2, $3, $4)
            ON CONFLICT DO NOTHING";
        let query = sqlx::query(SQL)
            .bind(&key.kid)
            .bind(&key.pool_id)
            .bind(&key.der)
            .bind(key.signs_from);
        query.execute(&self.sqlite.writer).await.map(drop)
    }

    /// Deletes the keys whose successor has signed since before `superseded_before`.
    pub(crate) async fn delete_expired_keys(
        &self,
        pool_id: &str,
        superseded_before: Timestamp,
    ) -> Result<u64, sqlx::Error> {
        const SQL: &str = "DELETE FROM pool_key WHERE pool_id = $1 AND signs_from < (
            SELECT max(signs_from) FROM pool_key WHERE pool_id = $1 AND signs_from < $2)";
        let done = sqlx::query(SQL)
            .bind(pool_id)
            .bind(superseded_before.0)
            .execute(&self.sqlite.writer)
            .await;
        done.map(|done| done.rows_affected())
    }
}
