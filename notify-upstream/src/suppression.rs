//! Addresses that are proven not to exist: nothing is sent to them.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError, RwLock};

use postern_common::Clock;
use postern_common::clock::Timestamp;
use sha2::{Digest, Sha256};

use crate::address::Address;
use crate::notification::Channel;
use crate::store::{Store, StoreError};

/// The list, as of the last look into the store. Only hashes are kept.
#[derive(Debug)]
pub struct Suppression {
    store: Store,
    clock: Clock,
    known: RwLock<HashSet<(i16, [u8; 32])>>,
    seen_to: Mutex<Timestamp>,
    noted: Mutex<Vec<(i16, Vec<u8>, String)>>,
}

/// Most addresses in memory, 64 MB; beyond that the oldest stay and new ones are found by their bounces alone.
const MAX: usize = 1_000_000;

// === impl Suppression ===

impl Suppression {
    /// An empty list until the first [`Suppression::step`].
    #[must_use]
    pub fn new(store: Store, clock: Clock) -> Self {
        Self {
            store,
            clock,
            known: RwLock::default(),
            seen_to: Mutex::new(Timestamp(0)),
            noted: Mutex::default(),
        }
    }

    /// Whether nothing is to be sent there.
    #[must_use]
    pub fn holds(&self, channel: Channel, address: &Address) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        !known.is_empty() && known.contains(&(code(channel), hash(address.key())))
    }

    /// Notes an address; it is written with the next step.
    pub fn note(&self, channel: Channel, address: &Address, reason: &str) {
        self.note_text(channel, address.key(), reason);
    }

    /// The same for an address that a provider reported.
    pub fn note_text(&self, channel: Channel, address: &str, reason: &str) {
        let hash = hash(address);
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert((code(channel), hash));
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() < 10_000 {
            noted.push((code(channel), hash.to_vec(), reason.to_owned()));
        }
    }

    /// Writes what was noted and reads what others noted.
    ///
    /// # Errors
    /// The store's.
    pub async fn step(&self) -> Result<(), StoreError> {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !noted.is_empty() {
            self.store.suppress(&noted, self.clock.now()).await?;
            self.noted.lock().unwrap_or_else(PoisonError::into_inner).drain(..noted.len());
        }
        let since = *self.seen_to.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = self.store.suppressed_since(since).await?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        for (channel, address, at) in rows {
            if let (Ok(hash), true) = (<[u8; 32]>::try_from(address), known.len() < MAX) {
                known.insert((channel, hash));
            }
            // A minute back, for rows that were committed late.
            let mut seen_to = self.seen_to.lock().unwrap_or_else(PoisonError::into_inner);
            *seen_to = Timestamp(seen_to.0.max(at - 60_000));
        }
        Ok(())
    }
}

fn code(channel: Channel) -> i16 {
    i16::try_from(channel.index()).unwrap_or(0)
}

fn hash(address: &str) -> [u8; 32] {
    Sha256::digest(address.to_ascii_lowercase()).into()
}
