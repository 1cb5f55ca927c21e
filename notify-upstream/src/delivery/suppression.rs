//! Suppression lists: addresses that are proven not to exist, which get no messages, and addresses
//! that have left a category, which get no messages of its templates.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use postern_core::clock::Timestamp;
use postern_core::log_limit::LogLimit;
use postern_core::log_limited;
use sha2::{Digest, Sha256};

use crate::address::{self, Address, AddressHash};
use crate::delivery::report::ProviderReport;
use crate::notification::{Channel, NotificationId};
use crate::store::{Store, StoreError, SuppressionChange, SuppressionQuery, SuppressionRow};
use crate::templates::Templates;

/// An in-memory copy of the suppression lists, which holds hashes only. Each replica reads the
/// changes of the others from the store.
#[derive(Debug)]
pub(crate) struct SuppressionCache {
    store: Store,
    known: RwLock<HashSet<Entry>>,
    /// Maximum number of known entries.
    max_cached: usize,
    /// Whether the lists exceed the cache; then the store is asked about addresses that are not
    /// cached.
    overflows: AtomicBool,
    /// The times, of the database, up to which additions and removals have been read from the store.
    read_positions: Mutex<[Timestamp; 2]>,
    pending: Mutex<Vec<SuppressionRow>>,
    /// Held while pending additions are written.
    flushing: tokio::sync::Mutex<()>,
    /// Number of addresses added since [`SuppressionCache::take_added`].
    added: AtomicU64,
    log_limit: LogLimit,
}

/// Kind, and the SHA-256 of the address's hash and the category.
type Entry = (i16, [u8; 32]);

/// A suppression list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuppressionList {
    /// Addresses that are proven not to exist.
    Suppressed,
    /// Addresses that have left a category.
    Unsubscribed,
}

/// Difference between the stored kinds of the two lists: the kind is the code of the channel, plus
/// this number for unsubscribed addresses. Part of the schema.
const UNSUBSCRIBED_OFFSET: i16 = 8;
/// Maximum number of cached addresses, which use 64 MB.
const MAX_CACHED_ADDRESSES: usize = 1_000_000;
/// Maximum number of additions that wait to be written, while the store is unavailable.
const MAX_PENDING_ADDITIONS: usize = 10_000;
/// Maximum number of additions that are logged per 10 s.
const MAX_LOGGED_ADDITIONS: u32 = 5;
/// Rows of one page, unless more have the same timestamp.
const PAGE_ROWS: i64 = 100_000;
/// Maximum number of addresses that an operator removes at once, with the same timestamp. It is
/// less than a page, so that reading proceeds beyond them.
pub(crate) const MAX_REMOVED_ROWS: i64 = 50_000;

// === impl SuppressionCache ===

impl SuppressionCache {
    /// Creates an empty copy. Nothing may be sent before the first [`SuppressionCache::sync`].
    pub(crate) fn new(store: Store) -> Self {
        Self::with_max_cached(store, MAX_CACHED_ADDRESSES)
    }

    fn with_max_cached(store: Store, max_cached: usize) -> Self {
        Self {
            max_cached,
            overflows: AtomicBool::new(false),
            store,
            known: RwLock::default(),
            read_positions: Mutex::new([Timestamp(0); 2]),
            pending: Mutex::default(),
            flushing: tokio::sync::Mutex::default(),
            added: AtomicU64::new(0),
            log_limit: LogLimit::with_burst(MAX_LOGGED_ADDITIONS),
        }
    }

    /// Returns whether an address is suppressed.
    ///
    /// # Errors
    /// The lists exceed the cache and the store is unavailable.
    pub(crate) async fn is_suppressed(
        &self,
        channel: Channel,
        address: &Address,
    ) -> Result<bool, StoreError> {
        self.is_listed(SuppressionList::Suppressed.kind(channel), address, "")
            .await
    }

    async fn is_listed(
        &self,
        kind: i16,
        address: &Address,
        category: &str,
    ) -> Result<bool, StoreError> {
        if self.known.read().is_empty() {
            return Ok(false);
        }
        let hash = address.hash();
        if self.known.read().contains(&entry(kind, &hash, category)) {
            return Ok(true);
        }
        Ok(self.overflows.load(Ordering::Relaxed)
            && Box::pin(self.store.is_suppressed(kind, &hash, category)).await?)
    }

    /// Keeps an entry, unless the maximum is reached: then the store is asked. Returns whether it is
    /// new here.
    fn remember(&self, known: &mut HashSet<Entry>, entry: Entry) -> bool {
        if known.len() < self.max_cached {
            return known.insert(entry);
        }
        let is_new = !known.contains(&entry);
        if is_new {
            self.overflows.store(true, Ordering::Relaxed);
        }
        is_new
    }

    /// Adds an address that is proven not to exist. The next [`SuppressionCache::flush`] writes it to
    /// the store.
    pub(crate) fn add(&self, channel: Channel, hash: AddressHash, reason: &str) {
        let kind = SuppressionList::Suppressed.kind(channel);
        let is_new = self.remember(&mut self.known.write(), entry(kind, &hash, ""));
        if is_new {
            self.added.fetch_add(1, Ordering::Relaxed);
            if let Some(suppressed) = self.log_limit.admit() {
                let channel = channel.as_str();
                tracing::info!(channel, reason, suppressed, "address suppressed");
            }
        }
        let mut pending = self.pending.lock();
        if pending.len() < MAX_PENDING_ADDITIONS {
            pending.push(SuppressionRow {
                kind,
                address: hash.to_vec(),
                category: String::new(),
                reason: reason.to_owned(),
            });
        } else {
            drop(pending);
            log_limited!(warn, "suppressed address not stored, too many are waiting");
        }
    }

    /// Returns, and resets, the number of addresses that this process has added.
    pub(crate) fn take_added(&self) -> u64 {
        self.added.swap(0, Ordering::Relaxed)
    }

    /// Returns the number of known entries of both lists.
    pub(crate) fn cached(&self) -> usize {
        self.known.read().len()
    }

    /// Returns whether an address has left a category.
    ///
    /// # Errors
    /// The lists exceed the cache and the store is unavailable.
    pub(crate) async fn has_left(
        &self,
        channel: Channel,
        address: &Address,
        category: &str,
    ) -> Result<bool, StoreError> {
        self.is_listed(
            SuppressionList::Unsubscribed.kind(channel),
            address,
            category,
        )
        .await
    }

    /// Removes an address from a category. Returns when that is durable.
    ///
    /// # Errors
    /// The store is unavailable.
    pub(crate) async fn unsubscribe(
        &self,
        channel: Channel,
        hash: AddressHash,
        category: &str,
        reason: &str,
    ) -> Result<(), StoreError> {
        let kind = SuppressionList::Unsubscribed.kind(channel);
        let row = SuppressionRow {
            kind,
            address: hash.to_vec(),
            category: category.to_owned(),
            reason: reason.to_owned(),
        };
        self.store.suppress(&[row]).await?;
        self.remember(&mut self.known.write(), entry(kind, &hash, category));
        Ok(())
    }

    /// Returns an address to a category. Returns when that is durable.
    ///
    /// # Errors
    /// The store is unavailable.
    pub(crate) async fn resubscribe(
        &self,
        channel: Channel,
        hash: AddressHash,
        category: &str,
    ) -> Result<(), StoreError> {
        let kind = SuppressionList::Unsubscribed.kind(channel);
        let left = SuppressionQuery::of_entry(kind, hash, category.to_owned());
        self.store.remove_suppressed(&left).await?;
        self.known.write().remove(&entry(kind, &hash, category));
        Ok(())
    }

    /// Suppresses the addresses that reports declare not to exist, and unsubscribes those that
    /// object from the category of the message. A report counts only if the notification is known to
    /// have been sent to that address: otherwise any user who can cause reports could suppress the
    /// addresses of others. Returns when the changes are durable.
    ///
    /// # Errors
    /// The store is unavailable: the provider has to repeat the reports.
    pub(crate) async fn apply_reports(
        &self,
        reports: &[ProviderReport],
        templates: Option<&Templates>,
    ) -> Result<(), StoreError> {
        let about = |report: &ProviderReport| {
            let dead = report.dead_address.as_deref().map(address::hash);
            Some((report.id?, dead.or(report.objector)?))
        };
        let ids = reports.iter().filter_map(about).map(|(id, _)| id);
        let ids: Vec<NotificationId> = ids.collect();
        if ids.is_empty() {
            return Ok(());
        }
        let snapshots = self.store.read(&ids).await?;
        for report in reports {
            let Some((id, hash)) = about(report) else {
                continue;
            };
            let Some(snapshot) = snapshots.iter().find(|snapshot| snapshot.id == id) else {
                continue;
            };
            if !snapshot.addresses().any(|sent_to| sent_to == hash) {
                continue;
            }
            let (record, code) = (&snapshot.record, report.code.as_deref());
            let channel = record.lane.channel;
            if report.dead_address.is_some() {
                self.add(channel, hash, code.unwrap_or("bounced"));
            } else if let Some(category) = templates.and_then(|all| all.category(&record.template))
            {
                let reason = code.unwrap_or("unsubscribed");
                self.unsubscribe(channel, hash, category, reason).await?;
            }
        }
        self.flush().await
    }

    /// Writes pending additions to the store.
    ///
    /// # Errors
    /// The store is unavailable; the next call retries.
    pub(crate) async fn flush(&self) -> Result<(), StoreError> {
        let _flushing = self.flushing.lock().await;
        let pending = self.pending.lock().clone();
        if !pending.is_empty() {
            self.store.suppress(&pending).await?;
            self.pending.lock().drain(..pending.len());
        }
        Ok(())
    }

    /// Has the next [`SuppressionCache::sync`] read the lists from the beginning. That finds what was
    /// written with an earlier time than already read, because the database's clock was set back.
    pub(crate) fn rewind(&self) {
        *self.read_positions.lock() = [Timestamp(0); 2];
    }

    /// Writes pending additions and reads the changes of other replicas.
    ///
    /// # Errors
    /// The store is unavailable.
    pub(crate) async fn sync(&self) -> Result<(), StoreError> {
        self.flush().await?;
        // Removals first: an address that is added again between the two reads stays on the list.
        for is_removal in [true, false] {
            let mut page = PAGE_ROWS;
            while self.read_changes(is_removal, page).await? {
                page = page.saturating_mul(2);
            }
        }
        Ok(())
    }

    /// Reads additions, or removals, of other replicas, and returns whether there may be more.
    async fn read_changes(&self, is_removal: bool, page: i64) -> Result<bool, StoreError> {
        let index = usize::from(is_removal);
        let since = self.read_positions.lock()[index];
        let changes = self.store.suppression_changes(is_removal, since, page);
        let rows = changes.await?;
        self.read_positions.lock()[index] = since.max(next_read_position(&rows, page));
        let is_full = is_full(&rows, page);
        let mut known = self.known.write();
        for row in rows {
            let entry = entry(row.kind, &row.address, &row.category);
            if is_removal {
                known.remove(&entry);
            } else {
                self.remember(&mut known, entry);
            }
        }
        Ok(is_full)
    }
}

fn entry(kind: i16, address: &[u8], category: &str) -> Entry {
    let digest = Sha256::new().chain_update(address).chain_update(category);
    (kind, digest.finalize().into())
}

/// Returns the time from which the next read starts. After the last page it is a minute earlier,
/// for rows that were committed late.
pub(crate) fn next_read_position(rows: &[SuppressionChange], page: i64) -> Timestamp {
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
    /// All names with their values, for the command line.
    pub(crate) const NAMES: &[(&str, Self)] = &[
        ("suppressed", Self::Suppressed),
        ("unsubscribed", Self::Unsubscribed),
    ];

    /// Returns the name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Suppressed => "suppressed",
            Self::Unsubscribed => "unsubscribed",
        }
    }

    /// Returns the stored kind of this list for a channel.
    pub(crate) fn kind(self, channel: Channel) -> i16 {
        match self {
            Self::Suppressed => channel.code(),
            Self::Unsubscribed => channel.code() + UNSUBSCRIBED_OFFSET,
        }
    }

    /// Returns the list and the channel of a stored kind.
    pub(crate) fn of_kind(kind: i16) -> Option<(Self, Channel)> {
        let lists = Self::NAMES.iter().map(|(_, list)| *list);
        let mut all = lists.flat_map(|list| Channel::ALL.map(|channel| (list, channel)));
        all.find(|(list, channel)| list.kind(*channel) == kind)
    }
}

#[cfg(test)]
mod tests {
    use postern_core::email::EmailAddress;
    use postern_store::database::Database;

    use super::*;
    use crate::testing::{execute, stores};

    #[tokio::test]
    async fn sync_reads_all_entries_with_one_timestamp() {
        let ada = Address::Email(EmailAddress::parse("ada@example.com").expect("address"));
        for (store, test) in stores().await {
            let random = match &test.database {
                Database::Postgres(_) => "sha256(n::text::bytea)",
                Database::Sqlite(_) => "randomblob(32)",
            };
            // Several statements, because one may take seconds on a busy machine.
            for from in (1..=100_001).step_by(10_000) {
                let many = format!(
                    "INSERT INTO notify_suppression (channel, address, category, reason, at)
                    WITH RECURSIVE s(n) AS (SELECT {from} UNION ALL SELECT n + 1 FROM s WHERE n < {from} + 9999)
                    SELECT 0, {random}, '', 'r', 5 FROM s"
                );
                execute(&test.database, &many).await;
            }
            let last = [SuppressionRow {
                kind: Channel::Push.code(),
                address: ada.hash().to_vec(),
                category: String::new(),
                reason: "r".to_owned(),
            }];
            store.suppress(&last).await.expect("no error");
            execute(
                &test.database,
                "UPDATE notify_suppression SET at = 5 WHERE at <> 5",
            )
            .await;
            // The second cache holds a part of the list and asks the store about the rest.
            for max_cached in [MAX_CACHED_ADDRESSES, 10] {
                let list = SuppressionCache::with_max_cached(store.clone(), max_cached);
                list.sync().await.expect("no error");
                assert!(
                    list.is_suppressed(Channel::Push, &ada)
                        .await
                        .expect("the lookup succeeds"),
                    "cache of {max_cached} entries"
                );
                assert!(
                    !list
                        .is_suppressed(Channel::Email, &ada)
                        .await
                        .expect("the lookup succeeds")
                );
            }
        }
    }
}
