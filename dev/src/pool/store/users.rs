//! Rows of users.

use postern_common::clock::Timestamp;
use sqlx::AssertSqlSafe;

use super::PoolStore;
use crate::pool::model::{User, to_json_text};

/// A page of a listing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page<'a> {
    /// Last username of the previous page; empty for the first page.
    pub(crate) after: &'a str,
    pub(crate) limit: i64,
}

/// A filter for listings: a column that equals, or starts with, a value.
#[derive(Clone, Debug)]
pub(crate) struct UserFilter {
    pub(crate) column: UserColumn,
    pub(crate) is_prefix: bool,
    /// In lower case if the column is the address.
    pub(crate) value: String,
}

/// A column that listings can be filtered by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UserColumn {
    Username,
    Sub,
    Email,
    UserStatus,
}

/// Selects a user by real username, `sub`, or address. Three subqueries, each of which uses an
/// index: with `OR`, SQLite would scan every user of the pool.
const FIND_USER: &str =
    "SELECT * FROM (SELECT * FROM pool_user WHERE pool_id = $1 AND username = $2
        UNION ALL SELECT * FROM pool_user WHERE pool_id = $1 AND sub = $2
        UNION ALL SELECT * FROM pool_user WHERE pool_id = $1 AND alias = $3) AS named
    ORDER BY username = $2 DESC LIMIT 1";

// === impl UserColumn ===

impl UserColumn {
    fn name(self) -> &'static str {
        match self {
            Self::Username => "username",
            Self::Sub => "sub",
            Self::Email => "alias",
            Self::UserStatus => "status",
        }
    }
}

impl PoolStore {
    /// Finds a user by real username, `sub`, or sign-in address.
    pub(crate) async fn user(
        &self,
        pool_id: &str,
        name: &str,
    ) -> Result<Option<User>, sqlx::Error> {
        let alias = name.to_lowercase();
        sqlx::query_as(FIND_USER)
            .bind(pool_id)
            .bind(name)
            .bind(alias)
            .fetch_optional(&self.sqlite.readers)
            .await
    }

    pub(crate) async fn add_user(&self, user: &User) -> Result<(), sqlx::Error> {
        const SQL: &str = "INSERT INTO pool_user (pool_id, username, sub, alias, status, enabled,
                attributes, password, temporary_until, created_at, updated_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        let attributes = to_json_text(&user.attributes.0);
        let query = sqlx::query(SQL)
            .bind(&user.pool_id)
            .bind(&user.username)
            .bind(&user.sub);
        let query = query
            .bind(&user.alias)
            .bind(user.status.name())
            .bind(user.enabled)
            .bind(attributes);
        let query = query.bind(&user.password).bind(user.temporary_until);
        query
            .bind(user.created_at)
            .bind(user.updated_at)
            .execute(&self.sqlite.writer)
            .await
            .map(drop)
    }

    /// Stores the attributes and the alias derived from them.
    pub(crate) async fn set_attributes(
        &self,
        user: &User,
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        const SQL: &str = "UPDATE pool_user SET attributes = $3, alias = $4, updated_at = $5
            WHERE pool_id = $1 AND username = $2";
        let attributes = to_json_text(&user.attributes.0);
        let query = sqlx::query(SQL)
            .bind(&user.pool_id)
            .bind(&user.username)
            .bind(attributes);
        query
            .bind(&user.alias)
            .bind(now.0)
            .execute(&self.sqlite.writer)
            .await
            .map(drop)
    }

    /// Stores the status, the password, and its expiry.
    pub(crate) async fn set_password(
        &self,
        user: &User,
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        const SQL: &str = "UPDATE pool_user SET status = $3, password = $4, temporary_until = $5,
            updated_at = $6, password_version = password_version + 1 WHERE pool_id = $1 AND username = $2";
        let query = sqlx::query(SQL)
            .bind(&user.pool_id)
            .bind(&user.username)
            .bind(user.status.name());
        query
            .bind(&user.password)
            .bind(user.temporary_until)
            .bind(now.0)
            .execute(&self.sqlite.writer)
            .await
            .map(drop)
    }

    /// Enables the user, or disables it and revokes all its sign-ins.
    pub(crate) async fn set_enabled(
        &self,
        user: &User,
        enabled: bool,
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        const ENABLE: &str = "UPDATE pool_user SET enabled = $3, updated_at = $4
            WHERE pool_id = $1 AND username = $2";
        const REVOKE: &str = "UPDATE pool_family SET revoked_at = $3
            WHERE pool_id = $1 AND username = $2 AND revoked_at IS NULL";
        let mut tx = self.sqlite.begin().await?;
        let query = sqlx::query(ENABLE)
            .bind(&user.pool_id)
            .bind(&user.username)
            .bind(i64::from(enabled));
        query.bind(now.0).execute(&mut *tx).await?;
        if !enabled {
            let query = sqlx::query(REVOKE)
                .bind(&user.pool_id)
                .bind(&user.username)
                .bind(now.0);
            query.execute(&mut *tx).await?;
        }
        tx.commit().await
    }

    pub(crate) async fn delete_user(&self, user: &User) -> Result<(), sqlx::Error> {
        const SQL: &str = "DELETE FROM pool_user WHERE pool_id = $1 AND username = $2";
        sqlx::query(SQL)
            .bind(&user.pool_id)
            .bind(&user.username)
            .execute(&self.sqlite.writer)
            .await
            .map(drop)
    }

    pub(crate) async fn count_users(&self, pool_id: &str) -> Result<i64, sqlx::Error> {
        const SQL: &str = "SELECT count(*) FROM pool_user WHERE pool_id = $1";
        sqlx::query_scalar(SQL)
            .bind(pool_id)
            .fetch_one(&self.sqlite.readers)
            .await
    }

    /// Lists users, ordered by username.
    pub(crate) async fn users(
        &self,
        pool_id: &str,
        filter: Option<&UserFilter>,
        page: Page<'_>,
    ) -> Result<Vec<User>, sqlx::Error> {
        let condition = match filter.map(|filter| (filter.column.name(), filter.is_prefix)) {
            None => "$4 = ''".to_owned(),
            Some((column, false)) => format!("{column} = $4"),
            Some((column, true)) => format!("substr({column}, 1, length($4)) = $4"),
        };
        let sql = format!(
            "SELECT * FROM pool_user WHERE pool_id = $1 AND username > $2 AND {condition}
            ORDER BY username LIMIT $3"
        );
        let value = filter.map_or("", |filter| filter.value.as_str());
        let query = sqlx::query_as(AssertSqlSafe(sql))
            .bind(pool_id)
            .bind(page.after)
            .bind(page.limit)
            .bind(value);
        query.fetch_all(&self.sqlite.readers).await
    }
}

#[cfg(test)]
mod tests {
    use postern_common::database::testing;
    use sqlx::Row;

    use super::*;

    #[tokio::test]
    async fn user_lookup_uses_indexes_only() {
        let test = testing::sqlite().await;
        let store = PoolStore::open(test.database.clone())
            .await
            .expect("tables");
        let plan = format!("EXPLAIN QUERY PLAN {FIND_USER}");
        let plan = sqlx::query(AssertSqlSafe(plan))
            .fetch_all(&store.sqlite.readers)
            .await
            .expect("a plan");
        let steps = plan
            .iter()
            .map(|row| row.get::<String, _>("detail"))
            .collect::<Vec<_>>();
        let reads: Vec<_> = steps
            .iter()
            .filter(|step| step.starts_with("SEARCH"))
            .collect();
        assert!(
            reads.len() >= 3 && reads.iter().all(|read| read.contains("=? AND ")),
            "{steps:?}"
        );
        let mut scans = steps.iter().filter_map(|step| step.strip_prefix("SCAN "));
        assert!(scans.all(|scanned| scanned == "named"), "{steps:?}");
    }
}
