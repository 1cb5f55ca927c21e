//! The statements of the suppression lists.

use postern_common::clock::Timestamp;
use postern_common::with_dialect;
use serde::Serialize;
use sqlx::AssertSqlSafe;

use super::dialect::{List, Syntax, bytes_json, execute_rows, rows_json, transaction};
use super::row::{SuppressionChange, SuppressionEntry, SuppressionQuery, SuppressionRow};
use super::{ReplicaSignal, Store, StoreResult};
use crate::address::AddressHash;

fn insert(syntax: Syntax) -> String {
    format!(
        "INSERT INTO notify_suppression (channel, address, reason, at)
        SELECT channel, address, reason, $2 FROM {} WHERE true ON CONFLICT DO NOTHING",
        syntax.rows(1, "channel int2, address bytea, reason text")
    )
}

fn insert_removals(syntax: Syntax) -> String {
    format!(
        "INSERT INTO notify_suppression_lifted (channel, address, at)
        SELECT channel, address, at FROM {} WHERE true
        ON CONFLICT (channel, address) DO UPDATE SET at = excluded.at",
        syntax.rows(1, "channel int2, address bytea, at int8")
    )
}

const ADDITIONS: &str =
    "SELECT channel, address, at FROM notify_suppression WHERE at >= $1 ORDER BY at LIMIT $2";

const REMOVALS: &str =
    "SELECT channel, address, at FROM notify_suppression_lifted l WHERE at >= $1 AND NOT EXISTS
        (SELECT 1 FROM notify_suppression s WHERE s.channel = l.channel AND s.address = l.address)
    ORDER BY at LIMIT $2";

fn entries(syntax: Syntax) -> String {
    format!(
        "channel {} AND ($2 IS NULL OR address = $2) AND ($3 IS NULL OR reason = $3)
        AND ($4 IS NULL OR at >= $4) AND ($5 IS NULL OR at < $5)
        AND ($7 IS NULL OR (at, channel, address) > ($7, $8, $9)) ORDER BY at, channel, address LIMIT $6",
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
            .bind($filter.after.map(|(at, ..)| at.0))
            .bind($filter.after.map(|(_, kind, _)| kind))
            .bind($filter.after.as_ref().map(|(.., hash)| hash.as_slice()))
    };
}

#[derive(Serialize)]
struct AddedRow<'a> {
    channel: i16,
    address: String,
    reason: &'a str,
}

#[derive(Serialize)]
struct RemovedRow {
    channel: i16,
    address: String,
    at: i64,
}

impl Store {
    /// Adds addresses to suppression lists, and returns the number of new ones. Existing entries
    /// are not changed.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn suppress(
        &self,
        rows: &[SuppressionRow],
        now: Timestamp,
    ) -> StoreResult<u64> {
        let rows = rows.iter().map(|row| AddedRow {
            channel: row.kind,
            address: bytes_json(&row.address),
            reason: &row.reason,
        });
        let rows = rows_json(&rows.collect::<Vec<_>>());
        let sql = AssertSqlSafe(insert(self.syntax));
        let added = with_dialect!(self.connections.history.writer(), pool => {
            sqlx::query(sql).bind(rows).bind(now.0).execute(pool).await?.rows_affected()
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
    ) -> StoreResult<bool> {
        const EXISTS: &str =
            "SELECT EXISTS (SELECT 1 FROM notify_suppression WHERE channel = $1 AND address = $2)";
        with_dialect!(self.connections.history.readers(), pool => {
            let select = sqlx::query_scalar(EXISTS).bind(kind).bind(address.as_slice());
            Ok(select.fetch_one(pool).await?)
        })
    }

    /// Returns additions at or after `at`, oldest first, at most `page`.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn additions_since(
        &self,
        at: Timestamp,
        page: i64,
    ) -> StoreResult<Vec<SuppressionChange>> {
        self.changes(ADDITIONS, at, page).await
    }

    /// Returns removals at or after `at` of addresses that are not on the list again, oldest first,
    /// at most `page`.
    ///
    /// # Errors
    /// The store is unavailable or rejects the statement.
    pub(crate) async fn removals_since(
        &self,
        at: Timestamp,
        page: i64,
    ) -> StoreResult<Vec<SuppressionChange>> {
        self.changes(REMOVALS, at, page).await
    }

    async fn changes(
        &self,
        sql: &'static str,
        at: Timestamp,
        page: i64,
    ) -> StoreResult<Vec<SuppressionChange>> {
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
            "SELECT channel, address, reason, at FROM notify_suppression WHERE {}",
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
    pub(crate) async fn remove_suppressed(
        &self,
        filter: &SuppressionQuery,
        now: Timestamp,
    ) -> StoreResult<u64> {
        let syntax = self.syntax;
        let delete = format!(
            "DELETE FROM notify_suppression WHERE (channel, address) IN
                (SELECT channel, address FROM notify_suppression WHERE {})
            RETURNING channel, address",
            entries(syntax)
        );
        let removed = transaction!(self.connections.slow, "DELETE FROM notify_suppression", transaction => {
            let delete = bind_entries!(sqlx::query_as(AssertSqlSafe(delete)), filter);
            let removed: Vec<(i16, Vec<u8>)> = delete.fetch_all(&mut *transaction).await?;
            let rows = removed.iter().map(|(channel, address)| RemovedRow {
                channel: *channel,
                address: bytes_json(address),
                at: now.0,
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
