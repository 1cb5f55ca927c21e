//! Paused providers.

use super::Postgres;
use crate::store::read::{DELETE_PAUSE, INSERT_PAUSE, SELECT_PAUSES};
use crate::store::row::ProviderPause;
use crate::store::{ReplicaSignal, StoreResult};

impl Postgres {
    pub(in crate::store) async fn paused_providers(&self) -> StoreResult<Vec<ProviderPause>> {
        let rows = sqlx::query_as(SELECT_PAUSES)
            .fetch_all(&self.history)
            .await?;
        Ok(rows.into_iter().map(ProviderPause::of_row).collect())
    }

    pub(in crate::store) async fn pause_provider(
        &self,
        pause: &ProviderPause,
    ) -> StoreResult<bool> {
        let insert = sqlx::query(INSERT_PAUSE)
            .bind(&pause.provider)
            .bind(&pause.operator)
            .bind(pause.at.0)
            .bind(&pause.reason);
        let inserted = insert.execute(&self.history).await?.rows_affected();
        self.announce(ReplicaSignal::PausesChanged, inserted).await;
        Ok(inserted == 1)
    }

    pub(in crate::store) async fn resume_provider(&self, provider: &str) -> StoreResult<bool> {
        let delete = sqlx::query(DELETE_PAUSE).bind(provider);
        let deleted = delete.execute(&self.history).await?.rows_affected();
        self.announce(ReplicaSignal::PausesChanged, deleted).await;
        Ok(deleted == 1)
    }
}
