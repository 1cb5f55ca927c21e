//! Everything that the authentication upstream keeps in its database, and all of its SQL: one text
//! for both stores, because `$1`, `ON CONFLICT` and `RETURNING` read the same in PostgreSQL and
//! SQLite.
//!
//! - `auth_keys`: the key that seals refresh tokens and challenge sessions, where the operator gave
//!   none.
//! - `auth_pending_registrations`: registrations that began and did not end yet.
//! - `auth_social_identities`: who a social provider's subject is here, and its sealed refresh
//!   token.

mod schema;

use std::time::Duration;

use postern_common::clock::Timestamp;
use postern_common::database::{Database, is_unavailable};
use postern_common::{Code, Problem};
use sqlx::Row;

use self::schema::MIGRATIONS;
use crate::log_limit::log_limited;

const INSERT_KEY: &str = "INSERT INTO auth_keys (name, base64, created_at) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING";
const SELECT_KEY: &str = "SELECT base64 FROM auth_keys WHERE name = $1";

const INSERT_PENDING: &str = "INSERT INTO auth_pending_registrations (id, email, began_at, due_at, attempts) \
     VALUES ($1, $2, $3, $4, 0) ON CONFLICT (id) DO NOTHING";
const NAME_PENDING: &str = "UPDATE auth_pending_registrations SET subject = $2 WHERE id = $1";
const DELETE_PENDING: &str = "DELETE FROM auth_pending_registrations WHERE id = $1";
const DELETE_PENDING_OF: &str =
    "DELETE FROM auth_pending_registrations WHERE lower(email) = lower($1)";
const POSTPONE_PENDING: &str =
    "UPDATE auth_pending_registrations SET due_at = $2, attempts = attempts + 1 WHERE id = $1";
const DUE_PENDING: &str = "SELECT id, email, subject, began_at, attempts FROM auth_pending_registrations \
     WHERE due_at <= $1 ORDER BY due_at LIMIT $2";
const SELECT_PENDING: &str =
    "SELECT id, email, subject, began_at, attempts FROM auth_pending_registrations WHERE id = $1";
const COUNT_PENDING: &str = "SELECT COUNT(*) AS pending FROM auth_pending_registrations";

const SELECT_SOCIAL: &str = "SELECT user_id, username, social_only, profile_saved FROM auth_social_identities \
     WHERE issuer = $1 AND subject = $2";
const INSERT_SOCIAL: &str = "INSERT INTO auth_social_identities \
     (issuer, subject, user_id, username, social_only, profile_saved, created_at, updated_at) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $7) ON CONFLICT (issuer, subject) DO NOTHING";
const FORGET_SOCIAL: &str =
    "DELETE FROM auth_social_identities WHERE issuer = $1 AND subject = $2 AND user_id = $3";
const HAS_SOCIAL: &str = "SELECT COUNT(*) AS found FROM auth_social_identities WHERE user_id = $1";
const SAVE_SOCIAL_TOKEN: &str = "UPDATE auth_social_identities SET refresh_token = $3, updated_at = $4 \
     WHERE issuer = $1 AND subject = $2";
const SELECT_SEALED: &str = "SELECT issuer, subject, user_id, refresh_token FROM auth_social_identities \
     WHERE refresh_token IS NOT NULL AND (issuer, subject) > ($1, $2) ORDER BY issuer, subject LIMIT $3";
const REPLACE_SEALED: &str = "UPDATE auth_social_identities SET refresh_token = $4, updated_at = $5 \
     WHERE issuer = $1 AND subject = $2 AND refresh_token = $3";
const MARK_PROFILE_SAVED: &str = "UPDATE auth_social_identities SET profile_saved = $3, updated_at = $4 \
     WHERE issuer = $1 AND subject = $2";

const MARK_OWN_PASSWORD: &str =
    "UPDATE auth_social_identities SET social_only = $2, updated_at = $3 WHERE username = $1";

/// The store of the authentication upstream.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    database: Database,
}

/// A registration that began and did not end.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub(crate) struct Pending {
    pub(crate) id: String,
    pub(crate) email: String,
    /// The pool's subject, once SignUp has answered.
    pub(crate) subject: Option<String>,
    /// Unix milliseconds.
    pub(crate) began_at: i64,
    pub(crate) attempts: i64,
}

/// Who a social provider's subject is here.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub(crate) struct SocialIdentity {
    /// The pool user's subject, or an id of its own where there is no pool user.
    pub(crate) user_id: String,
    /// The pool's real user name; `None` where there is no pool user.
    pub(crate) username: Option<String>,
    /// Whether nobody has a password for that user, so that we may set one.
    pub(crate) social_only: bool,
    /// Whether the actor service has the profile.
    pub(crate) profile_saved: bool,
}

/// A provider's refresh token as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SealedToken {
    pub(crate) issuer: String,
    pub(crate) subject: String,
    pub(crate) user_id: String,
    pub(crate) sealed: String,
}

/// A statement failed.
#[derive(Debug, thiserror::Error)]
#[error("the database failed: {0}")]
pub(crate) struct StoreError(#[from] sqlx::Error);

/// How long a statement may take, waiting for a connection included: a store that hangs is away.
const DEADLINE: Duration = Duration::from_secs(2);

/// Runs the same statements over whichever store is open; `write` names the pool that may write.
/// They end with a `Result` of the driver's, within the deadline.
macro_rules! over {
    (write $self:ident, $pool:ident => $run:expr) => {
        match &$self.database {
            Database::Postgres($pool) => within_deadline(async { $run }).await,
            Database::Sqlite(sqlite) => {
                let $pool = &sqlite.writer;
                within_deadline(async { $run }).await
            }
        }
    };
    (read $self:ident, $pool:ident => $run:expr) => {
        match &$self.database {
            Database::Postgres($pool) => within_deadline(async { $run }).await,
            Database::Sqlite(sqlite) => {
                let $pool = &sqlite.readers;
                within_deadline(async { $run }).await
            }
        }
    };
}

async fn within_deadline<T>(
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, StoreError> {
    let done = tokio::time::timeout(DEADLINE, work).await;
    done.unwrap_or(Err(sqlx::Error::PoolTimedOut))
        .map_err(StoreError)
}

// === impl StoreError ===

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        log_limited!(warn, error = %error.0, "a statement failed");
        Self::new(if is_unavailable(&error.0) {
            Code::Unavailable
        } else {
            Code::Internal
        })
    }
}

// === impl Store ===

impl Store {
    /// Takes an open database and brings its tables up to date.
    pub(crate) async fn new(database: Database) -> Result<Self, postern_common::exit::Exit> {
        database.migrate(&MIGRATIONS).await?;
        Ok(Self { database })
    }

    /// Whether the database takes a write, on tables that this binary works on.
    pub(crate) async fn takes_writes(&self) -> Result<(), postern_common::exit::Exit> {
        self.database.still_fits(&MIGRATIONS).await
    }

    /// What is unsafe about the way to the database.
    pub(crate) fn transport_warning(&self) -> Option<&'static str> {
        self.database.transport_warning()
    }

    /// Closes what is idle.
    pub(crate) async fn close(&self) {
        self.database.close().await;
    }

    /// The key of this name; `fresh` becomes it if there is none. Every replica gets the same one.
    pub(crate) async fn key(
        &self,
        name: &str,
        fresh: &str,
        now: Timestamp,
    ) -> Result<String, StoreError> {
        over!(write self, pool => {
            sqlx::query(INSERT_KEY).bind(name).bind(fresh).bind(now.0).execute(pool).await?;
            sqlx::query(SELECT_KEY).bind(name).fetch_one(pool).await?.try_get("base64")
        })
    }

    /// Notes that a registration begins, before anything else is done for it. One that is noted
    /// began then.
    pub(crate) async fn begin_registration(
        &self,
        id: &str,
        email: &str,
        began_at: Timestamp,
        due_at: Timestamp,
    ) -> Result<(), StoreError> {
        over!(write self, pool => {
            let insert = sqlx::query(INSERT_PENDING).bind(id).bind(email).bind(began_at.0).bind(due_at.0);
            insert.execute(pool).await.map(drop) })
    }

    /// Notes which user the registration made.
    pub(crate) async fn name_registration(
        &self,
        id: &str,
        subject: &str,
    ) -> Result<(), StoreError> {
        over!(write self, pool => sqlx::query(NAME_PENDING).bind(id).bind(subject).execute(pool).await.map(drop))
    }

    /// The registration ended, one way or the other.
    pub(crate) async fn end_registration(&self, id: &str) -> Result<(), StoreError> {
        over!(write self, pool => sqlx::query(DELETE_PENDING).bind(id).execute(pool).await.map(drop))
    }

    /// Every registration of this address ended well.
    pub(crate) async fn end_registrations_of(&self, email: &str) -> Result<(), StoreError> {
        over!(write self, pool => sqlx::query(DELETE_PENDING_OF).bind(email).execute(pool).await.map(drop))
    }

    /// Looks at the registration again at `due_at`.
    pub(crate) async fn postpone_registration(
        &self,
        id: &str,
        due_at: Timestamp,
    ) -> Result<(), StoreError> {
        over!(write self, pool => {
            sqlx::query(POSTPONE_PENDING).bind(id).bind(due_at.0).execute(pool).await.map(drop) })
    }

    /// Registrations that should have ended by `now`, the oldest first.
    pub(crate) async fn due_registrations(
        &self,
        now: Timestamp,
        limit: i64,
    ) -> Result<Vec<Pending>, StoreError> {
        over!(read self, pool => {
            sqlx::query_as(DUE_PENDING).bind(now.0).bind(limit).fetch_all(pool).await
        })
    }

    /// A registration that has not ended.
    pub(crate) async fn registration(&self, id: &str) -> Result<Option<Pending>, StoreError> {
        over!(write self, pool => sqlx::query_as(SELECT_PENDING).bind(id).fetch_optional(pool).await)
    }

    /// How many registrations have not ended.
    pub(crate) async fn count_registrations(&self) -> Result<i64, StoreError> {
        over!(read self, pool => sqlx::query(COUNT_PENDING).fetch_one(pool).await?.try_get("pending"))
    }

    /// Who the provider's subject is here, if it was seen before.
    pub(crate) async fn social_identity(
        &self,
        issuer: &str,
        subject: &str,
    ) -> Result<Option<SocialIdentity>, StoreError> {
        over!(write self, pool => {
            sqlx::query_as(SELECT_SOCIAL).bind(issuer).bind(subject).fetch_optional(pool).await
        })
    }

    /// Whether somebody's social identity is this user.
    pub(crate) async fn has_social_identity(&self, user_id: &str) -> Result<bool, StoreError> {
        over!(write self, pool => {
            let row = sqlx::query(HAS_SOCIAL).bind(user_id).fetch_one(pool).await?;
            row.try_get::<i64, _>("found").map(|found| found > 0)
        })
    }

    /// The provider's subject is not this user any more.
    pub(crate) async fn forget_social_identity(
        &self,
        issuer: &str,
        subject: &str,
        user_id: &str,
    ) -> Result<(), StoreError> {
        over!(write self, pool => {
            let delete = sqlx::query(FORGET_SOCIAL).bind(issuer).bind(subject).bind(user_id);
            delete.execute(pool).await.map(drop) })
    }

    /// Notes who the provider's subject is here, and returns who it is: the first writer wins.
    pub(crate) async fn add_social_identity(
        &self,
        issuer: &str,
        subject: &str,
        identity: &SocialIdentity,
        now: Timestamp,
    ) -> Result<SocialIdentity, StoreError> {
        let SocialIdentity {
            user_id,
            username,
            social_only,
            profile_saved,
        } = identity;
        over!(write self, pool => {
            let insert = sqlx::query(INSERT_SOCIAL).bind(issuer).bind(subject).bind(user_id).bind(username);
            insert.bind(*social_only).bind(*profile_saved).bind(now.0).execute(pool).await?;
            sqlx::query_as(SELECT_SOCIAL).bind(issuer).bind(subject).fetch_one(pool).await })
    }

    /// Keeps the provider's refresh token, sealed.
    pub(crate) async fn save_social_token(
        &self,
        issuer: &str,
        subject: &str,
        sealed: &str,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        over!(write self, pool => {
            let update = sqlx::query(SAVE_SOCIAL_TOKEN).bind(issuer).bind(subject).bind(sealed);
            update.bind(now.0).execute(pool).await.map(drop) })
    }

    /// Stored refresh tokens behind `after` (issuer, subject), in order.
    pub(crate) async fn sealed_tokens(
        &self,
        after: &(String, String),
        limit: i64,
    ) -> Result<Vec<SealedToken>, StoreError> {
        over!(read self, pool => {
            let select = sqlx::query(SELECT_SEALED).bind(&after.0).bind(&after.1).bind(limit);
            let rows = select.fetch_all(pool).await?;
            let tokens = rows.iter().map(|row| {
                Ok(SealedToken {
                    issuer: row.try_get("issuer")?,
                    subject: row.try_get("subject")?,
                    user_id: row.try_get("user_id")?,
                    sealed: row.try_get("refresh_token")?,
                })
            });
            tokens.collect()
        })
    }

    /// Stores the same token sealed anew, unless a sign-in has stored another meanwhile; whether it
    /// did.
    pub(crate) async fn replace_token(
        &self,
        token: &SealedToken,
        sealed: &str,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        over!(write self, pool => {
            let update = sqlx::query(REPLACE_SEALED).bind(&token.issuer).bind(&token.subject);
            let done = update.bind(&token.sealed).bind(sealed).bind(now.0).execute(pool).await?;
            Ok(done.rows_affected() == 1)
        })
    }

    /// The actor service has the profile of this identity.
    pub(crate) async fn mark_profile_saved(
        &self,
        issuer: &str,
        subject: &str,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        over!(write self, pool => {
            let update = sqlx::query(MARK_PROFILE_SAVED).bind(issuer).bind(subject).bind(true).bind(now.0);
            update.execute(pool).await.map(drop) })
    }

    /// The pool user has a password of the person's own from now on.
    pub(crate) async fn mark_own_password(
        &self,
        username: &str,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        over!(write self, pool => {
            let update = sqlx::query(MARK_OWN_PASSWORD).bind(username).bind(false).bind(now.0);
            update.execute(pool).await.map(drop) })
    }
}

#[cfg(test)]
mod tests;
