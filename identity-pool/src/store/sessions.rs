//! Refresh tokens and unanswered challenges. Only hashes are kept.
//!
//! A family is one sign-in (`origin_jti`); its tokens are the first one and those that rotation
//! made of it.

use postern_common::clock::Timestamp;
use postern_common::database::Database;

use super::groups::InGroup;
use super::{Store, reading, writing};
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
    /// The names of its groups, the one with the lowest precedence number first.
    #[sqlx(skip)]
    pub(crate) groups: Vec<String>,
    /// When the token was used first; it rotates, where the client's tokens do.
    pub(crate) rotated_at: Option<i64>,
}

/// What came of a write.
#[derive(Clone, Debug)]
pub(crate) enum Written {
    /// A new sign-in, whose user is in these groups now, the one with the lowest precedence number
    /// first.
    Begun { groups: Vec<String> },
    /// A sign-in that goes on.
    Rotated(Box<FamilyOfUser>),
    /// What it rests on stands no longer; nothing was written.
    Refused,
}

/// What a sign-in or a refresh writes.
#[derive(Clone, Debug)]
pub(crate) enum SessionWrite {
    Begin(Begin),
    Rotate(Rotate),
}

/// A new sign-in with its first refresh token: if the user is enabled, and its password still the
/// one that was read.
#[derive(Clone, Debug)]
pub(crate) struct Begin {
    pub(crate) pool_id: String,
    pub(crate) username: String,
    pub(crate) password_version: i64,
    /// The name in the list of attempts, whose failures are forgotten, if it is not locked: then
    /// nothing is written.
    pub(crate) attempts: Option<String>,
    pub(crate) now: Timestamp,
    pub(crate) family: Family,
    pub(crate) hash: String,
}

/// A refresh token is marked as rotated and a new one added, if its sign-in is this client's and
/// stands, its user is enabled, and the old one is unused or within its grace.
#[derive(Clone, Debug)]
pub(crate) struct Rotate {
    pub(crate) old: String,
    pub(crate) new: String,
    pub(crate) client_id: String,
    pub(crate) now: Timestamp,
    pub(crate) grace_began: Timestamp,
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

/// A sign-in and its user, once for each of its groups.
macro_rules! sign_in_of {
    ($from:literal) => {
        concat!(
            "f.id AS family, f.client_id, f.auth_time, f.expires_at, f.revoked_at, u.*, g.name AS group_name FROM ",
            $from,
            " LEFT JOIN pool_membership m ON m.pool_id = u.pool_id AND m.username = u.username
            LEFT JOIN pool_group g ON g.pool_id = m.pool_id AND g.name = m.group_name"
        )
    };
}

/// The group with the lowest precedence number first.
macro_rules! by_precedence {
    () => {
        "ORDER BY COALESCE(g.precedence, 2147483648), g.name"
    };
}

/// Begins a sign-in within a transaction: a row a group, and one at least, if it was done.
macro_rules! begin_in_sqlite {
    () => {
        "INSERT INTO pool_family (id, pool_id, client_id, username, auth_time, expires_at)
            SELECT $1, pool_id, $3, username, $5, $6 FROM pool_user
            WHERE pool_id = $2 AND username = $4 AND enabled <> 0 AND password_version = $8 AND NOT EXISTS
                (SELECT 1 FROM pool_attempt WHERE pool_id = $2 AND name = $9 AND locked_until > $10);
        INSERT INTO pool_refresh_token (hash, family) SELECT $7, $1 WHERE changes() = 1;
        DELETE FROM pool_attempt WHERE pool_id = $2 AND name = $9 AND EXISTS
            (SELECT 1 FROM pool_family WHERE id = $1);
        SELECT g.name FROM pool_family f
            LEFT JOIN pool_membership m ON m.pool_id = f.pool_id AND m.username = f.username
            LEFT JOIN pool_group g ON g.pool_id = m.pool_id AND g.name = m.group_name
            WHERE f.id = $1 ORDER BY COALESCE(g.precedence, 2147483648), g.name"
    };
}

pub(super) const BEGIN_IN_SQLITE: &str = begin_in_sqlite!();
/// The same with the transaction around it.
pub(super) const BEGIN_ALONE_IN_SQLITE: &str =
    concat!("BEGIN IMMEDIATE; ", begin_in_sqlite!(), "; COMMIT");

/// Any number of rotations, as an array of `[old, new, client, now, grace began]`: what
/// [`Store::refresh_token`] would tell of each new token, with the place of its rotation, for those
/// that were done. The array leads in every join: however the tables are, each is asked by its key.
///
/// An old token may stand in it twice where both are within its grace.
pub(super) const ROTATE_IN_SQLITE: &str = concat!(
    "BEGIN IMMEDIATE;
    INSERT INTO pool_refresh_token (hash, family) SELECT j.value ->> 1, t.family FROM json_each($1) j
        CROSS JOIN pool_refresh_token t ON t.hash = j.value ->> 0 CROSS JOIN pool_family f ON f.id = t.family
        CROSS JOIN pool_user u ON u.pool_id = f.pool_id AND u.username = f.username
        WHERE (t.rotated_at IS NULL OR t.rotated_at > j.value ->> 4) AND f.client_id = j.value ->> 2
            AND f.revoked_at IS NULL AND f.expires_at > j.value ->> 3 AND u.enabled <> 0;
    UPDATE pool_refresh_token INDEXED BY sqlite_autoindex_pool_refresh_token_1
        SET rotated_at = (SELECT max(value ->> 3) FROM json_each($1))
        WHERE rotated_at IS NULL AND hash IN (SELECT j.value ->> 0 FROM json_each($1) j
            CROSS JOIN pool_refresh_token n ON n.hash = j.value ->> 1);
    SELECT j.key AS place, t.rotated_at, ",
    sign_in_of!(
        "json_each($1) j CROSS JOIN pool_refresh_token t ON t.hash = j.value ->> 1
        CROSS JOIN pool_family f ON f.id = t.family
        CROSS JOIN pool_user u ON u.pool_id = f.pool_id AND u.username = f.username"
    ),
    " ",
    by_precedence!(),
    "; COMMIT"
);

/// The user is locked, so that whoever changes the password meanwhile finds the sign-in, or is
/// found by it. Failures are forgotten as they are when their row is locked, which may be later
/// than what the statement sees: where there were some and none could be forgotten, the name has
/// been locked.
const BEGIN_IN_POSTGRES: &str = "WITH sound AS (SELECT pool_id, username FROM pool_user
        WHERE pool_id = $2 AND username = $4 AND enabled <> 0 AND password_version = $8 FOR SHARE
    ), forgotten AS (DELETE FROM pool_attempt a USING sound
        WHERE a.pool_id = $2 AND a.name = $9 AND a.locked_until <= $10 RETURNING 1
    ), begun AS (INSERT INTO pool_family (id, pool_id, client_id, username, auth_time, expires_at)
        SELECT $1, pool_id, $3, username, $5, $6 FROM sound WHERE EXISTS (SELECT 1 FROM forgotten)
            OR NOT EXISTS (SELECT 1 FROM pool_attempt WHERE pool_id = $2 AND name = $9) RETURNING id
    ), kept AS (INSERT INTO pool_refresh_token (hash, family) SELECT $7, id FROM begun)
    SELECT g.name FROM begun
        LEFT JOIN pool_membership m ON m.pool_id = $2 AND m.username = $4
        LEFT JOIN pool_group g ON g.pool_id = m.pool_id AND g.name = m.group_name
        ORDER BY COALESCE(g.precedence, 2147483648), g.name";

/// What [`Store::refresh_token`] would tell of the new token.
const ROTATE_IN_POSTGRES: &str = concat!(
    "WITH marked AS (UPDATE pool_refresh_token t SET rotated_at = COALESCE(t.rotated_at, $2)
        FROM pool_family f JOIN pool_user u ON u.pool_id = f.pool_id AND u.username = f.username
        WHERE t.hash = $1 AND (t.rotated_at IS NULL OR t.rotated_at > $3) AND f.id = t.family
            AND f.client_id = $5 AND f.revoked_at IS NULL AND f.expires_at > $2 AND u.enabled <> 0
        RETURNING t.family
    ), added AS (INSERT INTO pool_refresh_token (hash, family) SELECT $4, family FROM marked)
    SELECT NULL::bigint AS rotated_at, ",
    sign_in_of!(
        "marked t JOIN pool_family f ON f.id = t.family
        JOIN pool_user u ON u.pool_id = f.pool_id AND u.username = f.username"
    ),
    " ",
    by_precedence!()
);

impl Written {
    /// By what a statement that begins a sign-in answered.
    pub(super) fn begun(rows: Vec<Option<String>>) -> Self {
        if rows.is_empty() {
            Self::Refused
        } else {
            Self::Begun {
                groups: rows.into_iter().flatten().collect(),
            }
        }
    }

    /// By what a statement that goes on with one answered.
    pub(super) fn rotated(rows: Vec<InGroup<FamilyOfUser>>) -> Self {
        FamilyOfUser::gather(rows).map_or(Self::Refused, |found| Self::Rotated(Box::new(found)))
    }
}

impl FamilyOfUser {
    fn gather(rows: Vec<InGroup<Self>>) -> Option<Self> {
        InGroup::gather(rows).map(|(found, groups)| Self { groups, ..found })
    }
}

/// Begins a sign-in in either store.
macro_rules! begin {
    ($connection:expr, $sql:expr, $begin:expr) => {{
        let Begin {
            pool_id,
            username,
            password_version,
            attempts,
            now,
            family,
            hash,
        } = $begin;
        let query = sqlx::query_scalar($sql);
        let query = query
            .bind(&family.family)
            .bind(pool_id)
            .bind(&family.client_id)
            .bind(username);
        let query = query
            .bind(family.auth_time)
            .bind(family.expires_at)
            .bind(hash);
        let query = query.bind(password_version).bind(attempts).bind(now.0);
        query.fetch_all($connection).await.map(Written::begun)
    }};
}

pub(super) use begin;

impl Store {
    /// What a refresh token stands for.
    pub(crate) async fn refresh_token(
        &self,
        hash: &str,
    ) -> Result<Option<FamilyOfUser>, sqlx::Error> {
        const SQL: &str = concat!(
            "SELECT t.rotated_at, ",
            sign_in_of!(
                "pool_refresh_token t JOIN pool_family f ON f.id = t.family
                JOIN pool_user u ON u.pool_id = f.pool_id AND u.username = f.username"
            ),
            " WHERE t.hash = $1 ",
            by_precedence!()
        );
        let rows = reading!(self, db => sqlx::query_as(SQL).bind(hash).fetch_all(db).await)?;
        Ok(FamilyOfUser::gather(rows))
    }

    /// Begins or goes on with a sign-in. Returns after the commit.
    pub(crate) async fn write_session(&self, write: SessionWrite) -> Result<Written, sqlx::Error> {
        match (&self.database, &self.grouped) {
            (Database::Postgres(pool), _) => match write {
                SessionWrite::Begin(begin) => begin!(pool, BEGIN_IN_POSTGRES, &begin),
                SessionWrite::Rotate(Rotate {
                    old,
                    new,
                    client_id,
                    now,
                    grace_began,
                }) => {
                    let query = sqlx::query_as(ROTATE_IN_POSTGRES).bind(old).bind(now.0);
                    let query = query.bind(grace_began.0).bind(new).bind(client_id);
                    query.fetch_all(pool).await.map(Written::rotated)
                }
            },
            (Database::Sqlite(_), Some(grouped)) => grouped.write(write).await,
            (Database::Sqlite(_), None) => Err(sqlx::Error::WorkerCrashed),
        }
    }

    pub(crate) async fn revoke_family(
        &self,
        family: &str,
        now: Timestamp,
    ) -> Result<(), sqlx::Error> {
        const SQL: &str =
            "UPDATE pool_family SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL";
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
        const SQL: &str =
            "INSERT INTO pool_challenge (hash, pool_id, client_id, username, expires_at)
            VALUES ($1, $2, $3, $4, $5)";
        writing!(self, db => {
            let query = sqlx::query(SQL).bind(&row.hash).bind(&row.pool_id).bind(&row.client_id);
            query.bind(&row.username).bind(row.expires_at).execute(db).await.map(drop)
        })
    }

    pub(crate) async fn challenge(&self, hash: &str) -> Result<Option<ChallengeRow>, sqlx::Error> {
        const SQL: &str = "SELECT hash, pool_id, client_id, username, expires_at FROM pool_challenge WHERE hash = $1";
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
