//! The stores of all shards, asked as one.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use futures_util::future::{join_all, try_join_all};

use super::{
    DeadFilter, DeadLetter, ListQuery, ListedRow, NotificationSnapshot, Receipt, Store, StoreError,
    StoreResult,
};
use crate::notification::{NotificationId, Order, ShardNumber};
use postern_common::clock::Timestamp;

/// The stores of all shards by number. What concerns one notification goes to the store that its id
/// names; lists are read from all stores and merged. Clones share the stores.
#[derive(Clone, Debug)]
pub(crate) struct Stores(Arc<[OnceLock<Store>]>);

// === impl Stores ===

impl Stores {
    /// Creates the set of `count` stores, of which the first is open.
    #[must_use]
    pub(crate) fn new(count: usize, first: Store) -> Self {
        let stores: Arc<[OnceLock<Store>]> = (0..count.max(1)).map(|_| OnceLock::new()).collect();
        let stores = Self(stores);
        stores.insert(0, first);
        stores
    }

    /// Adds the store of a shard that has been opened.
    pub(crate) fn insert(&self, shard: ShardNumber, store: Store) {
        let slot = &self.0[usize::from(shard)];
        assert!(slot.set(store).is_ok(), "each shard is opened once");
    }

    /// Returns the number of shards.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns whether a shard is configured.
    #[must_use]
    pub(crate) fn has(&self, shard: ShardNumber) -> bool {
        usize::from(shard) < self.0.len()
    }

    /// Returns the store of shard 0, which has the suppression lists, the pauses of providers and
    /// the webhook tokens.
    #[must_use]
    pub(crate) fn first(&self) -> &Store {
        self.0[0]
            .get()
            .expect("the first store is open from the start")
    }

    /// Returns the store of a notification.
    ///
    /// # Errors
    /// The shard is not configured or not open.
    pub(crate) fn of(&self, id: NotificationId) -> StoreResult<&Store> {
        self.get(id.shard())
    }

    /// Returns all stores, by number.
    ///
    /// # Errors
    /// A shard is not open: what the others have would look complete.
    fn all(&self) -> StoreResult<Vec<&Store>> {
        let numbers = (0..=ShardNumber::MAX).take(self.0.len());
        numbers.map(|number| self.get(number)).collect()
    }

    /// Returns the store of a shard.
    ///
    /// # Errors
    /// The shard is not configured or not open.
    pub(crate) fn get(&self, shard: ShardNumber) -> StoreResult<&Store> {
        let Some(slot) = self.0.get(usize::from(shard)) else {
            let reason = "it is not configured".to_owned();
            return Err(StoreError::ShardUnavailable { shard, reason });
        };
        slot.get().ok_or_else(|| StoreError::ShardUnavailable {
            shard,
            reason: "it has not been opened yet".to_owned(),
        })
    }

    /// Names the shard in an error, if there are several.
    fn named<T>(&self, shard: ShardNumber, result: StoreResult<T>) -> StoreResult<T> {
        match result {
            Err(StoreError::Unavailable(error)) if self.0.len() > 1 => {
                let reason = error.to_string();
                Err(StoreError::ShardUnavailable { shard, reason })
            }
            result => result,
        }
    }

    /// Asks all stores at the same time.
    ///
    /// # Errors
    /// A shard is not open, or the first error of the stores, which names the shard.
    pub(crate) async fn ask_all<'a, T, F: Future<Output = StoreResult<T>>>(
        &'a self,
        ask: impl Fn(&'a Store) -> F,
    ) -> StoreResult<Vec<T>> {
        let stores = (0..=ShardNumber::MAX).zip(self.all()?);
        let asked = stores.map(|(shard, store)| {
            let answer = ask(store);
            async move { self.named(shard, answer.await) }
        });
        try_join_all(asked).await
    }

    /// Reads all that is stored about these notifications.
    ///
    /// # Errors
    /// The store of one of them is unavailable or rejects the statement.
    pub(crate) async fn read(
        &self,
        ids: &[NotificationId],
    ) -> StoreResult<Vec<NotificationSnapshot>> {
        let (found, outcome) = self.read_available(ids).await;
        outcome.map(|()| found)
    }

    /// Reads all that is stored about these notifications in the shards that answer, and returns it
    /// with the first error of the others.
    pub(crate) async fn read_available(
        &self,
        ids: &[NotificationId],
    ) -> (Vec<NotificationSnapshot>, StoreResult<()>) {
        let reads = by_shard(ids, |id| *id).into_iter().map(|(shard, ids)| {
            let store = self.get(shard);
            async move { self.named(shard, store?.read(&ids).await) }
        });
        let (mut found, mut outcome) = (Vec::with_capacity(ids.len()), Ok(()));
        for read in join_all(reads).await {
            match read {
                Ok(snapshots) => found.extend(snapshots),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        (found, outcome)
    }

    /// Returns a part of a list of notifications, newest first.
    ///
    /// # Errors
    /// A store is unavailable or rejects the statement.
    pub(crate) async fn list(&self, query: &ListQuery) -> StoreResult<Vec<ListedRow>> {
        let mut rows = self.ask_all(|store| store.list(query)).await?.concat();
        rows.sort_by_key(|row| std::cmp::Reverse(row.id));
        rows.truncate(usize::try_from(query.limit).unwrap_or(0));
        Ok(rows)
    }

    /// Stores delivery reports, and returns the number of new ones.
    ///
    /// # Errors
    /// A store is unavailable. All others have stored their part, which a repetition does not store
    /// again.
    pub(crate) async fn save_receipts(&self, receipts: &[Receipt]) -> StoreResult<u64> {
        let groups = by_shard(receipts, |receipt| receipt.id).into_iter();
        let writes = groups.map(|(shard, receipts)| {
            let store = self.get(shard);
            async move { self.named(shard, store?.save_receipts(&receipts).await) }
        });
        // Each is completed, whatever the others return.
        join_all(writes).await.into_iter().sum()
    }

    /// Returns failed notifications, oldest first.
    ///
    /// # Errors
    /// A store is unavailable or rejects the statement.
    pub(crate) async fn dead_letters(&self, filter: &DeadFilter) -> StoreResult<Vec<DeadLetter>> {
        if let Some(id) = filter.id {
            let letters = self.of(id)?.dead_letters(filter).await;
            return self.named(id.shard(), letters);
        }
        let mut letters = self
            .ask_all(|store| store.dead_letters(filter))
            .await?
            .concat();
        letters.sort_by_key(|letter| (letter.at, letter.id));
        letters.truncate(usize::try_from(filter.limit).unwrap_or(0));
        Ok(letters)
    }

    /// Queues failed notifications again, oldest first, and returns their number.
    ///
    /// # Errors
    /// A store is unavailable or rejects the statement. Those of others may be queued already.
    pub(crate) async fn replay(
        &self,
        filter: &DeadFilter,
        first_order: Order,
        now: Timestamp,
    ) -> StoreResult<u64> {
        let mut replayed = 0;
        for (shard, store, filter) in self.selections(filter).await? {
            let part = store.replay(&filter, first_order, now).await;
            replayed += self.named(shard, part)?;
        }
        Ok(replayed)
    }

    /// Deletes dead letters, oldest first, and returns their number. The history is kept.
    ///
    /// # Errors
    /// A store is unavailable or rejects the statement. Those of others may be deleted already.
    pub(crate) async fn discard_dead_letters(&self, filter: &DeadFilter) -> StoreResult<u64> {
        let mut dropped = 0;
        for (shard, store, filter) in self.selections(filter).await? {
            dropped += self.named(shard, store.discard_dead_letters(&filter).await)?;
        }
        Ok(dropped)
    }

    /// Divides a selection of dead letters among the stores: the oldest of all are the oldest of
    /// each.
    async fn selections(
        &self,
        filter: &DeadFilter,
    ) -> StoreResult<Vec<(ShardNumber, &Store, DeadFilter)>> {
        let only = match filter.id {
            Some(id) => Some((id.shard(), self.of(id)?)),
            None if self.0.len() == 1 => Some((0, self.first())),
            None => None,
        };
        if let Some((shard, store)) = only {
            return Ok(vec![(shard, store, filter.clone())]);
        }
        let letters = self.dead_letters(filter).await?;
        let selection = |(shard, letters): (ShardNumber, Vec<DeadLetter>)| {
            let limit = i64::try_from(letters.len()).unwrap_or(i64::MAX);
            let filter = DeadFilter {
                limit,
                ..filter.clone()
            };
            Ok((shard, self.get(shard)?, filter))
        };
        let groups = by_shard(&letters, |letter| letter.id);
        groups.into_iter().map(selection).collect()
    }
}

/// Groups what belongs to notifications by shard.
fn by_shard<T: Clone>(
    items: &[T],
    id: impl Fn(&T) -> NotificationId,
) -> BTreeMap<ShardNumber, Vec<T>> {
    let mut groups: BTreeMap<ShardNumber, Vec<T>> = BTreeMap::new();
    for item in items {
        let group = groups.entry(id(item).shard()).or_default();
        group.push(item.clone());
    }
    groups
}
