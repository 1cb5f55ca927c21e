//! Refresh tokens and unanswered challenges. Only hashes are kept.
//!
//! A family is one sign-in (`origin_jti`); its tokens are the first one and those that rotation made of it.

use postern_common::clock::Timestamp;

use super::{Store, reading, sessions, transaction, writing};
use crate::user::User;

/// A sign-in.
#[derive(Clone, Debug, sqlx::FromRow)]
pub(crate) struct Family {
    /// The claim `origin_jti`.
    pub(crate) family: String,
    pub(crate) client_id: String,
    /// Unix seconds.
    pub(crate) auth_time: i64,
    pub(crate) expires_at: i64,
    pub(crate) revoked_at: Option<i64>,
}

/// The sign-in that a refresh token belongs to, and its user.
#[derive(Clone, Debug, sqlx::FromRow)]
pub(crate) struct FamilyOfUser {
    #[sqlx(flatten)]
    pub(crate) family: Family,
    #[sqlx(flatten)]
    pub(crate) user: User,
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rotation {
    Done,
    /// The token was rotated before the grace began: someone uses a token that should be gone.
    Reused,
}

/// What a sign-in or a refresh writes.
#[derive(Clone, Debug)]
pub(crate) enum SessionWrite {
    /// A new sign-in with its first refresh token.
    Begin { pool_id: String, username: String, family: Family, hash: String },
    /// A refresh token is marked as rotated and a new one added, if the old one is unused or within its grace.
    Rotate { old: String, new: String, family: String, now: Timestamp, grace_began: Timestamp },
}

/// A challenge that waits for its answer.
#[derive(Clone, Debug, sqlx::FromRow)]
pub(crate) struct ChallengeRow {
    pub(crate) hash: String,
    pub(crate) pool_id: String,
    pub(crate) client_id: String,
    pub(crate) username: String,
    pub(crate) expires_at: i64,
}

/// Applies a [`SessionWrite`] in an open transaction of either store.
macro_rules! apply {
    ($transaction:expr, $write:expr) => {
        match $write {
            SessionWrite::Begin { pool_id, username, family, hash } => {
                let query = sqlx::query(sessions::BEGIN).bind(&family.family).bind(pool_id);
                let query = query.bind(&family.client_id).bind(username);
                let query = query.bind(family.auth_time).bind(family.expires_at);
                query.execute(&mut *$transaction).await?;
                let query = sqlx::query(sessions::ADD_TOKEN).bind(hash).bind(&family.family);
                query.execute(&mut *$transaction).await.map(|_| Rotation::Done)
            }
            SessionWrite::Rotate { old, new, family, now, grace_began } => {
                let query = sqlx::query(sessions::MARK).bind(old).bind(now.0).bind(grace_began.0);
                if query.execute(&mut *$transaction).await?.rows_affected() == 0 {
                    Ok(Rotation::Reused)
                } else {
                    let query = sqlx::query(sessions::ADD_TOKEN).bind(new).bind(family);
                    query.execute(&mut *$transaction).await.map(|_| Rotation::Done)
                }
            }
        }
    };
}

pub(super) use apply;

impl Store {
    /// What a refresh token stands for.
    pub(crate) async fn refresh_token(&self, hash: &str) -> Result<Option<FamilyOfUser>, sqlx::Error> {
        const SQL: &str = "SELECT f.id AS family, f.client_id, f.auth_time, f.expires_at, f.revoked_at, u.*
            FROM pool_refresh_token t JOIN pool_family f ON f.id = t.family
            JOIN pool_user u ON u.pool_id = f.pool_id AND u.username = f.username WHERE t.hash = $1";
        reading!(self, db => sqlx::query_as(SQL).bind(hash).fetch_optional(db).await)
    }

    /// Begins or goes on with a sign-in. Returns after the commit.
    pub(crate) async fn write_session(&self, write: SessionWrite) -> Result<Rotation, sqlx::Error> {
        if let Some(grouped) = &self.grouped {
            return grouped.write(write).await;
        }
        let outcome = transaction!(self, tx => apply!(tx, &write)?);
        Ok(outcome)
    }

    pub(crate) async fn revoke_family(&self, family: &str, now: Timestamp) -> Result<(), sqlx::Error> {
        const SQL: &str = "UPDATE pool_family SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL";
        writing!(self, db => sqlx::query(SQL).bind(family).bind(now.0).execute(db).await.map(drop))
    }

    /// Ends every sign-in of the user.
    pub(crate) async fn revoke_user(
        &self,
        pool_id: &str,
        username: &str,
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        const SQL: &str = "UPDATE pool_family SET revoked_at = $3
            WHERE pool_id = $1 AND username = $2 AND revoked_at IS NULL";
        writing!(self, db => {
            sqlx::query(SQL).bind(pool_id).bind(username).bind(now.0).execute(db).await.map(drop)
        })
    }

    /// Whether the sign-in still stands.
    pub(crate) async fn family_lives(&self, family: &str) -> Result<bool, sqlx::Error> {
        const SQL: &str = "SELECT revoked_at FROM pool_family WHERE id = $1";
        let found: Option<Option<i64>> =
            reading!(self, db => sqlx::query_scalar(SQL).bind(family).fetch_optional(db).await)?;
        Ok(matches!(found, Some(None)))
    }

    pub(crate) async fn put_challenge(&self, row: &ChallengeRow) -> Result<(), sqlx::Error> {
        const SQL: &str = "INSERT INTO pool_challenge (hash, pool_id, client_id, username, expires_at)
            VALUES ($1, $2, $3, $4, $5)";
        writing!(self, db => {
            let query = sqlx::query(SQL).bind(&row.hash).bind(&row.pool_id).bind(&row.client_id);
            query.bind(&row.username).bind(row.expires_at).execute(db).await.map(drop)
        })
    }

    pub(crate) async fn challenge(&self, hash: &str) -> Result<Option<ChallengeRow>, sqlx::Error> {
        const SQL: &str =
            "SELECT hash, pool_id, client_id, username, expires_at FROM pool_challenge WHERE hash = $1";
        reading!(self, db => sqlx::query_as(SQL).bind(hash).fetch_optional(db).await)
    }

    /// Takes a challenge out; `false` when another answer was faster.
    pub(crate) async fn take_challenge(&self, hash: &str) -> Result<bool, sqlx::Error> {
        const SQL: &str = "DELETE FROM pool_challenge WHERE hash = $1";
        writing!(self, db => {
            sqlx::query(SQL).bind(hash).execute(db).await.map(|done| done.rows_affected() == 1)
        })
    }
}

pub(super) const BEGIN: &str = "INSERT INTO pool_family
    (id, pool_id, client_id, username, auth_time, expires_at) VALUES ($1, $2, $3, $4, $5, $6)";
pub(super) const ADD_TOKEN: &str = "INSERT INTO pool_refresh_token (hash, family) VALUES ($1, $2)";
pub(super) const MARK: &str = "UPDATE pool_refresh_token SET rotated_at = COALESCE(rotated_at, $2)
    WHERE hash = $1 AND (rotated_at IS NULL OR rotated_at > $3)";
