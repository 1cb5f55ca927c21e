//! The statements of the suppression lists.

use postern_core::clock::Timestamp;
use postern_store::with_dialect;
use sqlx::AssertSqlSafe;

use super::dialect::List;
use super::row::{SuppressionEntry, SuppressionQuery};
use super::{Store, StoreResult};
use crate::address::AddressHash;

impl Store {
    /// Adds an address to a suppression list at the database's time, and returns the number of new
    /// entries. An existing one is not changed.
    pub(crate) async fn suppress(
        &self,
        kind: i16,
        address: &AddressHash,
        category: &str,
        reason: &str,
    ) -> StoreResult<u64> {
        let sql = format!(
            "INSERT INTO notify_suppression (channel, address, category, reason, at)
            VALUES ($1, $2, $3, $4, {}) ON CONFLICT DO NOTHING",
            self.syntax.clock()
        );
        with_dialect!(self.connections.history.writer(), pool => {
            let insert = sqlx::query(AssertSqlSafe(sql)).bind(kind).bind(address.as_slice());
            let insert = insert.bind(category).bind(reason);
            Ok(insert.execute(pool).await?.rows_affected())
        })
    }

    /// Returns the kind of the entry of an address: the first of `kinds`, or the second with this
    /// category.
    pub(crate) async fn suppressed_kind(
        &self,
        [suppressed, unsubscribed]: [i16; 2],
        address: &AddressHash,
        category: Option<&str>,
    ) -> StoreResult<Option<i16>> {
        const SELECT: &str = "SELECT channel FROM notify_suppression
            WHERE (channel = $1 AND address = $2 AND category = '') OR (channel = $3 AND address = $2 AND category = $4)
            ORDER BY channel LIMIT 1";
        with_dialect!(self.connections.history.readers(), pool => {
            let select = sqlx::query_scalar(SELECT).bind(suppressed).bind(address.as_slice());
            let select = select.bind(unsubscribed).bind(category);
            Ok(select.fetch_optional(pool).await?)
        })
    }

    /// Returns the entries that match, oldest first.
    pub(crate) async fn suppression_entries(
        &self,
        filter: &SuppressionQuery,
    ) -> StoreResult<Vec<SuppressionEntry>> {
        let sql = format!(
            "SELECT channel, address, category, reason, at FROM notify_suppression
            WHERE channel {} AND ($2 IS NULL OR address = $2)
            AND ($3 IS NULL OR (at, channel, address, category) > ($3, $4, $5, $6))
            ORDER BY at, channel, address, category LIMIT $7",
            self.syntax.in_list(1)
        );
        let after = filter.after.as_ref();
        let rows: Vec<(_, _, _, _, i64)> = with_dialect!(self.connections.slow.readers(), pool => {
            let select = sqlx::query_as(AssertSqlSafe(sql))
                .bind(List(&filter.kinds))
                .bind(filter.address.as_ref().map(<[u8; 32]>::as_slice))
                .bind(after.map(|(at, ..)| at.0))
                .bind(after.map(|(_, kind, ..)| *kind))
                .bind(after.map(|(_, _, hash, _)| hash.as_slice()))
                .bind(after.map(|(.., category)| category.as_str()))
                .bind(filter.limit);
            select.fetch_all(pool).await?
        });
        let entry = |(kind, address, category, reason, at)| {
            let at = Timestamp(at);
            SuppressionEntry {
                kind,
                address,
                category,
                reason,
                at,
            }
        };
        Ok(rows.into_iter().map(entry).collect())
    }

    /// Removes an entry, and returns the number of removed ones.
    pub(crate) async fn remove_suppressed(
        &self,
        kind: i16,
        address: &AddressHash,
        category: &str,
    ) -> StoreResult<u64> {
        const DELETE: &str = "DELETE FROM notify_suppression
            WHERE channel = $1 AND address = $2 AND category = $3";
        with_dialect!(self.connections.slow.writer(), pool => {
            let delete = sqlx::query(DELETE).bind(kind).bind(address.as_slice()).bind(category);
            Ok(delete.execute(pool).await?.rows_affected())
        })
    }
}
