//! The lists of addresses that get nothing, and how one comes off them, in every replica.

use super::*;
use crate::address::{Address, EmailAddress, hash};
use crate::delivery::suppression::{List, Suppression};
use postern_common::Clock;

const ADA: &str = "ada@example.com";

fn ada() -> Address {
    Address::Email(EmailAddress::parse(ADA).expect("an address"))
}

fn filter(list: List) -> SuppressedFilter {
    SuppressedFilter {
        kinds: vec![list.kind(Channel::Email)],
        limit: 100,
        ..SuppressedFilter::default()
    }
}

#[tokio::test]
async fn an_address_comes_off_the_list_in_every_replica_and_may_come_back() {
    for (store, _database) in both().await {
        let clock = Clock::manual(NOW);
        let replicas = [(); 2].map(|()| Suppression::new(store.clone(), clock.clone()));
        let look = async || {
            let mut seen = Vec::new();
            for replica in &replicas {
                replica.step().await.expect("looks");
                let holds = replica.holds(Channel::Email, &ada()).await.expect("known");
                seen.push((
                    holds,
                    replica
                        .is_unsubscribed(Channel::Email, &ada())
                        .await
                        .expect("known"),
                ));
            }
            seen
        };
        replicas[0].note(Channel::Email, &ada(), "mailbox_unknown");
        replicas[1]
            .unsubscribe(&[hash(ADA)])
            .await
            .expect("durable");
        look().await;
        assert_eq!(look().await, [(true, true); 2]);
        clock.advance(std::time::Duration::from_secs(3600));
        assert_eq!(
            store
                .lift(&filter(List::Suppressed), clock.now())
                .await
                .expect("lifts"),
            1
        );
        assert_eq!(look().await, [(false, true); 2], "of one list alone");
        let fresh = Suppression::new(store.clone(), clock.clone());
        fresh.step().await.expect("looks");
        assert!(!fresh.holds(Channel::Email, &ada()).await.expect("known"));
        assert!(
            fresh
                .is_unsubscribed(Channel::Email, &ada())
                .await
                .expect("known")
        );
        replicas[1].note(Channel::Email, &ada(), "mailbox_unknown");
        look().await;
        assert_eq!(look().await, [(true, true); 2], "it bounced again");
        for list in [List::Suppressed, List::Unsubscribed] {
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
        let row = |list: List, channel, byte: u8, why: &str| {
            (list.kind(channel), vec![byte; 32], why.to_owned())
        };
        let early = [
            row(List::Suppressed, Channel::Email, 1, "mailbox_unknown"),
            row(List::Suppressed, Channel::Sms, 2, "number_unknown"),
        ];
        store.suppress(&early, NOW).await.expect("notes");
        let late = [row(List::Unsubscribed, Channel::Email, 1, "unsubscribed")];
        store.suppress(&late, later).await.expect("notes");
        let all = SuppressedFilter {
            kinds: (0..16).collect(),
            limit: 9,
            ..SuppressedFilter::default()
        };
        let found = store.suppressed(&all).await.expect("lists");
        let told: Vec<_> = found
            .iter()
            .map(|entry| {
                (
                    List::of_kind(entry.kind).expect("known"),
                    entry.address[0],
                    entry.at,
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                ((List::Suppressed, Channel::Email), 1, NOW),
                ((List::Suppressed, Channel::Sms), 2, NOW),
                ((List::Unsubscribed, Channel::Email), 1, later),
            ]
        );
        assert_eq!(found[1].reason, "number_unknown");
        for (narrowed, count) in [
            (
                SuppressedFilter {
                    address: Some([1; 32]),
                    ..all.clone()
                },
                2,
            ),
            (
                SuppressedFilter {
                    reason: Some("number_unknown".to_owned()),
                    ..all.clone()
                },
                1,
            ),
            (
                SuppressedFilter {
                    since: Some(later),
                    ..all.clone()
                },
                1,
            ),
            (
                SuppressedFilter {
                    until: Some(later),
                    ..all.clone()
                },
                2,
            ),
            (
                SuppressedFilter {
                    limit: 1,
                    ..all.clone()
                },
                1,
            ),
            (
                SuppressedFilter {
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
        let one = SuppressedFilter {
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
            [(0, vec![1; 32], later.0)]
        );
        store
            .keep_house(NOW, later.plus(std::time::Duration::from_secs(1)))
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
            let rows = [(0, vec![byte; 32], "why".to_owned())];
            store
                .suppress(&rows, NOW.plus(std::time::Duration::from_secs(second)))
                .await
                .expect("notes");
        }
        let (mut seen, mut since) = (std::collections::BTreeSet::new(), Timestamp(0));
        for _ in 0..9 {
            let page = store.suppressed_since(since, 3).await.expect("reads");
            seen.extend(page.iter().map(|(_, address, _)| address[0]));
            since = crate::delivery::suppression::read_to(&page, 3).max(since);
        }
        assert_eq!(seen.len(), 6);
    }
}
