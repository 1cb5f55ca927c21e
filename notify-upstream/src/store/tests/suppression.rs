//! The lists of addresses that get nothing, and how one comes off them, in every replica.

use super::*;
use crate::address::{Address, EmailAddress, hash};
use crate::delivery::suppression::{SuppressionCache, SuppressionList};
use postern_common::Clock;

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
async fn an_address_comes_off_the_list_in_every_replica_and_may_come_back() {
    for (store, _database) in both().await {
        let clock = Clock::manual(NOW);
        let replicas = [(); 2].map(|()| SuppressionCache::new(store.clone(), clock.clone()));
        let look = async || {
            let mut seen = Vec::new();
            for replica in &replicas {
                replica.sync().await.expect("looks");
                let suppressed = replica
                    .is_suppressed(Channel::Email, &ada())
                    .await
                    .expect("known");
                seen.push((
                    suppressed,
                    replica
                        .is_unsubscribed(Channel::Email, &ada())
                        .await
                        .expect("known"),
                ));
            }
            seen
        };
        replicas[0].add(Channel::Email, &ada(), "mailbox_unknown");
        replicas[1]
            .unsubscribe(&[hash(ADA)])
            .await
            .expect("durable");
        look().await;
        assert_eq!(look().await, [(true, true); 2]);
        clock.advance(std::time::Duration::from_secs(3600));
        assert_eq!(
            store
                .lift(&filter(SuppressionList::Suppressed), clock.now())
                .await
                .expect("lifts"),
            1
        );
        assert_eq!(look().await, [(false, true); 2], "of one list alone");
        let fresh = SuppressionCache::new(store.clone(), clock.clone());
        fresh.sync().await.expect("looks");
        assert!(
            !fresh
                .is_suppressed(Channel::Email, &ada())
                .await
                .expect("known")
        );
        assert!(
            fresh
                .is_unsubscribed(Channel::Email, &ada())
                .await
                .expect("known")
        );
        replicas[1].add(Channel::Email, &ada(), "mailbox_unknown");
        look().await;
        assert_eq!(look().await, [(true, true); 2], "it bounced again");
        for list in [SuppressionList::Suppressed, SuppressionList::Unsubscribed] {
            assert_eq!(
                store.lift(&filter(list), clock.now()).await.expect("lifts"),
                1
            );
        }
        assert_eq!(look().await, [(false, false); 2]);
    }
}

#[tokio::test]
async fn the_lists_tell_who_since_when_and_why() {
    for (store, _database) in both().await {
        let later = NOW.plus(std::time::Duration::from_secs(60));
        let row = |list: SuppressionList, channel, byte: u8, why: &str| SuppressionRow {
            kind: list.kind(channel),
            address: vec![byte; 32],
            reason: why.to_owned(),
        };
        let early = [
            row(
                SuppressionList::Suppressed,
                Channel::Email,
                1,
                "mailbox_unknown",
            ),
            row(
                SuppressionList::Suppressed,
                Channel::Sms,
                2,
                "number_unknown",
            ),
        ];
        store.suppress(&early, NOW).await.expect("notes");
        let late = [row(
            SuppressionList::Unsubscribed,
            Channel::Email,
            1,
            "unsubscribed",
        )];
        store.suppress(&late, later).await.expect("notes");
        let all = SuppressionQuery {
            kinds: (0..16).collect(),
            limit: 9,
            ..SuppressionQuery::default()
        };
        let found = store.suppressed(&all).await.expect("lists");
        let told: Vec<_> = found
            .iter()
            .map(|entry| {
                (
                    SuppressionList::of_kind(entry.kind).expect("known"),
                    entry.address[0],
                    entry.at,
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                ((SuppressionList::Suppressed, Channel::Email), 1, NOW),
                ((SuppressionList::Suppressed, Channel::Sms), 2, NOW),
                ((SuppressionList::Unsubscribed, Channel::Email), 1, later),
            ]
        );
        assert_eq!(found[1].reason, "number_unknown");
        for (narrowed, count) in [
            (
                SuppressionQuery {
                    address: Some([1; 32]),
                    ..all.clone()
                },
                2,
            ),
            (
                SuppressionQuery {
                    reason: Some("number_unknown".to_owned()),
                    ..all.clone()
                },
                1,
            ),
            (
                SuppressionQuery {
                    since: Some(later),
                    ..all.clone()
                },
                1,
            ),
            (
                SuppressionQuery {
                    until: Some(later),
                    ..all.clone()
                },
                2,
            ),
            (
                SuppressionQuery {
                    limit: 1,
                    ..all.clone()
                },
                1,
            ),
            (
                SuppressionQuery {
                    kinds: Vec::new(),
                    ..all.clone()
                },
                0,
            ),
        ] {
            assert_eq!(
                store.suppressed(&narrowed).await.expect("lists").len(),
                count,
                "{narrowed:?}"
            );
        }
        let one = SuppressionQuery {
            limit: 1,
            ..all.clone()
        };
        assert_eq!(
            store.lift(&one, later).await.expect("lifts"),
            1,
            "no more than asked for"
        );
        assert_eq!(store.suppressed(&all).await.expect("lists").len(), 2);
        assert_eq!(
            store.lifted_since(later, 9).await.expect("looks"),
            [SuppressionChange {
                kind: 0,
                address: vec![1; 32],
                at: later,
            }]
        );
        store
            .maintain(NOW, later.plus(std::time::Duration::from_secs(1)))
            .await
            .expect("keeps");
        assert!(
            store
                .lifted_since(Timestamp(0), 9)
                .await
                .expect("looks")
                .is_empty()
        );
    }
}

#[tokio::test]
async fn a_list_longer_than_a_page_is_read_to_its_end() {
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
                .expect("notes");
        }
        let (mut seen, mut since) = (std::collections::BTreeSet::new(), Timestamp(0));
        for _ in 0..9 {
            let page = store.suppressed_since(since, 3).await.expect("reads");
            seen.extend(page.iter().map(|row| row.address[0]));
            since = crate::delivery::suppression::read_to(&page, 3).max(since);
        }
        assert_eq!(seen.len(), 6);
    }
}
