//! Tests of the suppression lists in several replicas.

use super::*;
use crate::address::{Address, AddressHash, hash};
use crate::delivery::suppression::{SuppressionCache, SuppressionList};
use crate::testing::execute;
use postern_core::email::EmailAddress;

const ADA: &str = "ada@example.com";
const DAY: std::time::Duration = std::time::Duration::from_secs(86_400);

fn ada() -> Address {
    Address::Email(EmailAddress::parse(ADA).expect("an address"))
}

fn filter(list: SuppressionList) -> SuppressionQuery {
    SuppressionQuery {
        kinds: vec![list.kind(Channel::Email)],
        limit: 100,
        ..SuppressionQuery::default()
    }
}

#[tokio::test]
async fn removed_address_leaves_every_replica_and_may_return() {
    for (store, _database) in both().await {
        let replicas = [(); 2].map(|()| SuppressionCache::new(store.clone()));
        let look = async || {
            let mut seen = Vec::new();
            for replica in &replicas {
                replica.sync().await.expect("no error");
                let suppressed = replica
                    .is_suppressed(Channel::Email, &ada())
                    .await
                    .expect("the lookup succeeds");
                seen.push((
                    suppressed,
                    replica
                        .has_left(Channel::Email, &ada(), "news")
                        .await
                        .expect("the lookup succeeds"),
                ));
            }
            seen
        };
        replicas[0].add(Channel::Email, hash(ADA), "mailbox_unknown");
        replicas[1]
            .unsubscribe(Channel::Email, hash(ADA), "news", "unsubscribed")
            .await
            .expect("the commit succeeds");
        look().await;
        assert_eq!(look().await, [(true, true); 2]);
        assert_eq!(
            store
                .remove_suppressed(&filter(SuppressionList::Suppressed))
                .await
                .expect("no error"),
            1
        );
        assert_eq!(
            look().await,
            [(false, true); 2],
            "removed from one list only"
        );
        let fresh = SuppressionCache::new(store.clone());
        fresh.sync().await.expect("no error");
        assert!(
            !fresh
                .is_suppressed(Channel::Email, &ada())
                .await
                .expect("the lookup succeeds")
        );
        assert!(
            fresh
                .has_left(Channel::Email, &ada(), "news")
                .await
                .expect("the lookup succeeds")
        );
        replicas[1].add(Channel::Email, hash(ADA), "mailbox_unknown");
        look().await;
        assert_eq!(look().await, [(true, true); 2], "suppressed again");
        for list in [SuppressionList::Suppressed, SuppressionList::Unsubscribed] {
            assert_eq!(
                store
                    .remove_suppressed(&filter(list))
                    .await
                    .expect("no error"),
                1
            );
        }
        assert_eq!(look().await, [(false, false); 2]);
    }
}

/// Returns the list and channel of an entry, the first byte of the address, and the time.
fn summary(entry: &SuppressionEntry) -> ((SuppressionList, Channel), u8, Timestamp) {
    let list = SuppressionList::of_kind(entry.kind).expect("a known kind");
    (list, entry.address[0], entry.at)
}

/// Adds rows as if the time of the database were `at`.
async fn suppress_at(store: &Store, test: &TestDatabase, rows: &[SuppressionRow], at: Timestamp) {
    store.suppress(rows).await.expect("no error");
    let day = NOW.plus(DAY).0;
    let sql = format!(
        "UPDATE notify_suppression SET at = {} WHERE at > {day}",
        at.0
    );
    execute(&test.database, &sql).await;
}

/// Adds two suppressed addresses at [`NOW`] and an unsubscribed one at `later`.
async fn suppress_three(store: &Store, test: &TestDatabase, later: Timestamp) {
    let row = |list: SuppressionList, channel, byte: u8, reason: &str| SuppressionRow {
        kind: list.kind(channel),
        address: vec![byte; 32],
        category: String::new(),
        reason: reason.to_owned(),
    };
    let suppressed = SuppressionList::Suppressed;
    let early = [
        row(suppressed, Channel::Email, 1, "mailbox_unknown"),
        row(suppressed, Channel::Sms, 2, "number_unknown"),
    ];
    suppress_at(store, test, &early, NOW).await;
    let unsubscribed = SuppressionList::Unsubscribed;
    let late = [row(unsubscribed, Channel::Email, 1, "unsubscribed")];
    suppress_at(store, test, &late, later).await;
}

/// Returns narrower forms of a query, each with the number of matching entries.
fn narrowed_queries(all: &SuppressionQuery, later: Timestamp) -> Vec<(SuppressionQuery, usize)> {
    let mut queries = vec![(all.clone(), 0); 6];
    queries[0].0.address = Some([1; 32]);
    queries[0].1 = 2;
    queries[1].0.reason = Some("number_unknown".to_owned());
    queries[1].1 = 1;
    queries[2].0.since = Some(later);
    queries[2].1 = 1;
    queries[3].0.until = Some(later);
    queries[3].1 = 2;
    queries[4].0.limit = 1;
    queries[4].1 = 1;
    queries[5].0.kinds = Vec::new();
    queries[5].1 = 0;
    queries
}

#[tokio::test]
async fn entries_have_list_time_and_reason() {
    for (store, test) in both().await {
        let later = NOW.plus(std::time::Duration::from_secs(60));
        suppress_three(&store, &test, later).await;
        let all = SuppressionQuery {
            kinds: (0..16).collect(),
            limit: 9,
            ..SuppressionQuery::default()
        };
        let found = store.suppression_entries(&all).await.expect("no error");
        assert_eq!(
            found.iter().map(summary).collect::<Vec<_>>(),
            [
                ((SuppressionList::Suppressed, Channel::Email), 1, NOW),
                ((SuppressionList::Suppressed, Channel::Sms), 2, NOW),
                ((SuppressionList::Unsubscribed, Channel::Email), 1, later),
            ]
        );
        assert_eq!(found[1].reason, "number_unknown");
        for (narrowed, count) in narrowed_queries(&all, later) {
            assert_eq!(
                store
                    .suppression_entries(&narrowed)
                    .await
                    .expect("no error")
                    .len(),
                count,
                "{narrowed:?}"
            );
        }
        let one = SuppressionQuery {
            limit: 1,
            ..all.clone()
        };
        let removed = store.remove_suppressed(&one).await;
        assert_eq!(removed.expect("no error"), 1, "at most the limit");
        let left = store.suppression_entries(&all).await;
        assert_eq!(left.expect("no error").len(), 2);
        let sql = format!("UPDATE notify_suppression_lifted SET at = {}", later.0);
        execute(&test.database, &sql).await;
        assert_eq!(
            store
                .suppression_changes(true, later, 9)
                .await
                .expect("no error"),
            [SuppressionChange {
                kind: 0,
                address: vec![1; 32],
                category: String::new(),
                at: later,
            }]
        );
        store
            .delete_before(later.plus(std::time::Duration::from_secs(1)))
            .await
            .expect("no error");
        assert!(
            store
                .suppression_changes(true, Timestamp(0), 9)
                .await
                .expect("no error")
                .is_empty()
        );
    }
}

#[tokio::test]
async fn list_longer_than_a_page_is_read_completely() {
    for (store, test) in both().await {
        for (byte, second) in (0..6_u8).zip(0..) {
            let rows = [SuppressionRow {
                kind: 0,
                address: vec![byte; 32],
                category: String::new(),
                reason: "why".to_owned(),
            }];
            let at = NOW.plus(std::time::Duration::from_secs(second));
            suppress_at(&store, &test, &rows, at).await;
        }
        let (mut seen, mut since) = (std::collections::BTreeSet::new(), Timestamp(0));
        for _ in 0..9 {
            let page = store
                .suppression_changes(false, since, 3)
                .await
                .expect("no error");
            seen.extend(page.iter().map(|row| row.address[0]));
            since = crate::delivery::suppression::next_read_position(&page, 3).max(since);
        }
        assert_eq!(seen.len(), 6);
    }
}

#[tokio::test]
async fn addition_before_the_last_one_is_found_by_a_full_read() {
    for (store, test) in both().await {
        let replica = SuppressionCache::new(store.clone());
        let row = |address: AddressHash| SuppressionRow {
            kind: SuppressionList::Suppressed.kind(Channel::Email),
            address: address.to_vec(),
            category: String::new(),
            reason: "mailbox_unknown".to_owned(),
        };
        let before = NOW.0;
        store
            .suppress(&[row(hash("eve@example.com"))])
            .await
            .expect("no error");
        let written = store
            .suppression_changes(false, Timestamp(before), 9)
            .await
            .expect("no error");
        assert!(
            written[0].at > NOW.plus(DAY),
            "the time is that of the database"
        );
        replica.sync().await.expect("no error");
        suppress_at(&store, &test, &[row(hash(ADA))], NOW).await;
        execute(
            &test.database,
            "UPDATE notify_suppression SET at = at - 3600000",
        )
        .await;
        replica.sync().await.expect("no error");
        let seen = async || {
            replica
                .is_suppressed(Channel::Email, &ada())
                .await
                .expect("found")
        };
        assert!(!seen().await, "the clock of the database was set back");
        replica.rewind();
        replica.sync().await.expect("no error");
        assert!(seen().await);
    }
}

#[tokio::test]
async fn address_leaves_one_category_and_returns() {
    for (store, _database) in both().await {
        let replicas = [(); 2].map(|()| SuppressionCache::new(store.clone()));
        let [one, other] = &replicas;
        one.unsubscribe(Channel::Email, hash(ADA), "news", "complained")
            .await
            .expect("no error");
        let left = async |channel, category| {
            other.sync().await.expect("no error");
            other
                .has_left(channel, &ada(), category)
                .await
                .expect("found")
        };
        assert!(left(Channel::Email, "news").await);
        assert!(!left(Channel::Email, "jobs").await);
        assert!(!left(Channel::Push, "news").await);
        assert!(
            !other
                .is_suppressed(Channel::Email, &ada())
                .await
                .expect("found")
        );
        one.resubscribe(Channel::Email, hash(ADA), "jobs")
            .await
            .expect("no error");
        assert!(left(Channel::Email, "news").await);
        one.resubscribe(Channel::Email, hash(ADA), "news")
            .await
            .expect("no error");
        assert!(!left(Channel::Email, "news").await);
    }
}
