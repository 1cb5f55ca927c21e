//! Suppression lists: addresses that are proven not to exist, which get no messages, and addresses
//! that have left a category, which get no messages of its templates.

use parking_lot::Mutex;
use postern_core::log_limit::LogLimit;
use tokio::sync::oneshot;

use crate::address::{self, Address, AddressHash};
use crate::notification::{Channel, NotificationId, PerChannel};
use crate::store::{ProviderReport, Store, StoreError};
use crate::templates::Templates;

/// The suppression lists, which are in the store.
pub(crate) struct Suppression {
    store: Store,
    /// Addresses that the store has not taken yet.
    pending: Mutex<Vec<(Channel, AddressHash, String)>>,
    log_limit: LogLimit,
    /// The end of the last look-up of [`Suppression::list_of`] that has begun.
    last: PerChannel<Mutex<Option<oneshot::Receiver<()>>>>,
}

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
/// Maximum number of additions that are logged per 10 s.
const MAX_LOGGED_ADDITIONS: u32 = 5;
/// Maximum number of addresses that wait for the store.
const MAX_PENDING_ADDITIONS: usize = 1000;

// === impl Suppression ===

impl Suppression {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            store,
            pending: Mutex::default(),
            log_limit: LogLimit::with_burst(MAX_LOGGED_ADDITIONS),
            last: PerChannel::from_fn(|_| Mutex::default()),
        }
    }

    /// Returns the list for which an address gets no message of a category, or of no category.
    /// Look-ups that overlap end in the order in which they began, so that notifications are sent in
    /// the order in which they got their permits.
    pub(crate) async fn list_of(
        &self,
        channel: Channel,
        address: &Address,
        category: Option<&str>,
    ) -> Result<Option<SuppressionList>, StoreError> {
        let (ended, end) = oneshot::channel();
        let before = self.last.get(channel).lock().replace(end);
        let (kinds, hash) = (
            SuppressionList::ALL.map(|list| list.kind(channel)),
            address.hash(),
        );
        let kind = self.store.suppressed_kind(kinds, &hash, category).await;
        if let Some(before) = before {
            // Dropped at the end of the look-up before.
            let _ = before.await;
        }
        drop(ended);
        Ok(kind?
            .and_then(SuppressionList::of_kind)
            .map(|(list, _)| list))
    }

    /// Adds an address that is proven not to exist.
    pub(crate) async fn add(
        &self,
        channel: Channel,
        hash: AddressHash,
        reason: &str,
    ) -> Result<(), StoreError> {
        let kind = SuppressionList::Suppressed.kind(channel);
        if self.store.suppress(kind, &hash, "", reason).await? > 0
            && let Some(suppressed) = self.log_limit.admit()
        {
            let channel = channel.as_str();
            tracing::info!(channel, reason, suppressed, "address suppressed");
        }
        Ok(())
    }

    /// Adds an address as [`Suppression::add`] does, or later if the store is unavailable.
    pub(crate) async fn add_or_defer(&self, channel: Channel, hash: AddressHash, reason: &str) {
        if let Err(error) = self.add(channel, hash, reason).await {
            postern_core::log_outage!("database", %error, "suppressed address not stored");
            let mut pending = self.pending.lock();
            if pending.len() < MAX_PENDING_ADDITIONS {
                pending.push((channel, hash, reason.to_owned()));
            }
        }
    }

    /// Adds the addresses that were deferred.
    ///
    /// # Errors
    /// The store is unavailable: the rest stays deferred.
    pub(crate) async fn add_deferred(&self) -> Result<(), StoreError> {
        loop {
            let next = self.pending.lock().pop();
            let Some((channel, hash, reason)) = next else {
                return Ok(());
            };
            if let Err(error) = self.add(channel, hash, &reason).await {
                self.pending.lock().push((channel, hash, reason));
                return Err(error);
            }
        }
    }

    /// Removes an address from a category. Returns when that is durable.
    pub(crate) async fn unsubscribe(
        &self,
        channel: Channel,
        hash: AddressHash,
        category: &str,
        reason: &str,
    ) -> Result<(), StoreError> {
        let kind = SuppressionList::Unsubscribed.kind(channel);
        let added = self.store.suppress(kind, &hash, category, reason).await;
        added.map(drop)
    }

    /// Returns an address to a category. Returns when that is durable.
    pub(crate) async fn resubscribe(
        &self,
        channel: Channel,
        hash: AddressHash,
        category: &str,
    ) -> Result<(), StoreError> {
        let kind = SuppressionList::Unsubscribed.kind(channel);
        let removed = self.store.remove_suppressed(kind, &hash, category).await;
        removed.map(drop)
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
                self.add(channel, hash, code.unwrap_or("bounced")).await?;
            } else if let Some(category) = templates.and_then(|all| all.category(&record.template))
            {
                let reason = code.unwrap_or("unsubscribed");
                self.unsubscribe(channel, hash, category, reason).await?;
            }
        }
        Ok(())
    }
}

// === impl SuppressionList ===

impl SuppressionList {
    const ALL: [Self; 2] = [Self::Suppressed, Self::Unsubscribed];

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

    /// Returns the stored kinds of both lists for all channels.
    pub(crate) fn all_kinds() -> Vec<i16> {
        let kinds = |list: Self| Channel::ALL.map(|channel| list.kind(channel));
        Self::ALL.into_iter().flat_map(kinds).collect()
    }

    /// Returns the list and the channel of a stored kind.
    pub(crate) fn of_kind(kind: i16) -> Option<(Self, Channel)> {
        let lists = Self::ALL.into_iter();
        let mut all = lists.flat_map(|list| Channel::ALL.map(|channel| (list, channel)));
        all.find(|(list, channel)| list.kind(*channel) == kind)
    }
}
