//! Users.

use postern_common::clock::Timestamp;
use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};

use super::{Store, reading, to_text, transaction, writing};
use crate::pool::Pool;
use crate::user::User;

/// Where a listing goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page<'a> {
    /// The last username of the page before; empty for the first page.
    pub(crate) after: &'a str,
    pub(crate) limit: i64,
}

/// Whose password is tried.
#[derive(Debug)]
pub(crate) struct Attempted {
    /// `None` where nobody has the name.
    pub(crate) user: Option<User>,
    /// When the name may be tried again, in Unix milliseconds; 0 when it was never locked.
    pub(crate) locked_until: i64,
}

/// Which users a listing shows: those whose column is, or begins with, a value.
#[derive(Clone, Debug)]
pub(crate) struct UserFilter {
    pub(crate) column: Column,
    pub(crate) is_prefix: bool,
    /// In lower case for an address.
    pub(crate) value: String,
}

/// What users can be found by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Column {
    Username,
    Sub,
    Email,
    Status,
}

/// A user by real username, `sub` or address. Three questions, each for a row of an index: one with
/// `OR` reads every user of the pool in SQLite.
macro_rules! named {
    () => {
        "SELECT * FROM (SELECT * FROM pool_user WHERE pool_id = $1 AND username = $2
            UNION ALL SELECT * FROM pool_user WHERE pool_id = $1 AND sub = $2
            UNION ALL SELECT * FROM pool_user WHERE pool_id = $1 AND alias = $3) AS named
        ORDER BY username = $2 DESC LIMIT 1"
    };
}

const NAMED: &str = named!();

/// One row, whether there is a user or not.
const ATTEMPTED: &str = concat!(
    "SELECT a.locked_until, u.* FROM (SELECT 1) AS asked LEFT JOIN (",
    named!(),
    ") u ON u.username = $2 OR $5 <> 0
    LEFT JOIN pool_attempt a ON a.pool_id = $1 AND a.name = COALESCE(u.username, $4)"
);

// === impl Attempted ===

impl<'r, R: Row> FromRow<'r, R> for Attempted
where
    User: FromRow<'r, R>,
    &'static str: ColumnIndex<R>,
    Option<String>: Decode<'r, R::Database> + Type<R::Database>,
    Option<i64>: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> Result<Self, sqlx::Error> {
        let exists = row.try_get::<Option<String>, _>("username")?.is_some();
        Ok(Self {
            user: exists.then(|| User::from_row(row)).transpose()?,
            locked_until: row.try_get::<Option<i64>, _>("locked_until")?.unwrap_or(0),
        })
    }
}

impl Store {
    /// By real username, by `sub`, or by the address that the pool's users sign in with.
    pub(crate) async fn user(
        &self,
        pool_id: &str,
        name: &str,
    ) -> Result<Option<User>, sqlx::Error> {
        let alias = name.to_lowercase();
        reading!(self, db => {
            sqlx::query_as(NAMED).bind(pool_id).bind(name).bind(alias).fetch_optional(db).await
        })
    }

    /// Whose password is tried under what was typed, and until when that is locked: one question,
    /// whether the user exists or not. `unknown` is the name in the list of attempts where nobody
    /// has the one that was typed.
    pub(crate) async fn attempted(
        &self,
        pool: &Pool,
        typed: &str,
        unknown: &str,
    ) -> Result<Attempted, sqlx::Error> {
        let (alias, by_address) = (
            typed.to_lowercase(),
            i64::from(pool.settings.email_usernames),
        );
        reading!(self, db => {
            let query = sqlx::query_as(ATTEMPTED).bind(&pool.id).bind(typed).bind(alias).bind(unknown);
            query.bind(by_address).fetch_one(db).await
        })
    }

    pub(crate) async fn add_user(&self, user: &User) -> Result<(), sqlx::Error> {
        const SQL: &str = "INSERT INTO pool_user (pool_id, username, sub, alias, status, enabled,
                attributes, password, temporary_until, created_at, updated_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        let attributes = to_text(&user.attributes.0);
        writing!(self, db => {
            let query = sqlx::query(SQL).bind(&user.pool_id).bind(&user.username).bind(&user.sub);
            let query = query.bind(&user.alias).bind(user.status.name()).bind(user.enabled).bind(attributes);
            let query = query.bind(&user.password).bind(user.temporary_until);
            query.bind(user.created_at).bind(user.updated_at).execute(db).await.map(drop)
        })
    }

    /// Writes attributes and the alias that goes with them.
    pub(crate) async fn set_attributes(
        &self,
        user: &User,
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        const SQL: &str = "UPDATE pool_user SET attributes = $3, alias = $4, updated_at = $5
            WHERE pool_id = $1 AND username = $2";
        let attributes = to_text(&user.attributes.0);
        writing!(self, db => {
            let query = sqlx::query(SQL).bind(&user.pool_id).bind(&user.username).bind(attributes);
            query.bind(&user.alias).bind(now.0).execute(db).await.map(drop)
        })
    }

    /// Writes the status, the password and until when it works.
    pub(crate) async fn set_password(
        &self,
        user: &User,
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        const SQL: &str = "UPDATE pool_user SET status = $3, password = $4, temporary_until = $5,
            updated_at = $6, password_version = password_version + 1 WHERE pool_id = $1 AND username = $2";
        writing!(self, db => {
            let query = sqlx::query(SQL).bind(&user.pool_id).bind(&user.username).bind(user.status.name());
            query.bind(&user.password).bind(user.temporary_until).bind(now.0).execute(db).await.map(drop)
        })
    }

    /// Replaces a hash by a stronger one of the same password, unless the password was changed
    /// meanwhile.
    pub(crate) async fn rehash(&self, user: &User, hash: &str) -> Result<(), sqlx::Error> {
        const SQL: &str = "UPDATE pool_user SET password = $4
            WHERE pool_id = $1 AND username = $2 AND password = $3";
        writing!(self, db => {
            let query = sqlx::query(SQL).bind(&user.pool_id).bind(&user.username).bind(&user.password);
            query.bind(hash).execute(db).await.map(drop)
        })
    }

    /// Lets the user sign in, or ends every sign-in of it.
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
        transaction!(self, tx => {
            let query = sqlx::query(ENABLE).bind(&user.pool_id).bind(&user.username).bind(i64::from(enabled));
            query.bind(now.0).execute(&mut *tx).await?;
            if !enabled {
                let query = sqlx::query(REVOKE).bind(&user.pool_id).bind(&user.username).bind(now.0);
                query.execute(&mut *tx).await?;
            }
        });
        Ok(())
    }

    pub(crate) async fn delete_user(&self, user: &User) -> Result<(), sqlx::Error> {
        const SQL: &str = "DELETE FROM pool_user WHERE pool_id = $1 AND username = $2";
        writing!(self, db => {
            sqlx::query(SQL).bind(&user.pool_id).bind(&user.username).execute(db).await.map(drop)
        })
    }

    pub(crate) async fn count_users(&self, pool_id: &str) -> Result<i64, sqlx::Error> {
        const SQL: &str = "SELECT count(*) FROM pool_user WHERE pool_id = $1";
        reading!(self, db => sqlx::query_scalar(SQL).bind(pool_id).fetch_one(db).await)
    }

    /// Users in the order of their usernames.
    pub(crate) async fn users(
        &self,
        pool_id: &str,
        filter: Option<&UserFilter>,
        page: Page<'_>,
    ) -> Result<Vec<User>, sqlx::Error> {
        const ALL: &str = "SELECT * FROM pool_user WHERE pool_id = $1 AND username > $2 AND $4 = ''
            ORDER BY username LIMIT $3";
        const BY_USERNAME: &str = "SELECT * FROM pool_user WHERE pool_id = $1 AND username > $2
            AND username = $4 ORDER BY username LIMIT $3";
        const BY_SUB: &str =
            "SELECT * FROM pool_user WHERE pool_id = $1 AND username > $2 AND sub = $4
            ORDER BY username LIMIT $3";
        const BY_EMAIL: &str =
            "SELECT * FROM pool_user WHERE pool_id = $1 AND username > $2 AND alias = $4
            ORDER BY username LIMIT $3";
        const BY_STATUS: &str =
            "SELECT * FROM pool_user WHERE pool_id = $1 AND username > $2 AND status = $4
            ORDER BY username LIMIT $3";
        const USERNAME_BEGINS: &str = "SELECT * FROM pool_user WHERE pool_id = $1 AND username > $2
            AND substr(username, 1, length($4)) = $4 ORDER BY username LIMIT $3";
        const SUB_BEGINS: &str = "SELECT * FROM pool_user WHERE pool_id = $1 AND username > $2
            AND substr(sub, 1, length($4)) = $4 ORDER BY username LIMIT $3";
        const EMAIL_BEGINS: &str = "SELECT * FROM pool_user WHERE pool_id = $1 AND username > $2
            AND substr(alias, 1, length($4)) = $4 ORDER BY username LIMIT $3";
        const STATUS_BEGINS: &str = "SELECT * FROM pool_user WHERE pool_id = $1 AND username > $2
            AND substr(status, 1, length($4)) = $4 ORDER BY username LIMIT $3";
        let sql = match filter.map(|filter| (filter.column, filter.is_prefix)) {
            None => ALL,
            Some((Column::Username, false)) => BY_USERNAME,
            Some((Column::Username, true)) => USERNAME_BEGINS,
            Some((Column::Sub, false)) => BY_SUB,
            Some((Column::Sub, true)) => SUB_BEGINS,
            Some((Column::Email, false)) => BY_EMAIL,
            Some((Column::Email, true)) => EMAIL_BEGINS,
            Some((Column::Status, false)) => BY_STATUS,
            Some((Column::Status, true)) => STATUS_BEGINS,
        };
        let value = filter.map_or("", |filter| filter.value.as_str());
        reading!(self, db => {
            let query = sqlx::query_as(sql).bind(pool_id).bind(page.after).bind(page.limit).bind(value);
            query.fetch_all(db).await
        })
    }
}

#[cfg(test)]
mod tests {
    use postern_common::database::{Database, testing};

    use super::*;

    #[tokio::test]
    async fn finding_one_user_reads_no_other() {
        let test = testing::sqlite().await;
        let _store = Store::open(test.database.clone()).await.expect("tables");
        let Database::Sqlite(sqlite) = &test.database else {
            panic!("SQLite")
        };
        for sql in [NAMED, ATTEMPTED] {
            let plan = format!("EXPLAIN QUERY PLAN {sql}");
            let plan = sqlx::query(sqlx::AssertSqlSafe(plan))
                .fetch_all(&sqlite.readers)
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
            // What the question itself has made.
            let made = ["CONSTANT ROW", "asked", "named", "u LEFT-JOIN"];
            let mut scans = steps.iter().filter_map(|step| step.strip_prefix("SCAN "));
            assert!(scans.all(|scanned| made.contains(&scanned)), "{steps:?}");
        }
    }
}
