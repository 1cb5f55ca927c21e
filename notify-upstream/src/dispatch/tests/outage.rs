//! What becomes of the work while a provider, a template or an account is in trouble.

use super::*;
use crate::address::{Address, EmailAddress};
use crate::store::DeadFilter;
use crate::testing::{execute, templates_of};

/// Lets so much time pass; the worker is heard of again at its end.
async fn pass_time(rig: &TestReplica, seconds: u64) {
    rig.clock.advance(Duration::from_secs(seconds));
    rig.workers.step().await.expect("renews");
}

#[tokio::test]
async fn a_channel_with_nothing_but_low_recovers_by_itself() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 40).await;
        rig.script.refuse(&["451"; 10]);
        for _ in 0..10 {
            rig.accept(Priority::Low).await;
        }
        rig.step().await;
        assert_eq!(rig.script.calls().len(), 10);
        let id = rig.accept(Priority::Low).await;
        pass_time(&rig, 1).await;
        rig.step().await;
        assert_eq!(
            rig.dispatch_state.channel(Channel::Email).low_throttle(),
            LowPriorityThrottle::Paused
        );
        let view = rig.view(id).await;
        assert_eq!(view["waitReason"], "PROVIDER_UNAVAILABLE", "{view}");
        assert!(view["nextAttemptAt"].is_string(), "{view}");
        for _ in 0..12 {
            pass_time(&rig, 1).await;
            rig.step().await;
        }
        assert_eq!(rig.view(id).await["status"], "SENT");
    }
}

#[tokio::test]
async fn refused_recipients_of_one_caller_stop_nobody_else() {
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
                .expect("accepted");
        }
        rig.step().await;
        let id = rig.accept(Priority::Normal).await;
        rig.step().await;
        assert_eq!(rig.view(id).await["status"], "SENT");
        // A probe that is refused for its recipient shows that the provider is back.
        rig.script.refuse(&["451"; 10]);
        for _ in 0..10 {
            rig.accept(Priority::High).await;
        }
        rig.step().await;
        rig.submit(evil(0, Priority::Critical), None)
            .await
            .expect("accepted");
        let id = rig.accept(Priority::Normal).await;
        rig.step().await;
        assert_eq!(
            rig.view(id).await["status"],
            "QUEUED",
            "the provider is left alone"
        );
        pass_time(&rig, 2).await;
        for _ in 0..3 {
            rig.step().await;
        }
        assert_eq!(rig.view(id).await["status"], "SENT");
    }
}

#[tokio::test]
async fn what_waits_while_nothing_works_keeps_its_attempts_and_one_at_a_time_tries() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 16).await;
        rig.script.refuse(&["451"; 11]);
        for _ in 0..10 {
            rig.accept(Priority::High).await;
        }
        rig.step().await;
        let mut ids = Vec::new();
        for _ in 0..5 {
            ids.push(rig.accept(Priority::High).await);
        }
        rig.step().await;
        assert_eq!(rig.script.calls().len(), 10, "the provider is left alone");
        for id in &ids {
            assert_eq!(
                (
                    &rig.view(*id).await["status"],
                    &rig.view(*id).await["attempts"]
                ),
                (&"QUEUED".into(), &0.into())
            );
        }
        pass_time(&rig, 2).await;
        rig.step().await;
        assert_eq!(rig.script.calls()[10..], ids[..1], "one tries, in vain");
        pass_time(&rig, 3).await;
        rig.step().await;
        assert_eq!(
            rig.script.calls().len(),
            11,
            "and the next waits twice as long"
        );
        pass_time(&rig, 1).await;
        rig.step().await;
        rig.step().await;
        assert_eq!(rig.script.calls()[11..], ids[1..]);
    }
}

#[tokio::test]
async fn repeats_end_a_while_after_acceptance_however_long_each_waited() {
    for (store, _database) in stores().await {
        let mut rig = TestReplica::new(&store, &clock(), 8).await;
        rig.script.refuse(&["451"; 4]);
        let id = rig.accept(Priority::Critical).await;
        let mut later = draft(Priority::Critical);
        later.request.send_at = Some(after(7 * 3600));
        rig.step().await;
        pass_time(&rig, 7 * 1800).await;
        rig.mover.step().await.expect("moves");
        rig.step().await;
        assert_eq!(
            rig.view(id).await["waitReason"],
            "RETRY",
            "within six hours"
        );
        let later = rig.submit(later, None).await.expect("accepted").id;
        pass_time(&rig, 7 * 1800).await;
        rig.mover.step().await.expect("moves");
        rig.step().await;
        assert_eq!(
            rig.view(id).await["status"],
            "FAILED",
            "seven hours are more than six"
        );
        assert_eq!(
            rig.view(later).await["waitReason"],
            "RETRY",
            "it was scheduled for now"
        );
    }
}

#[tokio::test]
async fn a_template_that_is_not_there_yet_or_fails_is_tried_again() {
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
                "the one that failed, else the one of the acceptance"
            );
            rig.templates.store(Arc::clone(&sound));
            pass_time(&rig, 61).await;
            rig.mover.step().await.expect("moves");
            rig.step().await;
            let view = rig.view(id).await;
            assert_eq!(
                (&view["status"], &view["templateVersion"]),
                (&"SENT".into(), &1.into())
            );
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
            .expect("replays"),
        1
    );
}

#[tokio::test]
async fn what_an_operator_queues_again_has_all_its_time_and_attempts_again() {
    for (store, test) in stores().await {
        for made in [2, 30] {
            let mut rig = TestReplica::new(&store, &clock(), 8).await;
            rig.script.refuse(&["451"; 3]);
            let id = rig.accept(Priority::Critical).await;
            rig.step().await;
            pass_time(&rig, 7 * 3600).await;
            rig.mover.step().await.expect("moves");
            rig.step().await;
            assert_eq!(rig.view(id).await["status"], "FAILED", "its time is over");
            execute(
                &test.database,
                &format!("UPDATE notify_dead SET attempt = {made}"),
            )
            .await;
            replay(&rig, id).await;
            rig.step().await;
            let view = rig.view(id).await;
            assert_eq!(
                (&view["status"], &view["waitReason"]),
                (&"QUEUED".into(), &"RETRY".into()),
                "{view}"
            );
            pass_time(&rig, 3600).await;
            rig.mover.step().await.expect("moves");
            rig.step().await;
            assert_eq!(
                (&rig.view(id).await["status"], rig.script.calls()),
                (&"SENT".into(), vec![id; 4])
            );
        }
    }
}

#[tokio::test]
async fn what_no_attempt_of_which_could_be_written_is_given_up_after_as_many_as_any_other() {
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
        assert_eq!(
            (&view["status"], &view["reason"]),
            (&"FAILED".into(), &"ATTEMPTS_SPENT".into())
        );
    }
}

#[tokio::test]
async fn what_only_a_provider_that_is_left_alone_carries_waits_and_keeps_its_attempts() {
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
        let elsewhere = rig.submit(elsewhere, None).await.expect("accepted").id;
        rig.step().await;
        assert_eq!(
            other.calls(),
            [elsewhere],
            "nobody waits for what cannot be carried"
        );
        // Far more looks than it has attempts: an hour of them.
        for _ in 0..60 {
            pass_time(&rig, 60).await;
            rig.mover.step().await.expect("moves");
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
            kinds(&view).len(),
            1 + 2 * calls,
            "what was not attempted is not told: {view}"
        );
        assert!(
            view["nextAttemptAt"].is_string() && view["waitReason"] == "RETRY",
            "{view}"
        );
        rig.script.recover();
        for _ in 0..20 {
            pass_time(&rig, 60).await;
            rig.mover.step().await.expect("moves");
            rig.step().await;
        }
        assert_eq!(rig.view(id).await["status"], "SENT");
    }
}
