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
use postern_service::http::BudgetPermit;
use postern_store::database::testing::TestDatabase;
use serde_json::json;

use super::*;
use crate::notification::NotificationId;
use crate::testing::{START, TestReplica, after, draft, ok, stores};

fn clock() -> Clock {
    Clock::manual(START)
}

/// Returns a replica over each store, with the given number of permits.
async fn replicas(permits: usize) -> Vec<(TestReplica, TestDatabase)> {
    let mut replicas = Vec::new();
    for (store, database) in stores().await {
        let replica = TestReplica::new(&store, &clock(), permits).await;
        replicas.push((replica, database));
    }
    replicas
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
    for (mut rig, _database) in replicas(8).await {
        let id = rig.accept(Priority::Normal).await;
        assert_eq!(rig.status(id).await, "QUEUED");
        assert_eq!(rig.script.calls(), []);
        assert_eq!(rig.step().await, 1);
        let sent = json!({"status": "SENT", "attempts": 1});
        let view = rig.assert_view(id, sent).await;
        assert_eq!(event_types(&view), ["QUEUED", "ATTEMPTED", "SENT"]);
        assert_eq!(view["events"][2]["provider"], "script");
        assert_eq!(rig.script.calls(), [id]);
        let channel = rig.dispatch_state.channel(Channel::Email);
        assert_eq!(channel.permits.in_use(), 0);
    }
}

#[tokio::test]
async fn order_is_strict_and_fifo_within_a_priority() {
    for (mut rig, _database) in replicas(1).await {
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
            frozen.claim().await;
        }
        for _ in 0..13 {
            second.advance(1).await;
            second.step().await;
            let flow = second.dispatch_state.channel(Channel::Email).flow();
            let no_load = "the age of recovered rows is not load";
            assert_eq!(flow.low_throttle, LowPriorityThrottle::Off, "{no_load}");
        }
        for id in ids {
            assert_eq!(second.status(id).await, "SENT");
        }
    }
}

#[tokio::test]
async fn failed_attempts_are_retried_when_due() {
    for (mut rig, _database) in replicas(8).await {
        rig.script.refuse(&["451 4.3.0", "421 4.7.0"]);
        let id = rig.accept(Priority::Normal).await;
        rig.step().await;
        let waits = json!({"status": "QUEUED", "waitReason": "RETRY", "attempts": 1});
        let view = rig.assert_view(id, waits).await;
        let due = view["nextAttemptAt"].as_str().and_then(Timestamp::parse);
        let due = due.expect("an instant");
        assert!(due > START && due <= after(15), "{due}");
        for _ in 0..2 {
            for _ in 0..30 {
                rig.advance(2).await;
            }
            ok(rig.mover.step()).await;
            rig.step().await;
        }
        let sent = json!({"status": "SENT", "attempts": 3});
        let view = rig.assert_view(id, sent).await;
        let retried = ["ATTEMPTED", "RETRYING"].repeat(2);
        let expected = [&["QUEUED"], &retried[..], &["ATTEMPTED", "SENT"]].concat();
        assert_eq!(event_types(&view), expected);
    }
}

#[tokio::test]
async fn permanent_failure_is_a_dead_letter_and_suppresses() {
    for (mut rig, _database) in replicas(8).await {
        rig.script.refuse(&["550 5.1.1"]);
        let first = rig.accept(Priority::Normal).await;
        rig.step().await;
        let failed = json!({"status": "FAILED", "reason": "MAILBOX_UNKNOWN"});
        rig.assert_view(first, failed).await;
        let second = rig.accept(Priority::Normal).await;
        rig.step().await;
        assert_eq!(rig.view(second).await["reason"], "ADDRESS_SUPPRESSED");
        assert_eq!(rig.script.calls(), [first]);
        let all = crate::store::DeadFilter {
            limit: 10,
            ..Default::default()
        };
        assert_eq!(ok(rig.store.dead_letters(&all)).await.len(), 2);
    }
}

#[tokio::test]
async fn late_priority_is_promoted_instead_of_starved() {
    for (mut rig, _database) in replicas(4).await {
        let normal = rig.accept(Priority::Normal).await;
        let mut seconds = 0;
        while !rig.script.calls().contains(&normal) && seconds < 130 {
            for _ in 0..8 {
                rig.accept(Priority::High).await;
            }
            rig.step().await;
            rig.advance(1).await;
            seconds += 1;
        }
        assert!((120..=126).contains(&seconds), "{seconds}");
    }
}
