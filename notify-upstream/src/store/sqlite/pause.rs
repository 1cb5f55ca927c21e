//! Paused providers.

use super::Sqlite;
use crate::store::StoreResult;
use crate::store::read::{DELETE_PAUSE, INSERT_PAUSE, SELECT_PAUSES};
use crate::store::row::ProviderPause;

impl Sqlite {
    pub(in crate::store) async fn paused_providers(&self) -> StoreResult<Vec<ProviderPause>> {
        let rows = sqlx::query_as(SELECT_PAUSES)
            .fetch_all(&self.pools.readers)
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
        Ok(insert.execute(&self.pools.writer).await?.rows_affected() == 1)
    }

    pub(in crate::store) async fn resume_provider(&self, provider: &str) -> StoreResult<bool> {
        let delete = sqlx::query(DELETE_PAUSE).bind(provider);
        Ok(delete.execute(&self.pools.writer).await?.rows_affected() == 1)
    }
}
