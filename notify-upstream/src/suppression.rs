//! Addresses that are proven not to exist, to which nothing is sent, and those that were unsubscribed, to which nothing
//! is sent that can be unsubscribed from.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError, RwLock};

use postern_common::Clock;
use postern_common::clock::Timestamp;

use crate::address::{Address, AddressHash};
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

/// Kinds of entry: the channel's index for an address that is dead, and this much more for one that was unsubscribed.
const UNSUBSCRIBED: i16 = 8;
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
        self.knows(code(channel), address)
    }

    fn knows(&self, kind: i16, address: &Address) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        !known.is_empty() && known.contains(&(kind, address.hash()))
    }

    /// Notes an address; it is written with the next step.
    pub fn note(&self, channel: Channel, address: &Address, reason: &str) {
        self.note_hash(channel, address.hash(), reason);
    }

    /// The same for an address that is known by its hash alone.
    pub fn note_hash(&self, channel: Channel, hash: AddressHash, reason: &str) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert((code(channel), hash));
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() < 10_000 {
            noted.push((code(channel), hash.to_vec(), reason.to_owned()));
        }
    }

    /// Whether whoever holds the address wants no more of what can be unsubscribed from.
    #[must_use]
    pub fn is_unsubscribed(&self, channel: Channel, address: &Address) -> bool {
        self.knows(code(channel) + UNSUBSCRIBED, address)
    }

    /// Mail of templates that offer it is not wanted at these addresses any more. Returns when that is durable.
    ///
    /// # Errors
    /// The store's.
    pub async fn unsubscribe(&self, addresses: &[AddressHash]) -> Result<(), StoreError> {
        let kind = code(Channel::Email) + UNSUBSCRIBED;
        let rows: Vec<_> =
            addresses.iter().map(|hash| (kind, hash.to_vec(), "unsubscribed".to_owned())).collect();
        self.store.suppress(&rows, self.clock.now()).await?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.extend(addresses.iter().map(|hash| (kind, *hash)));
        Ok(())
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
