//! Paused providers.

use super::Postgres;
use crate::store::row::ProviderPause;
use crate::store::{ReplicaSignal, StoreResult};

impl Postgres {
    pub(in crate::store) async fn paused_providers(&self) -> StoreResult<Vec<ProviderPause>> {
        let sql = "SELECT provider, operator, at, reason FROM notify_provider_pause";
        let rows = sqlx::query_as(sql).fetch_all(&self.history).await?;
        Ok(rows.into_iter().map(ProviderPause::of_row).collect())
    }

    pub(in crate::store) async fn pause_provider(
        &self,
        pause: &ProviderPause,
    ) -> StoreResult<bool> {
        let sql = "INSERT INTO notify_provider_pause (provider, operator, at, reason)
            VALUES ($1, $2, $3, $4) ON CONFLICT (provider) DO NOTHING";
        let insert = sqlx::query(sql)
            .bind(&pause.provider)
            .bind(&pause.operator)
            .bind(pause.at.0)
            .bind(&pause.reason);
        let inserted = insert.execute(&self.history).await?.rows_affected();
        self.announce(ReplicaSignal::PausesChanged, inserted).await;
        Ok(inserted == 1)
    }

    pub(in crate::store) async fn resume_provider(&self, provider: &str) -> StoreResult<bool> {
        let sql = "DELETE FROM notify_provider_pause WHERE provider = $1";
        let delete = sqlx::query(sql).bind(provider);
        let deleted = delete.execute(&self.history).await?.rows_affected();
        self.announce(ReplicaSignal::PausesChanged, deleted).await;
        Ok(deleted == 1)
    }
}
