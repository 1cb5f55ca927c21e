//! One-time codes that verify an address. Codes of unknown names are stored but never sent, so that
//! the request takes the same time.

use postern_common::clock::Timestamp;

use super::PoolStore;

/// The key of a code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodeKey<'a> {
    pub(crate) pool_id: &'a str,
    pub(crate) name: &'a str,
    pub(crate) purpose: &'static str,
}

/// The times of a new code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodeTimes {
    pub(crate) now: Timestamp,
    pub(crate) expires_at: Timestamp,
    /// Start of the window in which codes and wrong attempts are counted.
    pub(crate) window_since: Timestamp,
}

/// The result of a code verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeCheck {
    Match,
    Mismatch,
    /// No code was sent, or it has expired or was used.
    Expired,
    /// Too many wrong attempts; a new code is needed.
    Exhausted,
}

/// Wrong attempts after which a code is invalid.
const MAX_WRONG_ATTEMPTS: i64 = 5;
/// Wrong attempts per hour over all codes of a name, so that requesting a new code permits no
/// further guesses. One name in 50,000 can be guessed per hour.
const MAX_WRONG_ATTEMPTS_IN_WINDOW: i64 = 20;

impl PoolStore {
    /// Stores a code, replacing an earlier one. Returns the number of codes created in the current
    /// window.
    pub(crate) async fn put_code(
        &self,
        key: CodeKey<'_>,
        hash: &str,
        times: CodeTimes,
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
        let query = sqlx::query_scalar(SQL)
            .bind(key.pool_id)
            .bind(key.name)
            .bind(key.purpose)
            .bind(hash);
        query
            .bind(times.expires_at.0)
            .bind(times.now.0)
            .bind(times.window_since.0)
            .fetch_one(&self.sqlite.writer)
            .await
    }

    /// Returns the number of codes created for the name in the current window.
    pub(crate) async fn codes_sent(
        &self,
        key: CodeKey<'_>,
        window_since: Timestamp,
    ) -> Result<i64, sqlx::Error> {
        const SQL: &str = "SELECT sent FROM pool_code
            WHERE pool_id = $1 AND name = $2 AND purpose = $3 AND window_start >= $4";
        let sent: Option<i64> = sqlx::query_scalar(SQL)
            .bind(key.pool_id)
            .bind(key.name)
            .bind(key.purpose)
            .bind(window_since.0)
            .fetch_optional(&self.sqlite.readers)
            .await?;
        Ok(sent.unwrap_or(0))
    }

    /// Compares a code and counts a mismatch. A correct code remains valid until
    /// [`PoolStore::consume_code`].
    pub(crate) async fn check_code(
        &self,
        key: CodeKey<'_>,
        hash: &str,
        now: Timestamp,
    ) -> Result<CodeCheck, sqlx::Error> {
        const COUNT: &str =
            "UPDATE pool_code SET wrong = wrong + (CASE WHEN hash = $4 THEN 0 ELSE 1 END),
                wrong_in_window = wrong_in_window + (CASE WHEN hash = $4 THEN 0 ELSE 1 END)
            WHERE pool_id = $1 AND name = $2 AND purpose = $3 AND expires_at > $5
            RETURNING hash, wrong, wrong_in_window";
        let found: Option<(String, i64, i64)> = sqlx::query_as(COUNT)
            .bind(key.pool_id)
            .bind(key.name)
            .bind(key.purpose)
            .bind(hash)
            .bind(now.0)
            .fetch_optional(&self.sqlite.writer)
            .await?;
        Ok(match found {
            None => CodeCheck::Expired,
            Some((_, wrong, in_window))
                if wrong > MAX_WRONG_ATTEMPTS || in_window > MAX_WRONG_ATTEMPTS_IN_WINDOW =>
            {
                CodeCheck::Exhausted
            }
            Some((kept, ..)) if kept == hash => CodeCheck::Match,
            Some(_) => CodeCheck::Mismatch,
        })
    }

    /// Consumes a correct code. Returns `false` if a concurrent request consumed it.
    pub(crate) async fn consume_code(
        &self,
        key: CodeKey<'_>,
        hash: &str,
    ) -> Result<bool, sqlx::Error> {
        const SQL: &str = "UPDATE pool_code SET hash = '', expires_at = 0
            WHERE pool_id = $1 AND name = $2 AND purpose = $3 AND hash = $4";
        let query = sqlx::query(SQL)
            .bind(key.pool_id)
            .bind(key.name)
            .bind(key.purpose)
            .bind(hash);
        query
            .execute(&self.sqlite.writer)
            .await
            .map(|done| done.rows_affected() == 1)
    }
}
