//! One-time codes that prove an address. A code for a name that no user has is kept as well and
//! never sent, so that asking for one costs the same work.

use postern_common::clock::Timestamp;

use super::{Store, transaction, writing};

/// Where a code belongs: the pool, the user's name, and what it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodeKey<'a> {
    pub(crate) pool_id: &'a str,
    pub(crate) name: &'a str,
    pub(crate) purpose: &'static str,
}

/// What came of a code that someone typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    Right,
    Wrong,
    /// None was sent, it has expired, or it was used.
    Gone,
    /// Wrong too often; a new one must be asked for.
    Exhausted,
}

/// Wrong tries after which a code is dead.
const TRIES: i64 = 5;
/// Wrong tries in an hour, over all the codes of a name: a new code is no new chance. One name in
/// 50,000 is guessed in an hour.
const TRIES_IN_WINDOW: i64 = 20;

impl Store {
    /// Keeps a code in place of any earlier one. Returns how many were made in the present window.
    pub(crate) async fn put_code(
        &self,
        key: CodeKey<'_>,
        hash: &str,
        now: Timestamp,
        (expires, window_since): (Timestamp, Timestamp),
    ) -> Result<i64, sqlx::Error> {
        const SQL: &str = "INSERT INTO pool_code
                (pool_id, name, purpose, hash, expires_at, wrong, sent, window_start)
            VALUES ($1, $2, $3, $4, $5, 0, 1, $6)
            ON CONFLICT (pool_id, name, purpose) DO UPDATE SET
                hash = excluded.hash, expires_at = excluded.expires_at, wrong = 0,
                sent = CASE WHEN pool_code.window_start < $7 THEN 1 ELSE pool_code.sent + 1 END,
                wrong_in_window =
                    CASE WHEN pool_code.window_start < $7 THEN 0 ELSE pool_code.wrong_in_window END,
                window_start = CASE WHEN pool_code.window_start < $7 THEN $6 ELSE pool_code.window_start END
            RETURNING sent";
        writing!(self, db => {
            let query = sqlx::query_scalar(SQL).bind(key.pool_id).bind(key.name).bind(key.purpose).bind(hash);
            query.bind(expires.0).bind(now.0).bind(window_since.0).fetch_one(db).await
        })
    }

    /// Codes made for the name in the present window.
    pub(crate) async fn codes_sent(
        &self,
        key: CodeKey<'_>,
        window_since: Timestamp,
    ) -> Result<i64, sqlx::Error> {
        const SQL: &str = "SELECT sent FROM pool_code
            WHERE pool_id = $1 AND name = $2 AND purpose = $3 AND window_start >= $4";
        let sent: Option<i64> = super::reading!(self, db => {
            let query = sqlx::query_scalar(SQL).bind(key.pool_id).bind(key.name).bind(key.purpose);
            query.bind(window_since.0).fetch_optional(db).await
        })?;
        Ok(sent.unwrap_or(0))
    }

    /// Compares and counts. A right code stays until [`Store::use_code`].
    pub(crate) async fn check_code(
        &self,
        key: CodeKey<'_>,
        hash: &str,
        now: Timestamp,
    ) -> Result<Checked, sqlx::Error> {
        const COUNT: &str =
            "UPDATE pool_code SET wrong = wrong + (CASE WHEN hash = $4 THEN 0 ELSE 1 END),
                wrong_in_window = wrong_in_window + (CASE WHEN hash = $4 THEN 0 ELSE 1 END)
            WHERE pool_id = $1 AND name = $2 AND purpose = $3 AND expires_at > $5
            RETURNING hash, wrong, wrong_in_window";
        let found: Option<(String, i64, i64)> = transaction!(self, tx => {
            let query = sqlx::query_as(COUNT).bind(key.pool_id).bind(key.name).bind(key.purpose);
            query.bind(hash).bind(now.0).fetch_optional(&mut *tx).await?
        });
        Ok(match found {
            None => Checked::Gone,
            Some((_, wrong, in_window)) if wrong > TRIES || in_window > TRIES_IN_WINDOW => {
                Checked::Exhausted
            }
            Some((kept, ..)) if kept == hash => Checked::Right,
            Some(_) => Checked::Wrong,
        })
    }

    /// Takes a right code out; `false` when another request was faster.
    pub(crate) async fn use_code(&self, key: CodeKey<'_>, hash: &str) -> Result<bool, sqlx::Error> {
        const SQL: &str = "UPDATE pool_code SET hash = '', expires_at = 0
            WHERE pool_id = $1 AND name = $2 AND purpose = $3 AND hash = $4";
        writing!(self, db => {
            let query = sqlx::query(SQL).bind(key.pool_id).bind(key.name).bind(key.purpose).bind(hash);
            query.execute(db).await.map(|done| done.rows_affected() == 1)
        })
    }
}
