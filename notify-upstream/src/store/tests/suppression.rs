//! Tests of the suppression lists in several replicas.

use super::*;
use crate::address::{Address, hash};
use crate::delivery::suppression::{SuppressionCache, SuppressionList};
use postern_common::Clock;
use postern_common::email::EmailAddress;

const ADA: &str = "ada@example.com";

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
        let clock = Clock::manual(NOW);
        let replicas = [(); 2].map(|()| SuppressionCache::new(store.clone(), clock.clone()));
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
                        .is_unsubscribed(Channel::Email, &ada())
                        .await
                        .expect("the lookup succeeds"),
                ));
            }
            seen
        };
        replicas[0].add(Channel::Email, &ada(), "mailbox_unknown");
        replicas[1]
            .unsubscribe(&[hash(ADA)])
            .await
            .expect("the commit succeeds");
        look().await;
        assert_eq!(look().await, [(true, true); 2]);
        clock.advance(std::time::Duration::from_secs(3600));
        assert_eq!(
            store
                .remove_suppressed(&filter(SuppressionList::Suppressed), clock.now())
                .await
                .expect("no error"),
            1
        );
        assert_eq!(
            look().await,
            [(false, true); 2],
            "removed from one list only"
        );
        let fresh = SuppressionCache::new(store.clone(), clock.clone());
        fresh.sync().await.expect("no error");
        assert!(
            !fresh
                .is_suppressed(Channel::Email, &ada())
                .await
                .expect("the lookup succeeds")
        );
        assert!(
            fresh
                .is_unsubscribed(Channel::Email, &ada())
                .await
                .expect("the lookup succeeds")
        );
        replicas[1].add(Channel::Email, &ada(), "mailbox_unknown");
        look().await;
        assert_eq!(look().await, [(true, true); 2], "suppressed again");
        for list in [SuppressionList::Suppressed, SuppressionList::Unsubscribed] {
            assert_eq!(
                store
                    .remove_suppressed(&filter(list), clock.now())
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

/// Adds two suppressed addresses at [`NOW`] and an unsubscribed one at `later`.
async fn suppress_three(store: &Store, later: Timestamp) {
    let row = |list: SuppressionList, channel, byte: u8, reason: &str| SuppressionRow {
        kind: list.kind(channel),
        address: vec![byte; 32],
        reason: reason.to_owned(),
    };
    let suppressed = SuppressionList::Suppressed;
    let early = [
        row(suppressed, Channel::Email, 1, "mailbox_unknown"),
        row(suppressed, Channel::Sms, 2, "number_unknown"),
    ];
    store.suppress(&early, NOW).await.expect("no error");
    let unsubscribed = SuppressionList::Unsubscribed;
    let late = [row(unsubscribed, Channel::Email, 1, "unsubscribed")];
    store.suppress(&late, later).await.expect("no error");
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
    for (store, _database) in both().await {
        let later = NOW.plus(std::time::Duration::from_secs(60));
        suppress_three(&store, later).await;
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
        assert_eq!(
            store
                .remove_suppressed(&one, later)
                .await
                .expect("no error"),
            1,
            "at most the limit"
        );
        assert_eq!(
            store
                .suppression_entries(&all)
                .await
                .expect("no error")
                .len(),
            2
        );
        assert_eq!(
            store.removals_since(later, 9).await.expect("no error"),
            [SuppressionChange {
                kind: 0,
                address: vec![1; 32],
                at: later,
            }]
        );
        store
            .maintain(NOW, later.plus(std::time::Duration::from_secs(1)))
            .await
            .expect("no error");
        assert!(
            store
                .removals_since(Timestamp(0), 9)
                .await
                .expect("no error")
                .is_empty()
        );
    }
}

#[tokio::test]
async fn list_longer_than_a_page_is_read_completely() {
    for (store, _database) in both().await {
        for (byte, second) in (0..6_u8).zip(0..) {
            let rows = [SuppressionRow {
                kind: 0,
                address: vec![byte; 32],
                reason: "why".to_owned(),
            }];
            store
                .suppress(&rows, NOW.plus(std::time::Duration::from_secs(second)))
                .await
                .expect("no error");
        }
        let (mut seen, mut since) = (std::collections::BTreeSet::new(), Timestamp(0));
        for _ in 0..9 {
            let page = store.additions_since(since, 3).await.expect("no error");
            seen.extend(page.iter().map(|row| row.address[0]));
            since = crate::delivery::suppression::next_read_position(&page, 3).max(since);
        }
        assert_eq!(seen.len(), 6);
    }
}
