//! What becomes of the work while a provider, a template or an account is in trouble.

use super::*;
use crate::testing::templates_of;

/// Lets so much time pass; the worker is heard of again at its end.
async fn pass_time(rig: &Rig, seconds: u64) {
    rig.clock.advance(Duration::from_secs(seconds));
    rig.workers.step().await.expect("renews");
}

#[tokio::test]
async fn a_channel_with_nothing_but_low_recovers_by_itself() {
    for (store, _database) in stores().await {
        let mut rig = Rig::new(&store, &clock(), 40).await;
        rig.script.refuse(&["451"; 10]);
        for _ in 0..10 {
            rig.accept(Priority::Low).await;
        }
        rig.step().await;
        assert_eq!(rig.script.calls().len(), 10);
        let id = rig.accept(Priority::Low).await;
        pass_time(&rig, 1).await;
        rig.step().await;
        assert_eq!(rig.board.desk(Channel::Email).gate(), GateState::Paused);
        assert_eq!(rig.view(id).await["waitReason"], "LOW_PAUSED");
        for _ in 0..12 {
            pass_time(&rig, 1).await;
            rig.step().await;
        }
        assert_eq!(rig.view(id).await["status"], "SENT");
    }
}

#[tokio::test]
async fn what_waits_while_nothing_works_keeps_its_attempts_and_one_at_a_time_tries() {
    for (store, _database) in stores().await {
        let mut rig = Rig::new(&store, &clock(), 16).await;
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
                (&rig.view(*id).await["status"], &rig.view(*id).await["attempts"]),
                (&"QUEUED".into(), &0.into())
            );
        }
        pass_time(&rig, 2).await;
        rig.step().await;
        assert_eq!(rig.script.calls()[10..], ids[..1], "one tries, in vain");
        pass_time(&rig, 3).await;
        rig.step().await;
        assert_eq!(rig.script.calls().len(), 11, "and the next waits twice as long");
        pass_time(&rig, 1).await;
        rig.step().await;
        rig.step().await;
        assert_eq!(rig.script.calls()[11..], ids[1..]);
    }
}

#[tokio::test]
async fn repeats_end_a_while_after_acceptance_however_long_each_waited() {
    for (store, _database) in stores().await {
        let mut rig = Rig::new(&store, &clock(), 8).await;
        rig.script.refuse(&["451"; 4]);
        let id = rig.accept(Priority::Critical).await;
        let mut later = draft(Priority::Critical);
        later.request.send_at = Some(after(7 * 3600));
        rig.step().await;
        pass_time(&rig, 7 * 1800).await;
        rig.mover.step().await.expect("moves");
        rig.step().await;
        assert_eq!(rig.view(id).await["waitReason"], "RETRY", "within six hours");
        let later = rig.submit(later, None).await.expect("accepted").id;
        pass_time(&rig, 7 * 1800).await;
        rig.mover.step().await.expect("moves");
        rig.step().await;
        assert_eq!(rig.view(id).await["status"], "FAILED", "seven hours are more than six");
        assert_eq!(rig.view(later).await["waitReason"], "RETRY", "it was scheduled for now");
    }
}

#[tokio::test]
async fn a_template_that_is_not_there_yet_or_fails_is_tried_again() {
    for (store, _database) in stores().await {
        let mut rig = Rig::new(&store, &clock(), 8).await;
        let sound = rig.templates.load_full();
        let other = templates_of(
            "other",
            &[("template.toml", "version = 1"), ("email.en.subject", "Hi"), ("email.en.txt", "Hi")],
        );
        let fails = [
            ("template.toml", "version = 7"),
            ("email.en.subject", "Hello {{ nickname }}"),
            ("email.en.txt", "Hello {{ nickname }}"),
        ];
        for (set, code) in [(other, "template_gone"), (templates_of("welcome", &fails), "template_failed")] {
            rig.templates.store(Arc::new(set));
            let id = rig.accept(Priority::Normal).await;
            rig.step().await;
            let view = rig.view(id).await;
            let last = view["events"].as_array().and_then(|events| events.last()).expect("an event");
            assert_eq!((&last["type"], &last["code"]), (&"RETRYING".into(), &code.into()));
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
            assert_eq!((&view["status"], &view["templateVersion"]), (&"SENT".into(), &1.into()));
        }
    }
}
