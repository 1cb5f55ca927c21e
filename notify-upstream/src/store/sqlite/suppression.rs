//! All SQL of the suppression lists.

use postern_common::clock::Timestamp;
use sqlx::AssertSqlSafe;

use super::{Sqlite, json};
use crate::address::AddressHash;
use crate::store::StoreResult;
use crate::store::row::{SuppressionChange, SuppressionEntry, SuppressionQuery, SuppressionRow};

const ENTRIES: &str = "
    channel IN (SELECT value FROM json_each(?1)) AND (?2 IS NULL OR address = ?2) AND (?3 IS NULL OR reason = ?3)
    AND (?4 IS NULL OR at >= ?4) AND (?5 IS NULL OR at < ?5)
    AND (?7 IS NULL OR (at, channel, address) > (?7, ?8, ?9)) ORDER BY at, channel, address LIMIT ?6";

macro_rules! bind_entries {
    ($query:expr, $filter:expr) => {
        $query
            .bind(json(&$filter.kinds))
            .bind($filter.address.as_ref().map(<[u8; 32]>::as_slice))
            .bind($filter.reason.as_deref())
            .bind($filter.since.map(|at| at.0))
            .bind($filter.until.map(|at| at.0))
            .bind($filter.limit)
            .bind($filter.after.map(|(at, ..)| at.0))
            .bind($filter.after.map(|(_, kind, _)| kind))
            .bind($filter.after.as_ref().map(|(.., hash)| hash.as_slice()))
    };
}

impl Sqlite {
    pub(in crate::store) async fn suppress(
        &self,
        rows: &[SuppressionRow],
        now: Timestamp,
    ) -> StoreResult<u64> {
        let mut added = 0;
        for row in rows {
            let sql = "INSERT INTO notify_suppression (channel, address, reason, at) VALUES (?1, ?2, ?3, ?4)
                ON CONFLICT DO NOTHING";
            let insert = sqlx::query(sql)
                .bind(row.kind)
                .bind(row.address.as_slice())
                .bind(&row.reason)
                .bind(now.0);
            added += insert.execute(&self.pools.writer).await?.rows_affected();
        }
        Ok(added)
    }

    pub(in crate::store) async fn is_suppressed(
        &self,
        kind: i16,
        address: &AddressHash,
    ) -> StoreResult<bool> {
        let sql =
            "SELECT EXISTS (SELECT 1 FROM notify_suppression WHERE channel = ?1 AND address = ?2)";
        Ok(sqlx::query_scalar(sql)
            .bind(kind)
            .bind(address.as_slice())
            .fetch_one(&self.pools.readers)
            .await?)
    }

    pub(in crate::store) async fn additions_since(
        &self,
        at: Timestamp,
        page: i64,
    ) -> StoreResult<Vec<SuppressionChange>> {
        let sql = "SELECT channel, address, at FROM notify_suppression WHERE at >= ?1 ORDER BY at LIMIT ?2";
        let rows = sqlx::query_as(sql)
            .bind(at.0)
            .bind(page)
            .fetch_all(&self.pools.readers)
            .await?;
        Ok(rows.into_iter().map(SuppressionChange::of_row).collect())
    }

    pub(in crate::store) async fn removals_since(
        &self,
        at: Timestamp,
        page: i64,
    ) -> StoreResult<Vec<SuppressionChange>> {
        let sql = "SELECT channel, address, at FROM notify_suppression_lifted l WHERE at >= ?1 AND NOT EXISTS
            (SELECT 1 FROM notify_suppression s WHERE s.channel = l.channel AND s.address = l.address)
            ORDER BY at LIMIT ?2";
        let rows = sqlx::query_as(sql)
            .bind(at.0)
            .bind(page)
            .fetch_all(&self.pools.readers)
            .await?;
        Ok(rows.into_iter().map(SuppressionChange::of_row).collect())
    }

    pub(in crate::store) async fn suppression_entries(
        &self,
        filter: &SuppressionQuery,
    ) -> StoreResult<Vec<SuppressionEntry>> {
        let sql =
            format!("SELECT channel, address, reason, at FROM notify_suppression WHERE {ENTRIES}");
        let query = bind_entries!(sqlx::query_as(AssertSqlSafe(sql)), filter);
        Ok(query
            .fetch_all(&self.pools.readers)
            .await?
            .into_iter()
            .map(SuppressionEntry::of_row)
            .collect())
    }

    pub(in crate::store) async fn remove_suppressed(
        &self,
        filter: &SuppressionQuery,
        now: Timestamp,
    ) -> StoreResult<u64> {
        let mut transaction = self.pools.begin().await?;
        let sql = format!(
            "INSERT INTO notify_suppression_lifted (channel, address, at)
            SELECT channel, address, ?10 FROM (SELECT * FROM notify_suppression WHERE {ENTRIES}) WHERE true
            ON CONFLICT (channel, address) DO UPDATE SET at = excluded.at"
        );
        let mark = bind_entries!(sqlx::query(AssertSqlSafe(sql)), filter).bind(now.0);
        mark.execute(&mut *transaction).await?;
        let sql = format!(
            "DELETE FROM notify_suppression WHERE (channel, address) IN
                (SELECT channel, address FROM notify_suppression WHERE {ENTRIES})"
        );
        let gone = bind_entries!(sqlx::query(AssertSqlSafe(sql)), filter)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(gone.rows_affected())
    }

    pub(super) async fn delete_old_removals(&self, before: Timestamp) -> StoreResult<()> {
        let sql = "DELETE FROM notify_suppression_lifted WHERE at < ?1";
        sqlx::query(sql)
            .bind(before.0)
            .execute(&self.pools.writer)
            .await?;
        Ok(())
    }
}
