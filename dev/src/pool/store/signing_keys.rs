//! Signing keys, one for each pool: PKCS #8 in base64.

use super::PoolStore;

impl PoolStore {
    pub(crate) async fn signing_key(&self, pool_id: &str) -> Result<Option<String>, sqlx::Error> {
        const SQL: &str = "SELECT der FROM pool_key WHERE pool_id = $1";
        sqlx::query_scalar(SQL)
            .bind(pool_id)
            .fetch_optional(&self.sqlite.readers)
            .await
    }

    pub(crate) async fn add_signing_key(
        &self,
        pool_id: &str,
        der: &str,
    ) -> Result<(), sqlx::Error> {
        const SQL: &str = "INSERT INTO pool_key (pool_id, der) VALUES ($1, $2)";
        let query = sqlx::query(SQL).bind(pool_id).bind(der);
        query.execute(&self.sqlite.writer).await.map(drop)
    }
}
