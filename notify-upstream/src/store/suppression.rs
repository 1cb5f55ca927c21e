//! The statements of the suppression lists.

use postern_core::clock::Timestamp;
use postern_store::with_dialect;
use serde::Serialize;
use sqlx::AssertSqlSafe;

use super::dialect::{List, Syntax, bytes_json, execute_rows, rows_json, transaction};
use super::row::{SuppressionChange, SuppressionEntry, SuppressionQuery, SuppressionRow};
use super::{ReplicaSignal, Store, StoreResult};
use crate::address::AddressHash;

fn insert(syntax: Syntax) -> String {
    format!(
        "INSERT INTO notify_suppression (channel, address, category, reason, at)
        SELECT channel, address, category, reason, {} FROM {} WHERE true ON CONFLICT DO NOTHING",
        syntax.clock(),
        syntax.rows(1, "channel int2, address bytea, category text, reason text")
    )
}

fn insert_removals(syntax: Syntax) -> String {
    format!(
        "INSERT INTO notify_suppression_lifted (channel, address, category, at)
        SELECT channel, address, category, {} FROM {} WHERE true
        ON CONFLICT (channel, address, category) DO UPDATE SET at = excluded.at",
        syntax.clock(),
        syntax.rows(1, "channel int2, address bytea, category text")
    )
}

const ADDITIONS: &str = "SELECT channel, address, category, at FROM notify_suppression WHERE at >= $1 ORDER BY at LIMIT $2";

const REMOVALS: &str =
    "SELECT channel, address, category, at FROM notify_suppression_lifted l WHERE at >= $1 AND NOT EXISTS
        (SELECT 1 FROM notify_suppression s
        WHERE s.channel = l.channel AND s.address = l.address AND s.category = l.category)
    ORDER BY at LIMIT $2";

fn entries(syntax: Syntax) -> String {
    format!(
        "channel {} AND ($2 IS NULL OR address = $2) AND ($3 IS NULL OR reason = $3)
        AND ($4 IS NULL OR at >= $4) AND ($5 IS NULL OR at < $5)
        AND ($7 IS NULL OR (at, channel, address, category) > ($7, $8, $9, $10))
        AND ($11 IS NULL OR category = $11) ORDER BY at, channel, address, category LIMIT $6",
        syntax.in_list(1)
    )
}

macro_rules! bind_entries {
    ($query:expr, $filter:expr) => {
        $query
            .bind(List(&$filter.kinds))
            .bind($filter.address.as_ref().map(<[u8; 32]>::as_slice))
            .bind($filter.reason.as_deref())
            .bind($filter.since.map(|at| at.0))
            .bind($filter.until.map(|at| at.0))
            .bind($filter.limit)
            .bind($filter.after.as_ref().map(|(at, ..)| at.0))
            .bind($filter.after.as_ref().map(|(_, kind, ..)| *kind))
            .bind(
                $filter
                    .after
                    .as_ref()
                    .map(|(_, _, hash, _)| hash.as_slice()),
            )
            .bind(
                $filter
                    .after
                    .as_ref()
                    .map(|(.., category)| category.as_str()),
            )
            .bind($filter.category.as_deref())
    };
}

#[derive(Serialize)]
struct AddedRow<'a> {
    channel: i16,
    address: String,
    category: &'a str,
    reason: &'a str,
}

#[derive(Serialize)]
struct RemovedRow {
    channel: i16,
    address: String,
    category: String,
}

impl Store {
    /// Adds addresses to suppression lists at the database's time, and returns the number of new
    /// ones. Existing entries are not changed.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn suppress(&self, rows: &[SuppressionRow]) -> StoreResult<u64> {
        let rows = rows.iter().map(|row| AddedRow {
            channel: row.kind,
            address: bytes_json(&row.address),
            category: &row.category,
            reason: &row.reason,
        });
        let rows = rows_json(&rows.collect::<Vec<_>>());
        let sql = AssertSqlSafe(insert(self.syntax));
        let added = with_dialect!(self.connections.history.writer(), pool => {
            sqlx::query(sql).bind(rows).execute(pool).await?.rows_affected()
        });
        self.announce(ReplicaSignal::SuppressionChanged, added)
            .await;
        Ok(added)
    }

    /// Returns whether an address is on a list.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn is_suppressed(
        &self,
        kind: i16,
        address: &AddressHash,
        category: &str,
    ) -> StoreResult<bool> {
        const EXISTS: &str = "SELECT EXISTS (SELECT 1 FROM notify_suppression
            WHERE channel = $1 AND address = $2 AND category = $3)";
        with_dialect!(self.connections.history.readers(), pool => {
            let select = sqlx::query_scalar(EXISTS).bind(kind).bind(address.as_slice()).bind(category);
            Ok(select.fetch_one(pool).await?)
        })
    }

    /// Returns additions, or removals of addresses that are not on the list again, at or after `at`,
    /// oldest first, at most `page`.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn suppression_changes(
        &self,
        is_removal: bool,
        at: Timestamp,
        page: i64,
    ) -> StoreResult<Vec<SuppressionChange>> {
        let sql = if is_removal { REMOVALS } else { ADDITIONS };
        let rows = with_dialect!(self.connections.history.readers(), pool => {
            sqlx::query_as(sql).bind(at.0).bind(page).fetch_all(pool).await?
        });
        Ok(rows.into_iter().map(SuppressionChange::of_row).collect())
    }

    /// Returns the entries that match, oldest first.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn suppression_entries(
        &self,
        filter: &SuppressionQuery,
    ) -> StoreResult<Vec<SuppressionEntry>> {
        let sql = format!(
            "SELECT channel, address, category, reason, at FROM notify_suppression WHERE {}",
            entries(self.syntax)
        );
        let rows = with_dialect!(self.connections.slow.readers(), pool => {
            bind_entries!(sqlx::query_as(AssertSqlSafe(sql)), filter).fetch_all(pool).await?
        });
        Ok(rows.into_iter().map(SuppressionEntry::of_row).collect())
    }

    /// Removes the entries that match, and returns their number.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn remove_suppressed(&self, filter: &SuppressionQuery) -> StoreResult<u64> {
        let syntax = self.syntax;
        let delete = format!(
            "DELETE FROM notify_suppression WHERE (channel, address, category) IN
                (SELECT channel, address, category FROM notify_suppression WHERE {})
            RETURNING channel, address, category",
            entries(syntax)
        );
        let removed = transaction!(self.connections.slow, "DELETE FROM notify_suppression", transaction => {
            let delete = bind_entries!(sqlx::query_as(AssertSqlSafe(delete)), filter);
            let removed: Vec<(i16, Vec<u8>, String)> = delete.fetch_all(&mut *transaction).await?;
            let rows = removed.into_iter().map(|(channel, address, category)| RemovedRow {
                channel,
                address: bytes_json(address),
                category,
            });
            let rows: Vec<_> = rows.collect();
            execute_rows!(transaction, insert_removals(syntax), rows);
            u64::try_from(rows.len()).unwrap_or(u64::MAX)
        })?;
        self.announce(ReplicaSignal::SuppressionChanged, removed)
            .await;
        Ok(removed)
    }
}
