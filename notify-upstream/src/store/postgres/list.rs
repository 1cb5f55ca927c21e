//! Lists of notifications.

use sqlx::AssertSqlSafe;

use super::{Postgres, rows};
use crate::store::StoreResult;
use crate::store::read::list_sql;
use crate::store::row::{ListQuery, ListScope, ListedRow};

impl Postgres {
    pub(in crate::store) async fn list(&self, query: &ListQuery) -> StoreResult<Vec<ListedRow>> {
        let select = sqlx::query(AssertSqlSafe(list_sql(&query.scope)))
            .bind(query.before)
            .bind(query.from)
            .bind(query.limit);
        let select = match &query.scope {
            ListScope::All => select,
            ListScope::Creator(text) | ListScope::Request(text) => select.bind(text),
            ListScope::Recipient(key) => select.bind(*key),
        };
        let rows = select.fetch_all(&self.urgent).await?;
        rows.iter().map(rows::listed_row).collect()
    }
}
