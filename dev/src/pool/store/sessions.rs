//! Sign-ins, refresh tokens, and pending challenges. Only digests of tokens are stored.
//!
//! A family is one sign-in (claim `origin_jti`) with its first refresh token and all rotations of
//! it.

use postern_common::clock::Timestamp;
use postern_common::from_row;
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row};

use super::PoolStore;
use super::groups::RowPerGroup;
use crate::pool::model::User;

/// A sign-in with its refresh tokens.
#[derive(Clone, Debug)]
pub(crate) struct TokenFamily {
    /// Id of the family: the claim `origin_jti`.
    pub(crate) family: String,
    pub(crate) client_id: String,
    /// Time of the password authentication in Unix seconds.
    pub(crate) auth_time: i64,
    pub(crate) expires_at: i64,
    pub(crate) revoked_at: Option<i64>,
}

/// The sign-in of a refresh token, and its user.
#[derive(Clone, Debug)]
pub(crate) struct RefreshSession {
    pub(crate) family: TokenFamily,
    pub(crate) user: User,
    /// Names of the user's groups by precedence, lowest number first.
    pub(crate) groups: Vec<String>,
    /// Time of the token's first use, which rotates it if the client has rotation.
    pub(crate) rotated_at: Option<i64>,
}

/// A new sign-in with its first refresh token. Written if the user is enabled and the password is
/// still the one that was verified.
#[derive(Clone, Debug)]
pub(crate) struct StartSession {
    pub(crate) pool_id: String,
    pub(crate) username: String,
    pub(crate) password_version: i64,
    pub(crate) family: TokenFamily,
    pub(crate) hash: String,
}

/// A rotation: the old token is marked as rotated and the new one added, if the sign-in is active
/// and belongs to the client, the user is enabled, and the old token is unused or within its grace
/// period.
#[derive(Clone, Debug)]
pub(crate) struct RotateToken {
    pub(crate) old: String,
    pub(crate) new: String,
    pub(crate) client_id: String,
    pub(crate) now: Timestamp,
    pub(crate) grace_start: Timestamp,
}

/// A pending challenge.
#[derive(Clone, Debug)]
pub(crate) struct ChallengeRow {
    pub(crate) hash: String,
    pub(crate) pool_id: String,
    pub(crate) client_id: String,
    pub(crate) username: String,
    pub(crate) expires_at: i64,
}

from_row!(TokenFamily {
    family: String,
    client_id: String,
    auth_time: i64,
    expires_at: i64,
    revoked_at: Option<i64>,
});

from_row!(ChallengeRow {
    hash: String,
    pool_id: String,
    client_id: String,
    username: String,
    expires_at: i64,
});

impl FromRow<'_, SqliteRow> for RefreshSession {
    fn from_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            family: TokenFamily::from_row(row)?,
            user: User::from_row(row)?,
            groups: Vec::new(),
            rotated_at: row.try_get("rotated_at")?,
        })
    }
}

/// Selects the sign-in of a refresh token and its user, one row for each group by precedence,
/// lowest number first.
macro_rules! refresh_token {
    ($hash:literal) => {
        concat!(
            "SELECT t.rotated_at, f.id AS family, f.client_id, f.auth_time, f.expires_at, f.revoked_at, u.*,
                g.name AS group_name FROM pool_refresh_token t JOIN pool_family f ON f.id = t.family
            JOIN pool_user u ON u.pool_id = f.pool_id AND u.username = f.username
            LEFT JOIN pool_membership m ON m.pool_id = u.pool_id AND m.username = u.username
            LEFT JOIN pool_group g ON g.pool_id = m.pool_id AND g.name = m.group_name
            WHERE t.hash = ",
            $hash,
            " ORDER BY COALESCE(g.precedence, 2147483648), g.name"
        )
    };
}

/// Starts a sign-in. Returns one row per group, at least one, if it succeeds.
const START: &str =
    "INSERT INTO pool_family (id, pool_id, client_id, username, auth_time, expires_at)
        SELECT $1, pool_id, $3, username, $5, $6 FROM pool_user
        WHERE pool_id = $2 AND username = $4 AND enabled <> 0 AND password_version = $8;
    INSERT INTO pool_refresh_token (hash, family) SELECT $7, $1 WHERE changes() = 1;
    SELECT g.name FROM pool_family f
        LEFT JOIN pool_membership m ON m.pool_id = f.pool_id AND m.username = f.username
        LEFT JOIN pool_group g ON g.pool_id = m.pool_id AND g.name = m.group_name
        WHERE f.id = $1 ORDER BY COALESCE(g.precedence, 2147483648), g.name";

/// Rotates a token. Returns what [`PoolStore::refresh_token`] returns for the new token, if it
/// succeeds.
const ROTATE: &str = concat!(
    "INSERT INTO pool_refresh_token (hash, family) SELECT $2, t.family FROM pool_refresh_token t
        JOIN pool_family f ON f.id = t.family
        JOIN pool_user u ON u.pool_id = f.pool_id AND u.username = f.username
        WHERE t.hash = $1 AND (t.rotated_at IS NULL OR t.rotated_at > $5) AND f.client_id = $3
            AND f.revoked_at IS NULL AND f.expires_at > $4 AND u.enabled <> 0;
    UPDATE pool_refresh_token SET rotated_at = $4
        WHERE hash = $1 AND rotated_at IS NULL AND changes() = 1;
    ",
    refresh_token!("$2")
);

impl RefreshSession {
    fn combine(rows: Vec<RowPerGroup<Self>>) -> Option<Self> {
        RowPerGroup::combine(rows).map(|(found, groups)| Self { groups, ..found })
    }
}

impl PoolStore {
    /// Returns the sign-in of a refresh token.
    pub(crate) async fn refresh_token(
        &self,
        hash: &str,
    ) -> Result<Option<RefreshSession>, sqlx::Error> {
        let rows = sqlx::query_as(refresh_token!("$1"))
            .bind(hash)
            .fetch_all(&self.sqlite.readers)
            .await?;
        Ok(RefreshSession::combine(rows))
    }

    /// Starts a sign-in. Returns the names of the user's groups by precedence, lowest number first,
    /// or `None` if a precondition no longer holds.
    pub(crate) async fn start_session(
        &self,
        session: &StartSession,
    ) -> Result<Option<Vec<String>>, sqlx::Error> {
        let StartSession {
            pool_id,
            username,
            password_version,
            family,
            hash,
        } = session;
        let query = sqlx::query_scalar(START).bind(&family.family).bind(pool_id);
        let query = query
            .bind(&family.client_id)
            .bind(username)
            .bind(family.auth_time);
        let query = query
            .bind(family.expires_at)
            .bind(hash)
            .bind(password_version);
        let mut transaction = self.sqlite.begin().await?;
        let rows: Vec<Option<String>> = query.fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        Ok((!rows.is_empty()).then(|| rows.into_iter().flatten().collect()))
    }

    /// Rotates a refresh token. Returns `None` if a precondition does not hold.
    pub(crate) async fn rotate_token(
        &self,
        rotation: &RotateToken,
    ) -> Result<Option<RefreshSession>, sqlx::Error> {
        let RotateToken {
            old,
            new,
            client_id,
            now,
            grace_start,
        } = rotation;
        let query = sqlx::query_as(ROTATE).bind(old).bind(new).bind(client_id);
        let query = query.bind(now.0).bind(grace_start.0);
        let mut transaction = self.sqlite.begin().await?;
        let rows = query.fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(RefreshSession::combine(rows))
    }

    pub(crate) async fn revoke_family(
        &self,
        family: &str,
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        const SQL: &str =
            "UPDATE pool_family SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL";
        sqlx::query(SQL)
            .bind(family)
            .bind(now.0)
            .execute(&self.sqlite.writer)
            .await
            .map(drop)
    }

    /// Revokes all sign-ins of the user.
    pub(crate) async fn revoke_user(
        &self,
        pool_id: &str,
        username: &str,
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        const SQL: &str = "UPDATE pool_family SET revoked_at = $3
            WHERE pool_id = $1 AND username = $2 AND revoked_at IS NULL";
        sqlx::query(SQL)
            .bind(pool_id)
            .bind(username)
            .bind(now.0)
            .execute(&self.sqlite.writer)
            .await
            .map(drop)
    }

    /// Returns whether the sign-in exists and is not revoked.
    pub(crate) async fn is_family_active(&self, family: &str) -> Result<bool, sqlx::Error> {
        const SQL: &str = "SELECT revoked_at FROM pool_family WHERE id = $1";
        let found: Option<Option<i64>> = sqlx::query_scalar(SQL)
            .bind(family)
            .fetch_optional(&self.sqlite.readers)
            .await?;
        Ok(matches!(found, Some(None)))
    }

    pub(crate) async fn put_challenge(&self, row: &ChallengeRow) -> Result<(), sqlx::Error> {
        const SQL: &str =
            "INSERT INTO pool_challenge (hash, pool_id, client_id, username, expires_at)
            VALUES ($1, $2, $3, $4, $5)";
        let query = sqlx::query(SQL)
            .bind(&row.hash)
            .bind(&row.pool_id)
            .bind(&row.client_id);
        query
            .bind(&row.username)
            .bind(row.expires_at)
            .execute(&self.sqlite.writer)
            .await
            .map(drop)
    }

    pub(crate) async fn challenge(&self, hash: &str) -> Result<Option<ChallengeRow>, sqlx::Error> {
        const SQL: &str = "SELECT hash, pool_id, client_id, username, expires_at FROM pool_challenge WHERE hash = $1";
        sqlx::query_as(SQL)
            .bind(hash)
            .fetch_optional(&self.sqlite.readers)
            .await
    }

    /// Deletes a challenge. Returns `false` if a concurrent response consumed it.
    pub(crate) async fn take_challenge(&self, hash: &str) -> Result<bool, sqlx::Error> {
        const SQL: &str = "DELETE FROM pool_challenge WHERE hash = $1";
        sqlx::query(SQL)
            .bind(hash)
            .execute(&self.sqlite.writer)
            .await
            .map(|done| done.rows_affected() == 1)
    }
}

#[cfg(test)]
mod tests;
