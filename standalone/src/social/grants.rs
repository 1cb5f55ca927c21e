//! What the provider has handed out: codes in memory for a minute, refresh tokens in SQLite.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_common::Clock;
use postern_common::clock::Timestamp;
use postern_common::database::Sqlite;
use sha2::{Digest, Sha256};
use sqlx::Row;

use super::people::Person;

/// RFC 6749 section 4.1.2 allows ten minutes at most; a client needs seconds.
const CODE_LIFETIME: Duration = Duration::from_secs(60);

/// Codes that wait at once; beyond it the oldest go.
const MAX_CODES: usize = 1_000;

/// How long a refresh token lasts without being used.
const REFRESH_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);

/// What a person agreed to.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    /// All tokens that come of one sign-in.
    pub(super) family: String,
    pub(super) person: Person,
    /// Space-separated, as granted.
    pub(super) scope: String,
    /// When the person was chosen.
    pub(super) authenticated_at: Timestamp,
}

/// A grant with what the token request must match.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) grant: Grant,
    pub(super) redirect_uri: String,
    /// `code_challenge`, S256.
    pub(super) challenge: String,
    pub(super) nonce: Option<String>,
    pub(super) expires_at: Timestamp,
    /// Kept until it expires, so that a second use is noticed.
    pub(super) used: bool,
}

/// What became of a code or refresh token that was presented.
#[derive(Debug)]
pub(super) enum Presented<T> {
    /// It was good, and is used up now.
    Good(T),
    /// Unknown or expired.
    Unknown,
    /// It had been used before: everything that came of it is revoked.
    Reused,
}

/// The store of both.
#[derive(Debug)]
pub(super) struct Grants {
    codes: Mutex<HashMap<String, Pending>>,
    store: Sqlite,
    clock: Clock,
}

// === impl Grants ===

impl Grants {
    pub(super) fn new(store: Sqlite, clock: Clock) -> Self {
        Self {
            codes: Mutex::new(HashMap::new()),
            store,
            clock,
        }
    }

    /// A code for the grant.
    pub(super) fn issue_code(
        &self,
        grant: Grant,
        redirect_uri: String,
        challenge: String,
        nonce: Option<String>,
    ) -> String {
        let (code, now) = (random(), self.clock.now());
        let expires_at = now.plus(CODE_LIFETIME);
        let pending = Pending {
            grant,
            redirect_uri,
            challenge,
            nonce,
            expires_at,
            used: false,
        };
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        codes.retain(|_, pending| pending.expires_at > now);
        if codes.len() >= MAX_CODES {
            let oldest = codes
                .iter()
                .min_by_key(|(_, pending)| pending.expires_at)
                .map(|(code, _)| code.clone());
            oldest.map(|code| codes.remove(&code));
        }
        codes.insert(code.clone(), pending);
        code
    }

    /// Uses a code up.
    pub(super) async fn take_code(&self, code: &str) -> Result<Presented<Pending>, sqlx::Error> {
        let found = {
            let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
            let pending = codes
                .get_mut(code)
                .filter(|pending| pending.expires_at > self.clock.now());
            pending.map(|pending| {
                let before = pending.clone();
                pending.used = true;
                before
            })
        };
        match found {
            None => Ok(Presented::Unknown),
            Some(pending) if pending.used => {
                self.revoke(&pending.grant.family).await?;
                Ok(Presented::Reused)
            }
            Some(pending) => Ok(Presented::Good(pending)),
        }
    }

    /// A refresh token for the grant, durable when this returns.
    pub(super) async fn issue_refresh_token(&self, grant: &Grant) -> Result<String, sqlx::Error> {
        let (token, now) = (random(), self.clock.now());
        sqlx::query("DELETE FROM social_refresh_token WHERE created_at < ?1")
            .bind(now.0 - i64::try_from(REFRESH_LIFETIME.as_millis()).unwrap_or(i64::MAX))
            .execute(&self.store.writer)
            .await?;
        sqlx::query(
            "INSERT INTO social_refresh_token (token_hash, family, person, scope, authenticated_at, created_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )
        .bind(hash(&token))
        .bind(&grant.family)
        .bind(serde_json::to_string(&grant.person).unwrap_or_default())
        .bind(&grant.scope)
        .bind(grant.authenticated_at.0)
        .bind(now.0)
        .execute(&self.store.writer)
        .await?;
        Ok(token)
    }

    /// Uses a refresh token up; the next one comes of the same grant.
    pub(super) async fn take_refresh_token(
        &self,
        token: &str,
    ) -> Result<Presented<Grant>, sqlx::Error> {
        let oldest =
            self.clock.now().0 - i64::try_from(REFRESH_LIFETIME.as_millis()).unwrap_or(i64::MAX);
        let mut transaction = self.store.begin().await?;
        let row = sqlx::query(
            "SELECT family, person, scope, authenticated_at, used FROM social_refresh_token
             WHERE token_hash = ?1 AND created_at >= ?2",
        )
        .bind(hash(token))
        .bind(oldest)
        .fetch_optional(&mut *transaction)
        .await?;
        let Some(row) = row else {
            return Ok(Presented::Unknown);
        };
        let family: String = row.try_get("family")?;
        if row.try_get::<i64, _>("used")? != 0 {
            transaction.rollback().await?;
            self.revoke(&family).await?;
            return Ok(Presented::Reused);
        }
        sqlx::query("UPDATE social_refresh_token SET used = 1 WHERE token_hash = ?1")
            .bind(hash(token))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        let Ok(person) = serde_json::from_str(&row.try_get::<String, _>("person")?) else {
            return Ok(Presented::Unknown);
        };
        let authenticated_at = Timestamp(row.try_get("authenticated_at")?);
        Ok(Presented::Good(Grant {
            family,
            person,
            scope: row.try_get("scope")?,
            authenticated_at,
        }))
    }

    async fn revoke(&self, family: &str) -> Result<(), sqlx::Error> {
        sqlx::query("DELETE FROM social_refresh_token WHERE family = ?1")
            .bind(family)
            .execute(&self.store.writer)
            .await
            .map(drop)
    }
}

fn hash(token: &str) -> Vec<u8> {
    Sha256::digest(token.as_bytes()).to_vec()
}

/// 32 random bytes, base64url.
pub(super) fn random() -> String {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the system's random source worked when the process began");
    URL_SAFE_NO_PAD.encode(bytes)
}
