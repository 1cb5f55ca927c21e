//! Groups and their members.

use postern_common::from_row;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row};

use super::PoolStore;
use crate::pool::model::User;

/// A group of a pool.
#[derive(Clone, Debug)]
pub(crate) struct GroupRow {
    pub(crate) pool_id: String,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) precedence: Option<i64>,
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
}

/// A row that is repeated for each group of a user, or occurs once if the user is in no group.
#[derive(Debug)]
pub(super) struct RowPerGroup<T> {
    row: T,
    group_name: Option<String>,
}

from_row!(GroupRow {
    pool_id: String,
    name: String,
    description: Option<String>,
    precedence: Option<i64>,
    created_at: i64,
    updated_at: i64,
});

// === impl RowPerGroup ===

impl<'r, T: FromRow<'r, SqliteRow>> FromRow<'r, SqliteRow> for RowPerGroup<T> {
    fn from_row(row: &'r SqliteRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            row: T::from_row(row)?,
            group_name: row.try_get("group_name")?,
        })
    }
}

impl<T> RowPerGroup<T> {
    /// Combines the rows into one value and the group names, in the order of the rows.
    pub(super) fn combine(rows: Vec<Self>) -> Option<(T, Vec<String>)> {
        let mut rows = rows.into_iter();
        let first = rows.next()?;
        let groups = std::iter::once(first.group_name)
            .chain(rows.map(|row| row.group_name))
            .flatten();
        Some((first.row, groups.collect()))
    }
}

impl PoolStore {
    pub(crate) async fn add_group(&self, group: &GroupRow) -> Result<(), sqlx::Error> {
        const SQL: &str = "INSERT INTO pool_group
            (pool_id, name, description, precedence, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6)";
        let query = sqlx::query(SQL)
            .bind(&group.pool_id)
            .bind(&group.name)
            .bind(&group.description);
        let query = query
            .bind(group.precedence)
            .bind(group.created_at)
            .bind(group.updated_at);
        query.execute(&self.sqlite.writer).await.map(drop)
    }

    pub(crate) async fn group(
        &self,
        pool_id: &str,
        name: &str,
    ) -> Result<Option<GroupRow>, sqlx::Error> {
        const SQL: &str = "SELECT * FROM pool_group WHERE pool_id = $1 AND name = $2";
        sqlx::query_as(SQL)
            .bind(pool_id)
            .bind(name)
            .fetch_optional(&self.sqlite.readers)
            .await
    }

    pub(crate) async fn join_group(&self, user: &User, group: &str) -> Result<(), sqlx::Error> {
        const SQL: &str =
            "INSERT INTO pool_membership (pool_id, username, group_name) VALUES ($1, $2, $3)
            ON CONFLICT DO NOTHING";
        let query = sqlx::query(SQL)
            .bind(&user.pool_id)
            .bind(&user.username)
            .bind(group);
        query.execute(&self.sqlite.writer).await.map(drop)
    }
}
