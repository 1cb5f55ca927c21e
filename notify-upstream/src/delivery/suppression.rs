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
use crate::store::{Store, StoreError};

/// The lists, as of the last look into the store. Only hashes are kept.
#[derive(Debug)]
pub(crate) struct Suppression {
    store: Store,
    clock: Clock,
    known: RwLock<HashSet<(i16, [u8; 32])>>,
    /// Most entries that are known here.
    room: usize,
    /// There was no room for all: the store is asked about what is not known here.
    overflows: AtomicBool,
    seen_to: Mutex<SeenTo>,
    noted: Mutex<Vec<(i16, Vec<u8>, String)>>,
}

/// Up to where the store was read.
#[derive(Clone, Copy, Debug)]
struct SeenTo {
    suppressed: Timestamp,
    lifted: Timestamp,
}

/// Why an address gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// It is proven not to exist.
    Suppressed,
    /// Whoever holds it wants nothing more that can be unsubscribed from.
    Unsubscribed,
}

/// Kinds of entry: the channel's index for an address that is dead, and this much more for one that
/// was unsubscribed.
const UNSUBSCRIBED: i16 = 8;
/// Most addresses in memory, 64 MB; beyond that the store is asked about each that is not among
/// them.
const ROOM: usize = 1_000_000;
/// Most rows of one answer, unless more have one and the same instant.
const PAGE: i64 = 100_000;
/// Most addresses that an operator takes off at once, in one instant: whatever their number, a page
/// goes beyond them.
pub(crate) const LIFT: i64 = 50_000;

// === impl Suppression ===

impl Suppression {
    /// An empty list until the first [`Suppression::step`]: nothing is to be sent before.
    #[must_use]
    pub(crate) fn new(store: Store, clock: Clock) -> Self {
        Self::with_room(store, clock, ROOM)
    }

    fn with_room(store: Store, clock: Clock, room: usize) -> Self {
        Self {
            room,
            overflows: AtomicBool::new(false),
            store,
            clock,
            known: RwLock::default(),
            seen_to: Mutex::new(SeenTo {
                suppressed: Timestamp(0),
                lifted: Timestamp(0),
            }),
            noted: Mutex::default(),
        }
    }

    /// Whether nothing is to be sent there.
    ///
    /// # Errors
    /// There are too many for memory, and the store does not answer.
    pub(crate) async fn holds(
        &self,
        channel: Channel,
        address: &Address,
    ) -> Result<bool, StoreError> {
        self.is_on(List::Suppressed.kind(channel), address).await
    }

    async fn is_on(&self, kind: i16, address: &Address) -> Result<bool, StoreError> {
        if self.knows(kind, address) {
            return Ok(true);
        }
        Ok(self.overflows.load(Ordering::Relaxed)
            && Box::pin(self.store.is_suppressed(kind, &address.hash())).await?)
    }

    fn knows(&self, kind: i16, address: &Address) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        !known.is_empty() && known.contains(&(kind, address.hash()))
    }

    /// Notes an address; it is written with the next step.
    pub(crate) fn note(&self, channel: Channel, address: &Address, reason: &str) {
        self.note_hash(channel, address.hash(), reason);
    }

    /// The same for an address that is known by its hash alone.
    pub(crate) fn note_hash(&self, channel: Channel, hash: AddressHash, reason: &str) {
        let kind = List::Suppressed.kind(channel);
        self.known
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((kind, hash));
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() < 10_000 {
            noted.push((kind, hash.to_vec(), reason.to_owned()));
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
        self.is_on(List::Unsubscribed.kind(channel), address).await
    }

    /// Mail of templates that offer it is not wanted at these addresses any more. Returns when that
    /// is durable.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn unsubscribe(&self, addresses: &[AddressHash]) -> Result<(), StoreError> {
        let kind = List::Unsubscribed.kind(Channel::Email);
        let rows: Vec<_> = addresses
            .iter()
            .map(|hash| (kind, hash.to_vec(), "unsubscribed".to_owned()))
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
    /// The store's, and nothing was noted: the next bounce of the address does it.
    pub(crate) async fn believe(&self, reports: &[ProviderReport]) -> Result<(), StoreError> {
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
                self.note_hash(snapshot.record.lane.channel, hash, reason);
            }
        }
        Ok(())
    }

    /// Writes what was noted.
    ///
    /// # Errors
    /// The store's; it is written with the next call.
    pub(crate) async fn write(&self) -> Result<(), StoreError> {
        let noted = self
            .noted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if !noted.is_empty() {
            self.store.suppress(&noted, self.clock.now()).await?;
            self.noted
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .drain(..noted.len());
        }
        Ok(())
    }

    /// Writes what was noted and reads all that others noted.
    ///
    /// # Errors
    /// The store's.
    pub(crate) async fn step(&self) -> Result<(), StoreError> {
        self.write().await?;
        // In this order: what is put back on the list between the two stays on it.
        let mut page = PAGE;
        while self.forget_lifted(page).await? {
            page = page.saturating_mul(2);
        }
        page = PAGE;
        while self.learn(page).await? {
            page = page.saturating_mul(2);
        }
        Ok(())
    }

    /// Reads what others have taken off. Whether there may be more.
    async fn forget_lifted(&self, page: i64) -> Result<bool, StoreError> {
        let since = self
            .seen_to
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .lifted;
        let rows = self.store.lifted_since(since, page).await?;
        let read_to = since.max(read_to(&rows, page));
        self.seen_to
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .lifted = read_to;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let is_full = is_full(&rows, page);
        for (kind, address, _) in rows {
            if let Ok(hash) = <[u8; 32]>::try_from(address) {
                known.remove(&(kind, hash));
            }
        }
        Ok(is_full)
    }

    /// Reads what others have noted. Whether there may be more.
    async fn learn(&self, page: i64) -> Result<bool, StoreError> {
        let since = self
            .seen_to
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .suppressed;
        let rows = self.store.suppressed_since(since, page).await?;
        let read_to = since.max(read_to(&rows, page));
        self.seen_to
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .suppressed = read_to;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let is_full = is_full(&rows, page);
        for (kind, address, _) in rows {
            let Ok(hash) = <[u8; 32]>::try_from(address) else {
                continue;
            };
            if known.len() < self.room {
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
pub(crate) fn read_to(rows: &[(i16, Vec<u8>, i64)], page: i64) -> Timestamp {
    let last = rows.last().map_or(0, |(_, _, at)| *at);
    Timestamp(if is_full(rows, page) {
        last
    } else {
        last - 60_000
    })
}

fn is_full(rows: &[(i16, Vec<u8>, i64)], page: i64) -> bool {
    i64::try_from(rows.len()).unwrap_or(page) >= page
}

// === impl List ===

impl List {
    /// Name and value, for the command line.
    pub(crate) const WORDS: &[(&str, Self)] = &[
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
            Self::Suppressed => code(channel),
            Self::Unsubscribed => code(channel) + UNSUBSCRIBED,
        }
    }

    /// The list and the channel of a number in the store.
    #[must_use]
    pub(crate) fn of_kind(kind: i16) -> Option<(Self, Channel)> {
        let lists = Self::WORDS.iter().map(|(_, list)| *list);
        let mut all = lists.flat_map(|list| Channel::ALL.map(|channel| (list, channel)));
        all.find(|(list, channel)| list.kind(*channel) == kind)
    }
}

fn code(channel: Channel) -> i16 {
    i16::try_from(channel.index()).unwrap_or(0)
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
            let last = [(code(Channel::Push), ada.hash().to_vec(), "r".to_owned())];
            store.suppress(&last, Timestamp(5)).await.expect("notes");
            // The second has room for a part of the list, and asks about the rest.
            for room in [ROOM, 10] {
                let list = Suppression::with_room(store.clone(), Clock::manual(START), room);
                list.step().await.expect("looks");
                assert!(
                    list.holds(Channel::Push, &ada).await.expect("known"),
                    "room for {room}"
                );
                assert!(!list.holds(Channel::Email, &ada).await.expect("known"));
            }
        }
    }
}
