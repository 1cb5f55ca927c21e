//! The durable store, with all SQL of this crate. The statements are the same for PostgreSQL and
//! SQLite, which agree on `$1` and `ON CONFLICT`.
//!
//! - `auth_keys`: the generated sealing key, if the configuration has none.
//! - `auth_pending_registrations`: registrations that are neither completed nor undone, with the
//!   address as keyed hash and sealed: what is deleted stays in free pages and logs of a database.
//! - `auth_social_identities`: the user of each social identity (issuer and subject), and the
//!   provider's sealed refresh token. A user name that is not the subject may be an address, and is
//!   sealed.
//! - `auth_social_users`: what a provider sends of a person once, sealed, until the profile is saved.
//! - `auth_audit`: audit events, with e-mail addresses as keyed hashes only.

mod audit;
mod schema;

use std::sync::Arc;
use std::time::Duration;

use postern_core::clock::Timestamp;
use postern_core::exit::Exit;
use postern_core::{Clock, Code, Problem};
use postern_store::database::{Database, is_unavailable};
use postern_store::{from_row, with_dialect};

pub(crate) use self::audit::{AuditPosition, AuditQuery, AuditRow, AuditSelector};
use self::schema::MIGRATIONS;
pub(crate) use self::social_identities::{SocialId, SocialIdentity};
use crate::crypto::{KeyRing, SealingKey, random};

const INSERT_KEY: &str =
    "INSERT INTO auth_keys (name, base64) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";
const SELECT_KEY: &str = "SELECT base64 FROM auth_keys WHERE name = $1";

const INSERT_REGISTRATION: &str = "INSERT INTO auth_pending_registrations (id, email_hash, email, began_at, due_at, attempts) \
     VALUES ($1, $2, $3, $4, $5, 0) ON CONFLICT (id) DO NOTHING";
const SET_REGISTRATION_SUBJECT: &str =
    "UPDATE auth_pending_registrations SET subject = $2 WHERE id = $1";
const DELETE_REGISTRATION: &str = "DELETE FROM auth_pending_registrations WHERE id = $1";
const DELETE_REGISTRATIONS_OF: &str =
    "DELETE FROM auth_pending_registrations WHERE email_hash = $1";
const POSTPONE_REGISTRATION: &str =
    "UPDATE auth_pending_registrations SET due_at = $2, attempts = attempts + 1 WHERE id = $1";
const SELECT_DUE_REGISTRATIONS: &str = "SELECT id, email, subject, profile, began_at, attempts FROM auth_pending_registrations \
     WHERE due_at <= $1 ORDER BY due_at LIMIT $2";
const SELECT_REGISTRATION: &str = "SELECT id, email, subject, profile, began_at, attempts FROM auth_pending_registrations WHERE id = $1";
const AWAIT_CONFIRMATION: &str =
    "UPDATE auth_pending_registrations SET profile = $2, due_at = $3 WHERE id = $1";
const DELETE_INTERRUPTED: &str = "DELETE FROM auth_pending_registrations \
     WHERE email_hash = $1 AND profile IS NULL";
const SELECT_AWAITING: &str = "SELECT id FROM auth_pending_registrations \
     WHERE email_hash = $1 AND profile IS NOT NULL ORDER BY began_at DESC LIMIT 1";
const EXPEDITE_REGISTRATION: &str =
    "UPDATE auth_pending_registrations SET due_at = $2 WHERE subject = $1 AND profile IS NOT NULL";
const COUNT_REGISTRATIONS: &str =
    "SELECT COUNT(*) AS pending FROM auth_pending_registrations WHERE profile IS NULL";

#[derive(Clone, Debug)]
pub(crate) struct AuthStore {
    database: Database,
    key_ring: Arc<KeyRing>,
}

/// A registration that is neither completed nor undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingRegistration {
    pub(crate) id: String,
    pub(crate) email: String,
    /// The subject of the new user, once SignUp has returned it.
    pub(crate) subject: Option<String>,
    /// The sealed profile, while the address awaits its confirmation or the profile its storage.
    pub(crate) profile: Option<String>,
    /// Start time in milliseconds since the epoch.
    pub(crate) began_at: i64,
    /// Number of attempts to complete or undo it.
    pub(crate) attempts: i64,
}

from_row!(PendingRegistration {
    id: String,
    email: String,
    subject: Option<String>,
    profile: Option<String>,
    began_at: i64,
    attempts: i64,
});

#[derive(Debug, thiserror::Error)]
#[error("statement failed: {0}")]
pub(crate) struct StoreError(#[from] sqlx::Error);

type Stored<T = ()> = Result<T, StoreError>;

/// The sealing context of addresses, followed by the id of the registration.
const EMAIL_CONTEXT: &str = "postern pending registration";
/// Timeout of a statement, including the wait for a connection.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(2);

async fn with_timeout<T>(work: impl Future<Output = Result<T, sqlx::Error>>) -> Stored<T> {
    let done = tokio::time::timeout(STATEMENT_TIMEOUT, work).await;
    done.unwrap_or(Err(sqlx::Error::PoolTimedOut))
        .map_err(StoreError)
}

/// Runs a statement and returns the number of rows that it changed.
macro_rules! execute {
    ($store:ident, $sql:ident; $($value:expr),*) => {
        with_dialect!($store.database.writer(), pool => with_timeout(async {
            let done = sqlx::query($sql)$(.bind($value))*.execute(pool).await?;
            Ok(done.rows_affected())
        }).await)
    };
}

/// Runs a query, on the writer or the readers of a store, and returns its rows.
macro_rules! fetch {
    ($store:ident.$side:ident, $fetch:ident, $sql:ident; $($value:expr),*) => {
        with_dialect!($store.database.$side(), pool => with_timeout(async {
            sqlx::query_as($sql)$(.bind($value))*.$fetch(pool).await
        }).await)
    };
}

// Behind the macros that it uses.
mod social_identities;

// === impl PendingRegistration ===

impl PendingRegistration {
    /// Opens the address. One that was sealed with a key that is gone becomes empty.
    fn opened(mut self, key_ring: &KeyRing) -> Self {
        let text = open_text(key_ring, &[EMAIL_CONTEXT, &self.id], &self.email);
        self.email = text.unwrap_or_default();
        self
    }
}

fn open_text(key_ring: &KeyRing, context: &[&str], sealed: &str) -> Option<String> {
    let plain = key_ring.open(context, sealed)?;
    String::from_utf8(plain.to_vec()).ok()
}

// === impl StoreError ===

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        postern_core::log_outage!("database", error = %error.0, "database statement failed");
        Self::new(if is_unavailable(&error.0) {
            Code::Unavailable
        } else {
            Code::Internal
        })
    }
}

// === impl AuthStore ===

impl AuthStore {
    pub(crate) async fn new(database: Database) -> Result<Self, Exit> {
        database.migrate(&MIGRATIONS).await?;
        Ok(Self::of(database))
    }

    /// Opens the store of commands, which do not migrate its tables.
    pub(crate) async fn open_migrated(database: Database) -> Result<Self, Exit> {
        database.verify_schema(&MIGRATIONS).await?;
        Ok(Self::of(database))
    }

    /// Returns a store whose keys are those of this process until [`AuthStore::with_keys`].
    fn of(database: Database) -> Self {
        let key = SealingKey::new(&random::bytes());
        let key_ring = Arc::new(KeyRing::new(key, Vec::new()));
        Self { database, key_ring }
    }

    /// Sets the keys, one of which the database itself may have.
    pub(crate) fn with_keys(self, key_ring: Arc<KeyRing>) -> Self {
        Self { key_ring, ..self }
    }

    /// Verifies that the database accepts writes and that its tables suit this binary.
    pub(crate) async fn check_writable(&self) -> Result<(), Exit> {
        self.database.verify_writable(&MIGRATIONS).await
    }

    pub(crate) fn database(&self) -> &Database {
        &self.database
    }

    pub(crate) async fn synchronize(&self, clock: &Clock) -> Stored {
        with_timeout(self.database.synchronize(clock)).await
    }

    /// Returns the time of the database, also after the machine has slept.
    pub(crate) async fn now(&self, clock: &Clock) -> Stored<Timestamp> {
        if clock.is_uncertain() {
            self.synchronize(clock).await?;
        }
        Ok(clock.now())
    }

    /// Returns the key of this name, after storing `generated` if there is none. All replicas get
    /// the same key.
    pub(crate) async fn key_or_insert(&self, name: &str, generated: &str) -> Stored<String> {
        let known: Option<(String,)> = fetch!(self.writer, fetch_optional, SELECT_KEY; name)?;
        if let Some((key,)) = known {
            return Ok(key);
        }
        execute!(self, INSERT_KEY; name, generated)?;
        let (key,): (String,) = fetch!(self.writer, fetch_one, SELECT_KEY; name)?;
        Ok(key)
    }

    /// Inserts a registration before it has any effect. Keeps an existing row of this id.
    pub(crate) async fn insert_registration(
        &self,
        id: &str,
        email: &str,
        began_at: Timestamp,
        due_at: Timestamp,
    ) -> Stored {
        let hash = self.key_ring.email_hash(email);
        let sealed = self.key_ring.seal(&[EMAIL_CONTEXT, id], email.as_bytes());
        let (began_at, due_at) = (began_at.0, due_at.0);
        execute!(self, INSERT_REGISTRATION; id, hash, &sealed, began_at, due_at).map(drop)
    }

    pub(crate) async fn set_registration_subject(&self, id: &str, subject: &str) -> Stored {
        execute!(self, SET_REGISTRATION_SUBJECT; id, subject).map(drop)
    }

    pub(crate) async fn delete_registration(&self, id: &str) -> Stored {
        execute!(self, DELETE_REGISTRATION; id).map(drop)
    }

    pub(crate) async fn delete_registrations_of(&self, email: &str) -> Stored {
        for hash in self.key_ring.email_hashes(email) {
            execute!(self, DELETE_REGISTRATIONS_OF; hash)?;
        }
        Ok(())
    }

    /// Keeps the profile of a registration until `due_at`, and deletes the interrupted ones of its
    /// address.
    pub(crate) async fn await_confirmation(
        &self,
        id: &str,
        email: &str,
        profile: &str,
        due_at: Timestamp,
    ) -> Stored {
        execute!(self, AWAIT_CONFIRMATION; id, profile, due_at.0)?;
        for hash in self.key_ring.email_hashes(email) {
            execute!(self, DELETE_INTERRUPTED; hash)?;
        }
        Ok(())
    }

    /// Returns the id of the last registration of an address that awaits its confirmation.
    pub(crate) async fn awaiting_registration(&self, email: &str) -> Stored<Option<String>> {
        for hash in self.key_ring.email_hashes(email) {
            let found: Option<(String,)> =
                fetch!(self.writer, fetch_optional, SELECT_AWAITING; hash)?;
            if let Some((id,)) = found {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Lets the compensation save the profile of a user who has confirmed.
    pub(crate) async fn expedite_registration(&self, subject: &str, due_at: Timestamp) -> Stored {
        execute!(self, EXPEDITE_REGISTRATION; subject, due_at.0).map(drop)
    }

    /// Sets when the registration is due next, and counts the attempt.
    pub(crate) async fn postpone_registration(&self, id: &str, due_at: Timestamp) -> Stored {
        execute!(self, POSTPONE_REGISTRATION; id, due_at.0).map(drop)
    }

    pub(crate) async fn due_registrations(
        &self,
        now: Timestamp,
        limit: i64,
    ) -> Stored<Vec<PendingRegistration>> {
        let due: Vec<PendingRegistration> =
            fetch!(self.readers, fetch_all, SELECT_DUE_REGISTRATIONS; now.0, limit)?;
        let open = |it: PendingRegistration| it.opened(&self.key_ring);
        Ok(due.into_iter().map(open).collect())
    }

    pub(crate) async fn registration(&self, id: &str) -> Stored<Option<PendingRegistration>> {
        let found: Option<PendingRegistration> =
            fetch!(self.writer, fetch_optional, SELECT_REGISTRATION; id)?;
        Ok(found.map(|it| it.opened(&self.key_ring)))
    }

    /// Returns the number of pending registrations that do not await a confirmation.
    pub(crate) async fn count_registrations(&self) -> Stored<i64> {
        let (count,): (i64,) = fetch!(self.readers, fetch_one, COUNT_REGISTRATIONS;)?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
