//! Tests of dispatch while a provider, a template or an account fails.

use postern_core::testing::assert_members;

use super::*;
use crate::notification::order_at;
use crate::store::DeadFilter;
use crate::testing::{execute, mailbox, templates_of};

/// Submits a message to an address.
async fn submit_to(rig: &mut TestReplica, address: &str, priority: Priority) -> NotificationId {
    let mut draft = draft(priority);
    draft.request.recipient = mailbox(address).into();
    ok(rig.submit(draft, None)).await.id
}

#[tokio::test]
async fn refused_recipients_of_one_caller_do_not_affect_others() {
    for (mut rig, _database) in replicas(64).await {
        rig.script.refuse_recipients("evil.example");
        for n in 0..40 {
            let address = format!("a{n}@x{n}.evil.example");
            submit_to(&mut rig, &address, Priority::Critical).await;
        }
        rig.step().await;
        let id = rig.accept(Priority::Normal).await;
        rig.step().await;
        assert_eq!(rig.status(id).await, "SENT");
        // A probe that is refused because of its recipient shows that the provider answers.
        rig.open_breaker(Priority::High).await;
        submit_to(&mut rig, "a@evil.example", Priority::Critical).await;
        let id = rig.accept(Priority::Normal).await;
        rig.step().await;
        let is_open = "the circuit breaker is open";
        assert_eq!(rig.status(id).await, "QUEUED", "{is_open}");
        rig.advance(2).await;
        for _ in 0..3 {
            rig.step().await;
        }
        assert_eq!(rig.status(id).await, "SENT");
    }
}

#[tokio::test]
async fn retries_end_with_the_retry_window() {
    for (mut rig, _database) in replicas(8).await {
        rig.script.refuse(&["451"; 4]);
        let id = rig.accept(Priority::Critical).await;
        let mut later = draft(Priority::Critical);
        later.request.send_at = Some(after(7 * 3600));
        rig.step().await;
        rig.pass(7 * 1800).await;
        let view = rig.view(id).await;
        assert_eq!(view["waitReason"], "RETRY", "within the retry window");
        let later = ok(rig.submit(later, None)).await.id;
        rig.pass(7 * 1800).await;
        assert_eq!(rig.status(id).await, "FAILED", "beyond the retry window");
        let scheduled = "the window starts at the scheduled time";
        let view = rig.view(later).await;
        assert_eq!(view["waitReason"], "RETRY", "{scheduled}");
    }
}

#[tokio::test]
async fn missing_or_failing_template_is_retried() {
    for (mut rig, _database) in replicas(8).await {
        let sound = rig.templates.load_full();
        let other = [("template.toml", "version = 1"), ("sms.en.txt", "Hi")];
        let fails = [
            ("template.toml", "version = 7"),
            ("email.en.subject", "Hello {{ nickname }}"),
            ("email.en.txt", "Hello {{ nickname }}"),
        ];
        // The version is that of the failed attempt, otherwise of acceptance.
        for (set, code, version) in [
            (templates_of("other", &other), "template_gone", 1),
            (templates_of("welcome", &fails), "template_failed", 7),
        ] {
            rig.templates.store(Arc::new(set));
            let id = rig.accept(Priority::Normal).await;
            rig.step().await;
            let view = rig.view(id).await;
            let last = view["events"].as_array().and_then(|events| events.last());
            assert_members(
                last.expect("an event"),
                &json!({"type": "RETRYING", "code": code}),
            );
            assert_eq!(view["templateVersion"], version);
            rig.templates.store(Arc::clone(&sound));
            rig.pass(61).await;
            let sent = json!({"status": "SENT", "templateVersion": 1});
            rig.assert_view(id, sent).await;
        }
    }
}

#[tokio::test]
async fn replay_restores_attempts_and_retry_window() {
    for (store, test) in stores().await {
        for made in [2, 30] {
            let mut rig = TestReplica::new(&store, &clock(), 8).await;
            rig.script.refuse(&["451"; 3]);
            let id = rig.accept(Priority::Critical).await;
            rig.step().await;
            rig.pass(7 * 3600).await;
            assert_eq!(rig.status(id).await, "FAILED", "the retry window has ended");
            let made = format!("UPDATE notify_dead SET attempt = {made}");
            execute(&test.database, &made).await;
            let one = DeadFilter {
                id: Some(id),
                limit: 1,
                ..DeadFilter::default()
            };
            let now = rig.clock.now();
            assert_eq!(ok(store.replay(&one, order_at(now), now)).await, 1);
            rig.step().await;
            let waits = json!({"status": "QUEUED", "waitReason": "RETRY"});
            rig.assert_view(id, waits).await;
            rig.pass(3600).await;
            assert_eq!(rig.status(id).await, "SENT");
            assert_eq!(rig.script.calls(), [id; 4]);
        }
    }
}

#[tokio::test]
async fn unrecorded_attempts_are_bounded() {
    for (mut rig, test) in replicas(8).await {
        let ids = [
            rig.accept(Priority::Critical).await,
            rig.accept(Priority::Normal).await,
        ];
        execute(&test.database, "UPDATE notify_queue SET attempt = 20").await;
        rig.step().await;
        assert_eq!(rig.script.calls(), ids[..1]);
        let failed = json!({"status": "FAILED", "reason": "ATTEMPTS_EXHAUSTED"});
        rig.assert_view(ids[1], failed).await;
    }
}

#[tokio::test]
async fn open_breaker_keeps_attempts_of_its_addresses() {
    for (store, _database) in stores().await {
        let (mut rig, other) = TestReplica::beside_another(&store, &clock(), 16).await;
        rig.script.refuse(&["451"; 200]);
        for _ in 0..10 {
            rig.accept(Priority::Critical).await;
        }
        rig.step().await;
        let id = rig.accept(Priority::Normal).await;
        let elsewhere = submit_to(&mut rig, "ada@other.example", Priority::Normal).await;
        rig.step().await;
        let calls = other.calls();
        assert_eq!(calls, [elsewhere], "undeliverable rows do not block others");
        // Checks for an hour, many more than the maximum number of attempts.
        for _ in 0..60 {
            rig.pass(60).await;
        }
        let mut calls = rig.script.calls();
        calls.retain(|called| *called == id);
        let calls = calls.len();
        let waits = json!({"status": "QUEUED", "attempts": calls, "waitReason": "RETRY"});
        let view = rig.assert_view(id, waits).await;
        assert!(view["nextAttemptAt"].is_string(), "{view}");
        let events = event_types(&view).len();
        assert_eq!(events, 1 + 2 * calls, "no attempt is reported: {view}");
        rig.script.recover();
        for _ in 0..20 {
            rig.pass(60).await;
        }
        assert_eq!(rig.status(id).await, "SENT");
    }
}
