//! Tests of the suppression lists.

use super::*;
use crate::address::hash;
use crate::delivery::suppression::{Suppression, SuppressionList};
use crate::testing::{execute, mailbox};

const ADA: &str = "ada@example.com";

/// Returns the list for which the address gets no message of a category.
async fn list_of(store: &Store, channel: Channel, category: &str) -> Option<SuppressionList> {
    let found = Suppression::new(store.clone());
    let found = found.list_of(channel, &mailbox(ADA), Some(category)).await;
    found.expect("the lookup succeeds")
}

/// Removes an address from a list, and returns the number of removed entries.
async fn remove(store: &Store, list: SuppressionList, category: &str) -> u64 {
    let kind = list.kind(Channel::Email);
    let removed = store.remove_suppressed(kind, &hash(ADA), category).await;
    removed.expect("no error")
}

#[tokio::test]
async fn removed_address_leaves_one_list_and_may_return() {
    let (suppressed, unsubscribed) = (SuppressionList::Suppressed, SuppressionList::Unsubscribed);
    for (store, _database) in stores().await {
        let lists = Suppression::new(store.clone());
        let add = async || {
            let added = lists.add(Channel::Email, hash(ADA), "mailbox_unknown");
            added.await.expect("stored");
        };
        add().await;
        add().await;
        ok(lists.unsubscribe(Channel::Email, hash(ADA), "news", "unsubscribed")).await;
        let look = async || list_of(&store, Channel::Email, "news").await;
        assert_eq!(look().await, Some(suppressed));
        assert_eq!(remove(&store, suppressed, "news").await, 0);
        assert_eq!(remove(&store, suppressed, "").await, 1);
        let left = look().await;
        assert_eq!(left, Some(unsubscribed), "removed from one list only");
        add().await;
        assert_eq!(look().await, Some(suppressed), "suppressed again");
        assert_eq!(remove(&store, suppressed, "").await, 1);
        assert_eq!(remove(&store, unsubscribed, "news").await, 1);
        assert_eq!(look().await, None);
    }
}

#[tokio::test]
async fn address_leaves_one_category_and_returns() {
    for (store, _database) in stores().await {
        let lists = Suppression::new(store.clone());
        ok(lists.unsubscribe(Channel::Email, hash(ADA), "news", "complained")).await;
        let left = Some(SuppressionList::Unsubscribed);
        assert_eq!(list_of(&store, Channel::Email, "news").await, left);
        assert_eq!(list_of(&store, Channel::Email, "jobs").await, None);
        assert_eq!(list_of(&store, Channel::Push, "news").await, None);
        let none = lists.list_of(Channel::Email, &mailbox(ADA), None).await;
        assert_eq!(none.expect("found"), None, "of no category");
        for (category, expected) in [("jobs", left), ("news", None)] {
            ok(lists.resubscribe(Channel::Email, hash(ADA), category)).await;
            assert_eq!(list_of(&store, Channel::Email, "news").await, expected);
        }
    }
}

#[tokio::test]
async fn address_that_cannot_be_stored_is_stored_later() {
    for (store, test) in stores().await {
        let lists = Suppression::new(store.clone());
        let rename = async |from: &str, to: &str| {
            let sql = format!("ALTER TABLE {from} RENAME TO {to}");
            execute(&test.database, &sql).await;
        };
        rename("notify_suppression", "away").await;
        for _ in 0..2 {
            lists
                .add_or_defer(Channel::Email, hash(ADA), "mailbox_unknown")
                .await;
            lists.add_deferred().await.expect_err("the table is away");
        }
        rename("away", "notify_suppression").await;
        ok(lists.add_deferred()).await;
        let found = list_of(&store, Channel::Email, "news").await;
        assert_eq!(found, Some(SuppressionList::Suppressed));
    }
}
