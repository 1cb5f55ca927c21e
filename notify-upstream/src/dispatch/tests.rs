//! Tests of dispatch over both stores.

mod ambiguous;
mod clocks;
mod events;
mod fairness;
mod faults;
mod intake;
mod outage;
mod pauses;
mod priorities;
mod store_outage;
mod wakeups;

use std::time::Duration;

use postern_core::Code;
use postern_core::clock::Timestamp;
use postern_service::http::BudgetPermit;

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
        assert_eq!(
            (&view["status"], &view["attempts"]),
            (&"SENT".into(), &1.into())
        );
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
async fn dead_workers_rows_are_recovered_and_late_result_discarded() {
    for (store, _database) in stores().await {
        let clock = clock();
        let mut first = TestReplica::new(&store, &clock, 8).await;
        let gate = first.script.hold();
        let id = first.accept(Priority::Normal).await;
        first.dispatcher.claim_available().await.expect("no error");
        while first.script.calls().is_empty() {
            tokio::task::yield_now().await;
        }
        let mut second = TestReplica::new(&store, &clock, 8).await;
        for _ in 0..3 {
            clock.advance(Duration::from_secs(3));
            second.workers.step().await.expect("lease renewal succeeds");
        }
        assert_eq!(second.step().await, 0, "within the lease timeout");
        clock.advance(Duration::from_secs(2));
        second.workers.step().await.expect("lease renewal succeeds");
        assert_eq!(second.step().await, 1);
        gate.notify_waiters();
        gate.notify_one();
        first.settle().await;
        let view = second.view(id).await;
        assert_eq!(
            (&view["status"], &view["attempts"]),
            (&"SENT".into(), &2.into())
        );
        assert_eq!(
            event_types(&view),
            [
                "QUEUED",
                "ATTEMPTED",
                "OUTCOME_UNKNOWN",
                "ATTEMPTED",
                "SENT"
            ]
        );
        assert!(!first.workers.is_alive(), "the lease is uncertain");
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
        assert_eq!(
            (&view["status"], &view["waitReason"], &view["attempts"]),
            (&"QUEUED".into(), &"RETRY".into(), &1.into())
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
        assert_eq!(
            (&view["status"], &view["attempts"]),
            (&"SENT".into(), &3.into())
        );
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
        assert_eq!(
            (&view["status"], &view["reason"]),
            (&"FAILED".into(), &"MAILBOX_UNKNOWN".into())
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
async fn scheduled_notification_waits_and_expired_is_not_sent() {
    for (store, _database) in stores().await {
        let clock = clock();
        let mut rig = TestReplica::new(&store, &clock, 8).await;
        let mut later = draft(Priority::High);
        later.request.send_at = Some(after(5));
        later.request.expires_at = Some(after(60));
        let mut short = draft(Priority::High);
        short.request.expires_at = Some(after(2));
        let later = rig.submit(later, None).await.expect("no error").id;
        let short = rig.submit(short, None).await.expect("no error").id;
        assert_eq!(
            (
                &rig.view(later).await["status"],
                &rig.view(later).await["waitReason"]
            ),
            (&"SCHEDULED".into(), &"SCHEDULED".into())
        );
        clock.advance(Duration::from_secs(3));
        assert_eq!(rig.view(short).await["status"], "EXPIRED");
        rig.step().await;
        assert_eq!(
            (
                rig.view(short).await["status"].as_str(),
                rig.script.calls().len()
            ),
            (Some("EXPIRED"), 0)
        );
        clock.advance(Duration::from_secs(2));
        assert_eq!(rig.mover.step().await.expect("no error"), 1);
        rig.step().await;
        assert_eq!(
            (rig.view(later).await["status"].as_str(), rig.script.calls()),
            (Some("SENT"), vec![later])
        );
        assert_eq!(rig.script.mails()[0].sent_at, clock.now());
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

#[tokio::test]
async fn idempotency_key_yields_one_notification() {
    for (store, _database) in stores().await {
        let clock = clock();
        let mut rig = TestReplica::new(&store, &clock, 8).await;
        let first = rig
            .submit(draft(Priority::Normal), Some("k"))
            .await
            .expect("no error");
        assert_eq!(
            rig.submit(draft(Priority::Normal), Some("k"))
                .await
                .expect("the same"),
            first
        );
        let other = rig
            .submit(draft(Priority::High), Some("k"))
            .await
            .expect_err("another body");
        assert_eq!(other.code(), Code::IdempotencyKeyReused);
        rig.step().await;
        assert_eq!(rig.script.calls(), [first.id]);
        clock.advance(Duration::from_secs(24 * 3600 + 1));
        let later = rig
            .submit(draft(Priority::High), Some("k"))
            .await
            .expect("the lock is released");
        assert_ne!(later.id, first.id);
    }
}

#[tokio::test]
async fn replicas_share_work_without_duplicates() {
    for (store, _database) in stores().await {
        let clock = clock();
        let (mut a, mut b) = (
            TestReplica::new(&store, &clock, 4).await,
            TestReplica::new(&store, &clock, 4).await,
        );
        let mut ids = Vec::new();
        for n in 0..40 {
            let rig = if n % 2 == 0 { &mut a } else { &mut b };
            ids.push(rig.accept(Priority::Normal).await);
        }
        for _ in 0..12 {
            a.step().await;
            b.step().await;
        }
        let mut calls = [a.script.calls(), b.script.calls()].concat();
        calls.sort_unstable();
        ids.sort_unstable();
        assert_eq!(calls, ids);
        assert!(!a.script.calls().is_empty() && !b.script.calls().is_empty());
    }
}
