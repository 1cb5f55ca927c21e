//! Issued grants: codes in memory for a minute, refresh tokens in SQLite.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use postern_core::Clock;
use postern_core::clock::Timestamp;
use postern_store::database::Sqlite;
use sha2::{Digest, Sha256};
use sqlx::Row;

use super::persons::SocialPerson;

/// Lifetime of a code. RFC 6749 section 4.1.2 permits ten minutes; clients need seconds.
const CODE_LIFETIME: Duration = Duration::from_secs(60);

/// Maximum number of pending codes; beyond it, the oldest is discarded.
const MAX_PENDING_CODES: usize = 1_000;

/// Lifetime of an unused refresh token.
const REFRESH_TOKEN_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);

/// The authorization that a person gave to the client.
#[derive(Clone, Debug)]
pub(super) struct PersonGrant {
    pub(super) person: SocialPerson,
    /// Granted scope, space-separated.
    pub(super) scope: String,
    /// Time at which the person was chosen.
    pub(super) authenticated_at: Timestamp,
}

/// An issued code: the grant, and the values that the token request must match.
#[derive(Clone, Debug)]
pub(super) struct PendingCode {
    pub(super) grant: PersonGrant,
    pub(super) redirect_uri: String,
    /// `code_challenge`, S256.
    pub(super) challenge: String,
    pub(super) nonce: Option<String>,
    pub(super) expires_at: Timestamp,
}

/// The store of codes and refresh tokens.
#[derive(Debug)]
pub(super) struct GrantStore {
    codes: Mutex<HashMap<String, PendingCode>>,
    store: Sqlite,
    clock: Clock,
}

// === impl GrantStore ===

impl GrantStore {
    pub(super) fn new(store: Sqlite, clock: Clock) -> Self {
        Self {
            codes: Mutex::new(HashMap::new()),
            store,
            clock,
        }
    }

    /// Issues a code for a grant.
    pub(super) fn issue_code(
        &self,
        grant: PersonGrant,
        redirect_uri: String,
        challenge: String,
        nonce: Option<String>,
    ) -> String {
        let (code, now) = (random_token(), self.clock.now());
        let expires_at = now.plus(CODE_LIFETIME);
        let pending = PendingCode {
            grant,
            redirect_uri,
            challenge,
            nonce,
            expires_at,
        };
        let mut codes = self.codes.lock();
        codes.retain(|_, pending| pending.expires_at > now);
        if codes.len() >= MAX_PENDING_CODES {
            let oldest = codes
                .iter()
                .min_by_key(|(_, pending)| pending.expires_at)
                .map(|(code, _)| code.clone());
            oldest.map(|code| codes.remove(&code));
        }
        codes.insert(code.clone(), pending);
        code
    }

    /// Redeems a code, which is valid once.
    pub(super) fn redeem_code(&self, code: &str) -> Option<PendingCode> {
        let pending = self.codes.lock().remove(code);
        pending.filter(|pending| pending.expires_at > self.clock.now())
    }

    /// Issues a refresh token for a grant. It is durable on return.
    pub(super) async fn issue_refresh_token(
        &self,
        grant: &PersonGrant,
    ) -> Result<String, sqlx::Error> {
        let (token, now) = (random_token(), self.clock.now());
        sqlx::query("DELETE FROM social_refresh_token WHERE created_at < ?1")
            .bind(now.0 - i64::try_from(REFRESH_TOKEN_LIFETIME.as_millis()).unwrap_or(i64::MAX))
            .execute(&self.store.writer)
            .await?;
        sqlx::query(
            "INSERT INTO social_refresh_token (token_hash, person, scope, authenticated_at, created_at)
             VALUES (?1, ?2, ?3, ?4, ?5)",
        )
        .bind(hash(&token))
        .bind(serde_json::to_string(&grant.person).unwrap_or_default())
        .bind(&grant.scope)
        .bind(grant.authenticated_at.0)
        .bind(now.0)
        .execute(&self.store.writer)
        .await?;
        Ok(token)
    }

    /// Redeems a refresh token, which is valid once, and returns its grant, for which the caller
    /// issues the next token.
    pub(super) async fn redeem_refresh_token(
        &self,
        token: &str,
    ) -> Result<Option<PersonGrant>, sqlx::Error> {
        let oldest = self.clock.now().0
            - i64::try_from(REFRESH_TOKEN_LIFETIME.as_millis()).unwrap_or(i64::MAX);
        let row = sqlx::query(
            "DELETE FROM social_refresh_token WHERE token_hash = ?1 AND created_at >= ?2
             RETURNING person, scope, authenticated_at",
        )
        .bind(hash(token))
        .bind(oldest)
        .fetch_optional(&self.store.writer)
        .await?;
        let Some(row) = row else {
            return Ok(None);
        };
        let Ok(person) = serde_json::from_str(&row.try_get::<String, _>("person")?) else {
            return Ok(None);
        };
        Ok(Some(PersonGrant {
            person,
            scope: row.try_get("scope")?,
            authenticated_at: Timestamp(row.try_get("authenticated_at")?),
        }))
    }
}

fn hash(token: &str) -> Vec<u8> {
    Sha256::digest(token.as_bytes()).to_vec()
}

/// Returns 32 random bytes in base64url.
pub(super) fn random_token() -> String {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the operating system's random generator is available");
    URL_SAFE_NO_PAD.encode(bytes)
}
