//! A limit on how often the right password of one account is accepted.
//!
//! Each accepted password costs the pool a hash and the store a family of refresh tokens, so the
//! right password is limited as well. Only a client that sends it learns of the limit: a wrong one
//! gets the answer for a wrong password. A password that has reached the limit is remembered in
//! this process as a keyed digest, so that the pool is not called for it until the window ends.
//!
//! As with failures, each trusted network has a count of its own. A stranger who knows the password
//! and has no second factor uses up the count of the other networks, and the owner still signs in.

use std::time::Duration;

use postern_common::Secret;
use postern_common::clock::Timestamp;
use sha2::{Digest, Sha256};

use super::{Abuse, Attempt, PREFIX};
use crate::seal::hex;

/// The window in which accepted passwords are counted.
const SIGN_IN_WINDOW: Duration = Duration::from_secs(10 * 60);

/// An account and a password that was sent for it, as digests.
#[derive(Debug)]
pub(crate) struct Credential {
    /// The key of the count: of the account, or of the account in a trusted network.
    count: String,
    /// The key under which the password is remembered once the limit is reached.
    mark: String,
}

// === impl Abuse ===

impl Abuse {
    /// The credential that an admitted attempt at an account shows.
    pub(crate) fn credential(&self, attempt: &Attempt, password: &Secret) -> Credential {
        let account = attempt.account.as_deref().unwrap_or(PREFIX);
        let digest = Sha256::new()
            .chain_update(self.digest_key.expose())
            .chain_update(Sha256::digest(account))
            .chain_update(password.expose())
            .finalize();
        Credential {
            count: format!("{account}:sign-ins"),
            mark: format!("{PREFIX}:sign-ins-reached:{}", hex(&digest)),
        }
    }

    /// Returns how long this password is not accepted any more, if it is known to have reached the
    /// limit.
    pub(crate) async fn sign_in_wait(&self, credential: &Credential) -> Option<Duration> {
        let until = self.local.get(&credential.mark).await.ok().flatten()?;
        Some(instant(&until)?.since(self.clock.now()))
    }

    /// Counts an accepted password. Returns how long to wait if it was one too many.
    pub(crate) async fn count_sign_in(&self, credential: &Credential) -> Option<Duration> {
        let began = format!("{}:began", credential.count);
        let (count, now) = (
            self.count(&credential.count, SIGN_IN_WINDOW).await,
            self.clock.now(),
        );
        if count == 1 {
            self.set(&began, now.0.to_string().as_bytes(), SIGN_IN_WINDOW)
                .await;
        }
        if count < self.limits.sign_ins {
            return None;
        }
        let began = self
            .get(&began)
            .await
            .and_then(|text| instant(&text))
            .unwrap_or(now);
        let until = began
            .plus(SIGN_IN_WINDOW)
            .max(now.plus(Duration::from_secs(1)));
        let wait = until.since(now);
        let _ = self
            .local
            .set(&credential.mark, until.0.to_string().as_bytes(), wait)
            .await;
        (count > self.limits.sign_ins).then_some(wait)
    }

    async fn set(&self, key: &str, value: &[u8], ttl: Duration) {
        if self.shared.set(key, value, ttl).await.is_err() {
            let _ = self.local.set(key, value, ttl).await;
        }
    }
}

fn instant(text: &[u8]) -> Option<Timestamp> {
    std::str::from_utf8(text).ok()?.parse().ok().map(Timestamp)
}
