//! Tests of dispatch over both stores.

mod clocks;
mod events;
mod fairness;
mod faults;
mod outage;
mod pauses;
mod priorities;
mod replicas;
mod store_outage;

use std::time::Duration;

use postern_core::Code;
use postern_core::clock::Timestamp;
use postern_core::testing::assert_members;
use postern_service::http::BudgetPermit;
use serde_json::json;

use super::*;
use crate::notification::NotificationId;
use crate::testing::{START, TestReplica, after, draft, stores};

fn clock() -> Clock {
    Clock::manual(START)
}

fn event_types(view: &serde_json::Value) -> Vec<String> {
    let events = view["events"].as_array().expect("events");
    events
        .iter()
        .map(|event| event["type"].as_str().expect("type").to_owned())
        .collect()
}

#[tokio::test]
async fn accepted_notification_is_attempted_and_sent() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 8).await;
        let id = rig.accept(Priority::Normal).await;
        assert_eq!(
            (
                rig.view(id).await["status"].as_str(),
                rig.script.calls().len()
            ),
            (Some("QUEUED"), 0)
        );
        assert_eq!(rig.step().await, 1);
        let view = rig.view(id).await;
        assert_members(&view, &json!({"status": "SENT", "attempts": 1}));
        assert_eq!(event_types(&view), ["QUEUED", "ATTEMPTED", "SENT"]);
        assert_eq!(view["events"][2]["provider"], "script");
        assert_eq!(rig.script.calls(), [id]);
        assert_eq!(
            rig.dispatch_state
                .channel(Channel::Email)
                .permits()
                .in_use(),
            0
        );
    }
}

#[tokio::test]
async fn order_is_strict_and_fifo_within_a_priority() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 1).await;
        let mut by_priority: Vec<Vec<NotificationId>> = vec![Vec::new(); 4];
        for round in 0..24 {
            let priority = Priority::ALL[3 - round % 4];
            let id = rig.accept(priority).await;
            by_priority[priority.index()].push(id);
        }
        for _ in 0..24 {
            rig.step().await;
        }
        assert_eq!(rig.script.calls(), by_priority.concat());
    }
}

#[tokio::test]
async fn recovered_rows_do_not_pause_low() {
    for (store, _database) in stores().await {
        let clock = clock();
        let mut frozen = TestReplica::new(&store, &clock, 8).await;
        let _gate = frozen.script.hold();
        let mut second = TestReplica::new(&store, &clock, 8).await;
        let ids = [
            frozen.accept(Priority::Normal).await,
            frozen.accept(Priority::Low).await,
        ];
        for _ in 0..2 {
            frozen.dispatcher.claim_available().await.expect("no error");
        }
        let throttle =
            |rig: &TestReplica| rig.dispatch_state.channel(Channel::Email).low_throttle();
        for _ in 0..13 {
            clock.advance(Duration::from_secs(1));
            second.workers.step().await.expect("lease renewal succeeds");
            second.step().await;
            assert_eq!(
                throttle(&second),
                LowPriorityThrottle::Off,
                "the age of recovered rows is not load"
            );
        }
        for id in ids {
            assert_eq!(second.view(id).await["status"], "SENT");
        }
    }
}

#[tokio::test]
async fn failed_attempts_are_retried_when_due() {
    for (store, _database) in stores().await {
        let clock = clock();
        let mut rig = TestReplica::new(&store, &clock, 8).await;
        rig.script.refuse(&["451 4.3.0", "421 4.7.0"]);
        let id = rig.accept(Priority::Normal).await;
        rig.step().await;
        let view = rig.view(id).await;
        assert_members(
            &view,
            &json!({"status": "QUEUED", "waitReason": "RETRY", "attempts": 1}),
        );
        let due = Timestamp::parse(view["nextAttemptAt"].as_str().expect("an instant"))
            .expect("RFC 3339");
        assert!(due > START && due <= after(15), "{due}");
        for _ in 0..2 {
            for _ in 0..30 {
                clock.advance(Duration::from_secs(2));
                rig.workers.step().await.expect("lease renewal succeeds");
            }
            rig.mover.step().await.expect("no error");
            rig.step().await;
        }
        let view = rig.view(id).await;
        assert_members(&view, &json!({"status": "SENT", "attempts": 3}));
        let expected = [
            "QUEUED",
            "ATTEMPTED",
            "RETRYING",
            "ATTEMPTED",
            "RETRYING",
            "ATTEMPTED",
            "SENT",
        ];
        assert_eq!(event_types(&view), expected);
    }
}

#[tokio::test]
async fn permanent_failure_is_a_dead_letter_and_suppresses() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 8).await;
        rig.script.refuse(&["550 5.1.1"]);
        let first = rig.accept(Priority::Normal).await;
        rig.step().await;
        let view = rig.view(first).await;
        assert_members(
            &view,
            &json!({"status": "FAILED", "reason": "MAILBOX_UNKNOWN"}),
        );
        let second = rig.accept(Priority::Normal).await;
        rig.step().await;
        assert_eq!(rig.view(second).await["reason"], "ADDRESS_SUPPRESSED");
        assert_eq!(rig.script.calls(), [first]);
        let all = crate::store::DeadFilter {
            limit: 10,
            ..Default::default()
        };
        assert_eq!(store.dead_letters(&all).await.expect("no error").len(), 2);
    }
}

#[tokio::test]
async fn late_priority_is_promoted_instead_of_starved() {
    for (store, _database) in stores().await {
        let clock = clock();
        let mut rig = TestReplica::new(&store, &clock, 4).await;
        let normal = rig.accept(Priority::Normal).await;
        let mut sent_after = None;
        for second in 0..130_u64 {
            for _ in 0..8 {
                rig.accept(Priority::High).await;
            }
            rig.workers.step().await.expect("lease renewal succeeds");
            rig.step().await;
            if rig.script.calls().contains(&normal) {
                sent_after = Some(second);
                break;
            }
            clock.advance(Duration::from_secs(1));
        }
        assert!(
            sent_after.is_some_and(|second| (119..=125).contains(&second)),
            "{sent_after:?}"
        );
    }
}
