//! Security stamps: they end the sign-ins that were begun before an account got a new password.
//!
//! A reset, a new password and a sign-out by an operator give the account a new stamp in the cache.
//! A challenge has those of the time before the pool was asked, and is refused when one has changed. A
//! fail-over may lose a stamp: like codes, stamps are bound to the epoch of the cache.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use futures_util::future::join_all;
use postern_core::email::EmailAddress;
use postern_core::{Code, Problem};
use serde::{Deserialize, Serialize};

use super::challenge_session::CHALLENGE_TTL;
use super::{Flows, cache_unavailable};
use crate::crypto::{random, sha256_hex};

/// The time for which a stamp is kept: longer than a challenge is valid, also by clocks that differ.
const STAMP_TTL: Duration = Duration::from_secs(2 * CHALLENGE_TTL.as_secs());

/// The epoch of the cache and the stamp of an account, which is empty if there was none lately, by their
/// key. An account has one for its address and one for its name in the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StampSnapshot(BTreeMap<String, (String, String)>);

// === impl Flows ===

impl Flows {
    pub(super) async fn add_stamps(
        &self,
        snapshot: &mut StampSnapshot,
        names: &[&str],
    ) -> Result<(), Problem> {
        for key in names.iter().map(|name| stamp_key(name)) {
            if let Entry::Vacant(entry) = snapshot.0.entry(key) {
                let stamp = self.stamp(entry.key()).await?;
                entry.insert(stamp);
            }
        }
        Ok(())
    }

    pub(super) async fn renew_stamps(&self, names: &[&str]) -> Result<StampSnapshot, Problem> {
        let renewals = names.iter().map(|name| async move {
            let (key, stamp) = (stamp_key(name), random::token());
            let epoch = self.cache.epoch(&key).await;
            let set = self.cache.set(&key, stamp.as_bytes(), STAMP_TTL).await;
            let epoch = set.and(epoch).map_err(cache_unavailable)?;
            Ok((key, (epoch, stamp)))
        });
        let renewed: Result<_, _> = join_all(renewals).await.into_iter().collect();
        renewed.map(StampSnapshot)
    }

    /// Fails with `invalid_challenge` if a stamp is no longer that of the snapshot.
    pub(super) async fn verify_stamps(&self, snapshot: &StampSnapshot) -> Result<(), Problem> {
        for (key, (epoch, stamp)) in &snapshot.0 {
            let (present_epoch, present) = self.stamp(key).await?;
            // A stamp that has expired is older than every valid challenge.
            let is_new = !present.is_empty() && present != *stamp;
            if is_new || present_epoch != *epoch {
                return Err(Code::InvalidChallenge.into());
            }
        }
        Ok(())
    }

    async fn stamp(&self, key: &str) -> Result<(String, String), Problem> {
        // The epoch first, so that a fail-over between the calls is noticed.
        let epoch = self.cache.epoch(key).await.map_err(cache_unavailable)?;
        let stamp = self.cache.get(key).await.map_err(cache_unavailable)?;
        let stamp = String::from_utf8(stamp.unwrap_or_default());
        Ok((epoch, stamp.unwrap_or_default()))
    }
}

pub(super) fn stamped_names<'a>(
    username: Option<&'a str>,
    email: Option<&'a EmailAddress>,
) -> Vec<&'a str> {
    let address = email.map(EmailAddress::as_str);
    address.into_iter().chain(username).collect()
}

fn stamp_key(name: &str) -> String {
    let name = sha256_hex(name.to_ascii_lowercase());
    format!("postern:auth:security-stamp:{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ADA, Fixture};

    /// A step that follows a new password is ended by what comes between.
    #[tokio::test]
    async fn renewed_stamps_end_with_the_next_ones() {
        let fixture = Fixture::new().await;
        let parts = fixture.flows();
        let own = parts.renew_stamps(&[ADA]).await;
        let mut own = own.expect("renewed");
        let kept = parts.verify_stamps(&own).await;
        kept.expect("its own");
        parts.renew_stamps(&[ADA]).await.expect("renewed");
        let added = parts.add_stamps(&mut own, &[ADA, "name"]).await;
        added.expect("added");
        let ended = parts.verify_stamps(&own).await;
        assert_eq!(ended.expect_err("ended").code(), Code::InvalidChallenge);
    }
}
