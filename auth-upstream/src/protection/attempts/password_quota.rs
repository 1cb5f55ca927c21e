//! A limit on how often the right password of one account, or a social identity, is accepted.
//!
//! Each sign-in costs the pool a password hash and a refresh token, so the
//! right password is limited as well. Only a client that sends it learns of the limit: a wrong one
//! gets the response for a wrong password. A password that has reached the limit is remembered in
//! this process as a keyed digest, so that the pool is not called for it until the window ends.
//!
//! As with failures, each trusted network of an account has a counter of its own. A client that
//! knows the password and not the second factor uses up the counter of the other networks, and the
//! owner can still sign in.

use std::time::Duration;

use postern_core::Secret;
use postern_core::clock::Timestamp;
use sha2::{Digest, Sha256};

use super::{Attempt, AttemptLimiter, KEY_PREFIX};
use crate::crypto::hex;

/// The window in which sign-ins are counted. Windows begin at multiples of their length.
const SIGN_IN_QUOTA_WINDOW: Duration = Duration::from_secs(10 * 60);

/// An account and a password that was sent for it, as digests, in a window.
#[derive(Debug)]
pub(crate) struct CredentialDigest {
    /// The key of the counter: of the account, or of the account in a trusted network.
    counter_key: String,
    /// The key under which the password is remembered once the limit is reached.
    exhausted_key: String,
    window_end: Timestamp,
}

// === impl AttemptLimiter ===

impl AttemptLimiter {
    /// Returns the digests of the account of an admitted attempt and of the password that was sent.
    pub(crate) fn credential_digest(
        &self,
        attempt: &Attempt,
        password: &Secret,
    ) -> CredentialDigest {
        let account = attempt.account.as_ref();
        self.digest_of(
            account.map_or(KEY_PREFIX, |account| &account.key),
            password.expose(),
        )
    }

    pub(crate) fn social_digest(&self, issuer: &str, subject: &str) -> CredentialDigest {
        let identity = hex(Sha256::digest(format!("{issuer}\0{subject}")));
        self.digest_of(&format!("{KEY_PREFIX}:social:{identity}"), "")
    }

    fn digest_of(&self, account_key: &str, secret: &str) -> CredentialDigest {
        let window_ms = i64::try_from(SIGN_IN_QUOTA_WINDOW.as_millis()).unwrap_or(i64::MAX);
        let window = self.clock.now().0.div_euclid(window_ms);
        let digest = Sha256::new()
            .chain_update(self.digest_key.expose())
            .chain_update(Sha256::digest(account_key))
            .chain_update(secret)
            .finalize();
        CredentialDigest {
            counter_key: format!("{account_key}:sign-ins:{window}"),
            exhausted_key: format!("{KEY_PREFIX}:sign-ins-reached:{window}:{}", hex(digest)),
            window_end: Timestamp((window + 1) * window_ms),
        }
    }

    /// Returns the time until the password is accepted again, if it is known to have reached the
    /// limit.
    pub(crate) async fn quota_wait(&self, credential: &CredentialDigest) -> Option<Duration> {
        let local = &self.counters.local;
        let reached = local.get(&credential.exhausted_key).await.ok()?;
        reached.map(|_| credential.window_end.since(self.clock.now()))
    }

    /// Counts an accepted password. Returns the time to wait if it exceeds the limit.
    pub(crate) async fn count_sign_in(&self, credential: &CredentialDigest) -> Option<Duration> {
        let key = &credential.counter_key;
        let count = self.counters.increment(key, SIGN_IN_QUOTA_WINDOW).await;
        if count < self.limits.sign_ins {
            return None;
        }
        let (local, key) = (&self.counters.local, &credential.exhausted_key);
        let _ = local.set(key, b"1", SIGN_IN_QUOTA_WINDOW).await;
        let wait = credential.window_end.since(self.clock.now());
        (count > self.limits.sign_ins).then_some(wait)
    }
}
