//! Addresses that are proven not to exist, to which nothing is sent, and those that were
//! unsubscribed, to which nothing is sent that can be unsubscribed from.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use postern_common::Clock;
use postern_common::clock::Timestamp;

use crate::address::{self, Address, AddressHash};
use crate::delivery::report::ProviderReport;
use crate::notification::{Channel, NotificationId};
use crate::store::{Store, StoreError, SuppressionChange, SuppressionRow};

/// The lists, as of the last look into the store. Only hashes are kept.
#[derive(Debug)]
pub(crate) struct SuppressionCache {
    store: Store,
    clock: Clock,
    known: RwLock<HashSet<(i16, [u8; 32])>>,
    /// Most entries that are known here.
    max_cached: usize,
    /// There was no max_cached for all: the store is asked about what is not known here.
    overflows: AtomicBool,
    read_position: Mutex<ReadPosition>,
    pending: Mutex<Vec<SuppressionRow>>,
}

/// Up to where the store was read.
#[derive(Clone, Copy, Debug)]
struct ReadPosition {
    suppressed: Timestamp,
    lifted: Timestamp,
}

/// Why an address gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuppressionList {
    /// It is proven not to exist.
    Suppressed,
    /// Whoever holds it wants nothing more that can be unsubscribed from.
    Unsubscribed,
}

/// Kinds of entry: the channel's index for an address that is dead, and this much more for one that
/// was unsubscribed.
const UNSUBSCRIBED_OFFSET: i16 = 8;
/// Most addresses in memory, 64 MB; beyond that the store is asked about each that is not among
/// them.
const MAX_CACHED_ADDRESSES: usize = 1_000_000;
/// Most rows of one answer, unless more have one and the same instant.
const PAGE_ROWS: i64 = 100_000;
/// Most addresses that an operator takes off at once, in one instant: whatever their number, a page
/// goes beyond them.
pub(crate) const MAX_LIFT_ROWS: i64 = 50_000;

// === impl SuppressionCache ===

impl SuppressionCache {
    /// An empty list until the first [`SuppressionCache::step`]: nothing is to be sent before.
    #[must_use]
    pub(crate) fn new(store: Store, clock: Clock) -> Self {
        Self::with_max_cached(store, clock, MAX_CACHED_ADDRESSES)
    }

    fn with_max_cached(store: Store, clock: Clock, max_cached: usize) -> Self {
        Self {
            max_cached,
            overflows: AtomicBool::new(false),
            store,
            clock,
            known: RwLock::default(),
            read_position: Mutex::new(ReadPosition {
                suppressed: Timestamp(0),
                lifted: Timestamp(0),
            }),
            pending: Mutex::default(),
        }
    }

    /// Whether nothing is to be sent there.
    ///
    /// # Errors
    /// There are too many for memory, and the store does not answer.
    pub(crate) async fn is_suppressed(
        &self,
        channel: Channel,
        address: &Address,
    ) -> Result<bool, StoreError> {
        self.is_listed(SuppressionList::Suppressed.kind(channel), address)
            .await
    }

    async fn is_listed(&self, kind: i16, address: &Address) -> Result<bool, StoreError> {
        if self.is_cached(kind, address) {
            return Ok(true);
        }
        Ok(self.overflows.load(Ordering::Relaxed)
            && Box::pin(self.store.is_suppressed(kind, &address.hash())).await?)
    }

    fn is_cached(&self, kind: i16, address: &Address) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        !known.is_empty() && known.contains(&(kind, address.hash()))
    }

    /// Notes an address; it is written with the next step.
    pub(crate) fn add(&self, channel: Channel, address: &Address, reason: &str) {
        self.add_hash(channel, address.hash(), reason);
    }

    /// The same for an address that is known by its hash alone.
    pub(crate) fn add_hash(&self, channel: Channel, hash: AddressHash, reason: &str) {
        let kind = SuppressionList::Suppressed.kind(channel);
        self.known
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((kind, hash));
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.len() < 10_000 {
            pending.push(SuppressionRow {
                kind,
                address: hash.to_vec(),
                reason: reason.to_owned(),
            });
        }
    }

    /// Whether whoever holds the address wants no more of what can be unsubscribed from.
    ///
    /// # Errors
    /// There are too many for memory, and the store does not answer.
    pub(crate) async fn is_unsubscribed(
        &self,
        channel: Channel,
        address: &Address,
    ) -> Result<bool, StoreError> {
        self.is_listed(SuppressionList::Unsubscribed.kind(channel), address)
            .await
    }

    /// Mail of templates that offer it is not wanted at these addresses any more. Returns when that
    /// is durable.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn unsubscribe(&self, addresses: &[AddressHash]) -> Result<(), StoreError> {
        let kind = SuppressionList::Unsubscribed.kind(Channel::Email);
        let rows: Vec<_> = addresses
            .iter()
            .map(|hash| SuppressionRow {
                kind,
                address: hash.to_vec(),
                reason: "unsubscribed".to_owned(),
            })
            .collect();
        self.store.suppress(&rows, self.clock.now()).await?;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.extend(addresses.iter().map(|hash| (kind, *hash)));
        Ok(())
    }

    /// Notes what providers report as dead. An address is dead on a provider's word only where we
    /// know that the notification went to that very address: whoever can have a provider report
    /// something must not be able to silence a stranger.
    ///
    /// # Errors
    /// The store's, and nothing was pending: the next bounce of the address does it.
    pub(crate) async fn apply_reports(&self, reports: &[ProviderReport]) -> Result<(), StoreError> {
        let dead: Vec<(&ProviderReport, NotificationId, AddressHash)> = reports
            .iter()
            .filter_map(|report| {
                Some((
                    report,
                    report.id?,
                    address::hash(report.dead_address.as_ref()?),
                ))
            })
            .collect();
        let ids: Vec<NotificationId> = dead.iter().map(|(_, id, _)| *id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let known = self.store.read(&ids).await?;
        for (report, id, hash) in dead {
            if let Some(snapshot) = known.iter().find(|snapshot| snapshot.id == id)
                && snapshot.addresses().any(|known| known == hash)
            {
                let reason = report.code.as_deref().unwrap_or("bounced");
                self.add_hash(snapshot.record.lane.channel, hash, reason);
            }
        }
        Ok(())
    }

    /// Writes what was pending.
    ///
    /// # Errors
    /// The store's; it is written with the next call.
    pub(crate) async fn flush(&self) -> Result<(), StoreError> {
        let pending = self
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if !pending.is_empty() {
            self.store.suppress(&pending, self.clock.now()).await?;
            self.pending
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .drain(..pending.len());
        }
        Ok(())
    }

    /// Writes what was pending and reads all that others pending.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn sync(&self) -> Result<(), StoreError> {
        self.flush().await?;
        // In this order: what is put back on the list between the two stays on it.
        let mut page = PAGE_ROWS;
        while self.read_lifted(page).await? {
            page = page.saturating_mul(2);
        }
        page = PAGE_ROWS;
        while self.read_added(page).await? {
            page = page.saturating_mul(2);
        }
        Ok(())
    }

    /// Reads what others have taken off. Whether there may be more.
    async fn read_lifted(&self, page: i64) -> Result<bool, StoreError> {
        let since = self
            .read_position
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .lifted;
        let rows = self.store.lifted_since(since, page).await?;
        let read_to = since.max(read_to(&rows, page));
        self.read_position
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .lifted = read_to;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let is_full = is_full(&rows, page);
        for row in rows {
            if let Ok(hash) = <[u8; 32]>::try_from(row.address) {
                known.remove(&(row.kind, hash));
            }
        }
        Ok(is_full)
    }

    /// Reads what others have pending. Whether there may be more.
    async fn read_added(&self, page: i64) -> Result<bool, StoreError> {
        let since = self
            .read_position
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .suppressed;
        let rows = self.store.suppressed_since(since, page).await?;
        let read_to = since.max(read_to(&rows, page));
        self.read_position
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .suppressed = read_to;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let is_full = is_full(&rows, page);
        for row in rows {
            let Ok(hash) = <[u8; 32]>::try_from(row.address) else {
                continue;
            };
            let kind = row.kind;
            if known.len() < self.max_cached {
                known.insert((kind, hash));
            } else if !known.contains(&(kind, hash)) {
                self.overflows.store(true, Ordering::Relaxed);
            }
        }
        Ok(is_full)
    }
}

/// From where the next look reads on. When all was read, a minute back: for rows that were
/// committed late, or by a clock that is behind.
pub(crate) fn read_to(rows: &[SuppressionChange], page: i64) -> Timestamp {
    let last = rows.last().map_or(0, |row| row.at.0);
    Timestamp(if is_full(rows, page) {
        last
    } else {
        last - 60_000
    })
}

fn is_full(rows: &[SuppressionChange], page: i64) -> bool {
    i64::try_from(rows.len()).unwrap_or(page) >= page
}

// === impl SuppressionList ===

impl SuppressionList {
    /// Name and value, for the command line.
    pub(crate) const NAMES: &[(&str, Self)] = &[
        ("suppressed", Self::Suppressed),
        ("unsubscribed", Self::Unsubscribed),
    ];

    /// Its name.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Suppressed => "suppressed",
            Self::Unsubscribed => "unsubscribed",
        }
    }

    /// The number of this list for a channel in the store.
    #[must_use]
    pub(crate) fn kind(self, channel: Channel) -> i16 {
        match self {
            Self::Suppressed => channel.code(),
            Self::Unsubscribed => channel.code() + UNSUBSCRIBED_OFFSET,
        }
    }

    /// The list and the channel of a number in the store.
    #[must_use]
    pub(crate) fn of_kind(kind: i16) -> Option<(Self, Channel)> {
        let lists = Self::NAMES.iter().map(|(_, list)| *list);
        let mut all = lists.flat_map(|list| Channel::ALL.map(|channel| (list, channel)));
        all.find(|(list, channel)| list.kind(*channel) == kind)
    }
}

#[cfg(test)]
mod tests {
    use postern_common::database::Database;

    use super::*;
    use crate::address::EmailAddress;
    use crate::testing::{START, execute, stores};

    #[tokio::test]
    async fn one_look_sees_the_whole_list_however_many_were_noted_in_one_instant() {
        let ada = Address::Email(EmailAddress::parse("ada@example.com").expect("address"));
        for (store, test) in stores().await {
            let many = match &test.database {
                Database::Postgres(_) => {
                    "SELECT 0, sha256(n::text::bytea), 'r', 5 FROM generate_series(1, 100001) n"
                }
                Database::Sqlite(_) => {
                    "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 100001)
                    SELECT 0, randomblob(32), 'r', 5 FROM s"
                }
            };
            let sql =
                format!("INSERT INTO notify_suppression (channel, address, reason, at) {many}");
            execute(&test.database, &sql).await;
            let last = [SuppressionRow {
                kind: Channel::Push.code(),
                address: ada.hash().to_vec(),
                reason: "r".to_owned(),
            }];
            store.suppress(&last, Timestamp(5)).await.expect("notes");
            // The second has max_cached for a part of the list, and asks about the rest.
            for max_cached in [MAX_CACHED_ADDRESSES, 10] {
                let list = SuppressionCache::with_max_cached(
                    store.clone(),
                    Clock::manual(START),
                    max_cached,
                );
                list.sync().await.expect("looks");
                assert!(
                    list.is_suppressed(Channel::Push, &ada)
                        .await
                        .expect("known"),
                    "room for {max_cached}"
                );
                assert!(
                    !list
                        .is_suppressed(Channel::Email, &ada)
                        .await
                        .expect("known")
                );
            }
        }
    }
}
