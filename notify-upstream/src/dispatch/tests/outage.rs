//! Tests of dispatch while a provider, a template or an account fails.

use postern_core::email::EmailAddress;
use postern_core::testing::assert_members;

use super::*;
use crate::address::Address;
use crate::notification::order_at;
use crate::store::DeadFilter;
use crate::testing::{execute, templates_of};

/// Advances the clock and renews the lease at the end.
async fn advance_time(rig: &TestReplica, seconds: u64) {
    rig.clock.advance(Duration::from_secs(seconds));
    rig.workers.step().await.expect("lease renewal succeeds");
}

#[tokio::test]
async fn refused_recipients_of_one_caller_do_not_affect_others() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 64).await;
        rig.script.refuse_recipients(".evil.example");
        let evil = |n: usize, priority| {
            let mut draft = draft(priority);
            let address = EmailAddress::parse(&format!("a{n}@x{n}.evil.example")).expect("address");
            draft.request.recipient = Address::Email(address).into();
            draft
        };
        for n in 0..40 {
            rig.submit(evil(n, Priority::Critical), None)
                .await
                .expect("no error");
        }
        rig.step().await;
        let id = rig.accept(Priority::Normal).await;
        rig.step().await;
        assert_eq!(rig.view(id).await["status"], "SENT");
        // A probe that is refused because of its recipient shows that the provider answers.
        rig.script.refuse(&["451"; 10]);
        for _ in 0..10 {
            rig.accept(Priority::High).await;
        }
        rig.step().await;
        rig.submit(evil(0, Priority::Critical), None)
            .await
            .expect("no error");
        let id = rig.accept(Priority::Normal).await;
        rig.step().await;
        assert_eq!(
            rig.view(id).await["status"],
            "QUEUED",
            "the circuit breaker is open"
        );
        advance_time(&rig, 2).await;
        for _ in 0..3 {
            rig.step().await;
        }
        assert_eq!(rig.view(id).await["status"], "SENT");
    }
}

#[tokio::test]
async fn retries_end_with_the_retry_window() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 8).await;
        rig.script.refuse(&["451"; 4]);
        let id = rig.accept(Priority::Critical).await;
        let mut later = draft(Priority::Critical);
        later.request.send_at = Some(after(7 * 3600));
        rig.step().await;
        advance_time(&rig, 7 * 1800).await;
        rig.mover.step().await.expect("no error");
        rig.step().await;
        assert_eq!(
            rig.view(id).await["waitReason"],
            "RETRY",
            "within the retry window"
        );
        let later = rig.submit(later, None).await.expect("no error").id;
        advance_time(&rig, 7 * 1800).await;
        rig.mover.step().await.expect("no error");
        rig.step().await;
        assert_eq!(
            rig.view(id).await["status"],
            "FAILED",
            "beyond the retry window"
        );
        assert_eq!(
            rig.view(later).await["waitReason"],
            "RETRY",
            "the window starts at the scheduled time"
        );
    }
}

#[tokio::test]
async fn missing_or_failing_template_is_retried() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 8).await;
        let sound = rig.templates.load_full();
        let other = templates_of(
            "other",
            &[
                ("template.toml", "version = 1"),
                ("email.en.subject", "Hi"),
                ("email.en.txt", "Hi"),
            ],
        );
        let fails = [
            ("template.toml", "version = 7"),
            ("email.en.subject", "Hello {{ nickname }}"),
            ("email.en.txt", "Hello {{ nickname }}"),
        ];
        for (set, code) in [
            (other, "template_gone"),
            (templates_of("welcome", &fails), "template_failed"),
        ] {
            rig.templates.store(Arc::new(set));
            let id = rig.accept(Priority::Normal).await;
            rig.step().await;
            let view = rig.view(id).await;
            let last = view["events"]
                .as_array()
                .and_then(|events| events.last())
                .expect("an event");
            assert_eq!(
                (&last["type"], &last["code"]),
                (&"RETRYING".into(), &code.into())
            );
            let version = if code == "template_failed" { 7 } else { 1 };
            assert_eq!(
                view["templateVersion"], version,
                "version of the failed attempt, otherwise of acceptance"
            );
            rig.templates.store(Arc::clone(&sound));
            advance_time(&rig, 61).await;
            rig.mover.step().await.expect("no error");
            rig.step().await;
            let view = rig.view(id).await;
            assert_members(&view, &json!({"status": "SENT", "templateVersion": 1}));
        }
    }
}

async fn replay(rig: &TestReplica, id: NotificationId) {
    let one = DeadFilter {
        id: Some(id),
        limit: 1,
        ..DeadFilter::default()
    };
    let now = rig.clock.now();
    assert_eq!(
        rig.store
            .replay(&one, order_at(now), now)
            .await
            .expect("no error"),
        1
    );
}

#[tokio::test]
async fn replay_restores_attempts_and_retry_window() {
    for (store, test) in stores().await {
        for made in [2, 30] {
            let mut rig = TestReplica::new(&store, &clock(), 8).await;
            rig.script.refuse(&["451"; 3]);
            let id = rig.accept(Priority::Critical).await;
            rig.step().await;
            advance_time(&rig, 7 * 3600).await;
            rig.mover.step().await.expect("no error");
            rig.step().await;
            assert_eq!(
                rig.view(id).await["status"],
                "FAILED",
                "the retry window has ended"
            );
            execute(
                &test.database,
                &format!("UPDATE notify_dead SET attempt = {made}"),
            )
            .await;
            replay(&rig, id).await;
            rig.step().await;
            let view = rig.view(id).await;
            assert_members(&view, &json!({"status": "QUEUED", "waitReason": "RETRY"}));
            advance_time(&rig, 3600).await;
            rig.mover.step().await.expect("no error");
            rig.step().await;
            assert_eq!(
                (&rig.view(id).await["status"], rig.script.calls()),
                (&"SENT".into(), vec![id; 4])
            );
        }
    }
}

#[tokio::test]
async fn unrecorded_attempts_are_bounded() {
    for (store, test) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 8).await;
        let ids = [
            rig.accept(Priority::Critical).await,
            rig.accept(Priority::Normal).await,
        ];
        execute(&test.database, "UPDATE notify_queue SET attempt = 20").await;
        rig.step().await;
        assert_eq!(rig.script.calls(), ids[..1]);
        let view = rig.view(ids[1]).await;
        assert_members(
            &view,
            &json!({"status": "FAILED", "reason": "ATTEMPTS_EXHAUSTED"}),
        );
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
        let mut elsewhere = draft(Priority::Normal);
        let address = EmailAddress::parse("ada@other.example").expect("address");
        elsewhere.request.recipient = Address::Email(address).into();
        let elsewhere = rig.submit(elsewhere, None).await.expect("no error").id;
        rig.step().await;
        assert_eq!(
            other.calls(),
            [elsewhere],
            "undeliverable rows do not block others"
        );
        // Checks for an hour, many more than the maximum number of attempts.
        for _ in 0..60 {
            advance_time(&rig, 60).await;
            rig.mover.step().await.expect("no error");
            rig.step().await;
        }
        let view = rig.view(id).await;
        let attempts = view["attempts"].as_u64().expect("a number");
        let calls = rig
            .script
            .calls()
            .iter()
            .filter(|called| **called == id)
            .count();
        assert_eq!(
            (view["status"].as_str(), attempts),
            (Some("QUEUED"), calls as u64),
            "{view}"
        );
        assert_eq!(
            event_types(&view).len(),
            1 + 2 * calls,
            "no attempt is reported: {view}"
        );
        assert!(
            view["nextAttemptAt"].is_string() && view["waitReason"] == "RETRY",
            "{view}"
        );
        rig.script.recover();
        for _ in 0..20 {
            advance_time(&rig, 60).await;
            rig.mover.step().await.expect("no error");
            rig.step().await;
        }
        assert_eq!(rig.view(id).await["status"], "SENT");
    }
}
