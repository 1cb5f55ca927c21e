//! All SQL of the suppression lists.

use postern_common::clock::Timestamp;
use sqlx::AssertSqlSafe;

use super::Postgres;
use crate::address::AddressHash;
use crate::store::row::{SuppressionChange, SuppressionEntry, SuppressionQuery, SuppressionRow};
use crate::store::{ReplicaSignal, StoreResult};

const ENTRIES: &str = "
    channel = ANY($1) AND ($2::bytea IS NULL OR address = $2) AND ($3::text IS NULL OR reason = $3)
    AND ($4::int8 IS NULL OR at >= $4) AND ($5::int8 IS NULL OR at < $5)
    AND ($7::int8 IS NULL OR (at, channel, address) > ($7, $8::int2, $9::bytea)) ORDER BY at, channel, address LIMIT $6";

macro_rules! bind_entries {
    ($query:expr, $filter:expr) => {
        $query
            .bind(&$filter.kinds)
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

impl Postgres {
    pub(in crate::store) async fn suppress(
        &self,
        rows: &[SuppressionRow],
        now: Timestamp,
    ) -> StoreResult<u64> {
        let sql = "INSERT INTO notify_suppression (channel, address, reason, at)
            SELECT channel, address, reason, $4 FROM unnest($1::int2[], $2::bytea[], $3::text[])
            AS t(channel, address, reason) ON CONFLICT DO NOTHING";
        let done = sqlx::query(sql)
            .bind(rows.iter().map(|row| row.kind).collect::<Vec<_>>())
            .bind(
                rows.iter()
                    .map(|row| row.address.as_slice())
                    .collect::<Vec<_>>(),
            )
            .bind(
                rows.iter()
                    .map(|row| row.reason.as_str())
                    .collect::<Vec<_>>(),
            )
            .bind(now.0)
            .execute(&self.history)
            .await?;
        self.announce(ReplicaSignal::SuppressionChanged, done.rows_affected())
            .await;
        Ok(done.rows_affected())
    }

    pub(in crate::store) async fn is_suppressed(
        &self,
        kind: i16,
        address: &AddressHash,
    ) -> StoreResult<bool> {
        let sql =
            "SELECT EXISTS (SELECT 1 FROM notify_suppression WHERE channel = $1 AND address = $2)";
        Ok(sqlx::query_scalar(sql)
            .bind(kind)
            .bind(address.as_slice())
            .fetch_one(&self.history)
            .await?)
    }

    pub(in crate::store) async fn additions_since(
        &self,
        at: Timestamp,
        page: i64,
    ) -> StoreResult<Vec<SuppressionChange>> {
        let sql = "SELECT channel, address, at FROM notify_suppression WHERE at >= $1 ORDER BY at LIMIT $2";
        let rows = sqlx::query_as(sql)
            .bind(at.0)
            .bind(page)
            .fetch_all(&self.history)
            .await?;
        Ok(rows.into_iter().map(SuppressionChange::of_row).collect())
    }

    pub(in crate::store) async fn removals_since(
        &self,
        at: Timestamp,
        page: i64,
    ) -> StoreResult<Vec<SuppressionChange>> {
        let sql = "SELECT channel, address, at FROM notify_suppression_lifted l WHERE at >= $1 AND NOT EXISTS
            (SELECT 1 FROM notify_suppression s WHERE s.channel = l.channel AND s.address = l.address)
            ORDER BY at LIMIT $2";
        let rows = sqlx::query_as(sql)
            .bind(at.0)
            .bind(page)
            .fetch_all(&self.history)
            .await?;
        Ok(rows.into_iter().map(SuppressionChange::of_row).collect())
    }

    pub(in crate::store) async fn suppression_entries(
        &self,
        filter: &SuppressionQuery,
    ) -> StoreResult<Vec<SuppressionEntry>> {
        let sql =
            format!("SELECT channel, address, reason, at FROM notify_suppression WHERE {ENTRIES}");
        let rows = bind_entries!(sqlx::query_as(AssertSqlSafe(sql)), filter)
            .fetch_all(&self.slow)
            .await?;
        Ok(rows.into_iter().map(SuppressionEntry::of_row).collect())
    }

    pub(in crate::store) async fn remove_suppressed(
        &self,
        filter: &SuppressionQuery,
        now: Timestamp,
    ) -> StoreResult<u64> {
        let sql = format!(
            "WITH gone AS (
                DELETE FROM notify_suppression WHERE (channel, address) IN
                    (SELECT channel, address FROM notify_suppression WHERE {ENTRIES}) RETURNING channel, address
            )
            INSERT INTO notify_suppression_lifted (channel, address, at) SELECT channel, address, $10 FROM gone
            ON CONFLICT (channel, address) DO UPDATE SET at = excluded.at"
        );
        let query = bind_entries!(sqlx::query(AssertSqlSafe(sql)), filter).bind(now.0);
        let removed = query.execute(&self.slow).await?.rows_affected();
        self.announce(ReplicaSignal::SuppressionChanged, removed)
            .await;
        Ok(removed)
    }
}
