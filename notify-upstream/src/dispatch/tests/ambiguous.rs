//! What becomes of an attempt of which nobody knows whether it reached the provider.

use super::*;
use crate::store::row::ReceiptKind;
use crate::store::{DeadFilter, Receipt};
use crate::testing::welcome_with;

/// A replica whose predecessor died in the attempt: after the call, before the result.
async fn after_a_crash(
    store: &Store,
    clock: &Clock,
    settings: &str,
) -> (TestReplica, NotificationId) {
    let mut dead = TestReplica::new(store, clock, 8).await;
    let _forever = dead.script.hold();
    let id = dead.accept(Priority::Normal).await;
    dead.dispatcher.pass().await.expect("claims");
    while dead.script.calls().is_empty() {
        tokio::task::yield_now().await;
    }
    let next = TestReplica::new(store, clock, 8).await;
    next.script.remembers(&dead.script);
    next.templates.store(Arc::new(welcome_with(settings)));
    for _ in 0..4 {
        clock.advance(Duration::from_secs(3));
        next.workers.step().await.expect("renews");
    }
    (next, id)
}

fn outcome(view: &serde_json::Value) -> (String, Option<String>) {
    (
        view["status"].as_str().expect("a status").to_owned(),
        view["reason"].as_str().map(str::to_owned),
    )
}

fn sent() -> (String, Option<String>) {
    ("SENT".to_owned(), None)
}

fn unknown() -> (String, Option<String>) {
    ("FAILED".to_owned(), Some("OUTCOME_UNKNOWN".to_owned()))
}

#[tokio::test]
async fn a_provider_that_can_be_asked_is_asked_and_nothing_is_sent_twice() {
    for (store, _database) in stores().await {
        for settings in ["", "ambiguous = 'fail'"] {
            let (mut rig, id) = after_a_crash(&store, &clock(), settings).await;
            rig.script.can_be_asked();
            rig.step().await;
            let view = rig.view(id).await;
            assert_eq!(
                (outcome(&view), rig.script.calls()),
                (sent(), vec![id]),
                "{view}"
            );
            assert_eq!(
                kinds(&view),
                [
                    "QUEUED",
                    "ATTEMPTED",
                    "OUTCOME_UNKNOWN",
                    "ATTEMPTED",
                    "SENT"
                ]
            );
        }
    }
}

#[tokio::test]
async fn where_nobody_can_tell_the_template_decides() {
    for (store, _database) in stores().await {
        let (mut rig, id) = after_a_crash(&store, &clock(), "ambiguous = 'resend'").await;
        rig.step().await;
        assert_eq!(
            (outcome(&rig.view(id).await), rig.script.calls()),
            (sent(), vec![id, id])
        );
        let (mut rig, id) = after_a_crash(&store, &clock(), "ambiguous = 'fail'").await;
        rig.step().await;
        assert_eq!(
            (outcome(&rig.view(id).await), rig.script.calls()),
            (unknown(), vec![id])
        );
        // An operator who queues it again has decided.
        let one = DeadFilter {
            id: Some(id),
            limit: 1,
            ..DeadFilter::default()
        };
        let later = order_at(rig.clock.now());
        assert_eq!(
            store
                .replay(&one, later, rig.clock.now())
                .await
                .expect("replays"),
            1
        );
        rig.step().await;
        assert_eq!(
            (outcome(&rig.view(id).await), rig.script.calls()),
            (sent(), vec![id, id])
        );
    }
}

#[tokio::test]
async fn a_providers_report_under_our_id_is_proof() {
    for (store, _database) in stores().await {
        let (mut rig, id) = after_a_crash(&store, &clock(), "ambiguous = 'fail'").await;
        let receipt = Receipt {
            provider: "twilio".to_owned(),
            event_id: "SM1/queued".to_owned(),
            id,
            kind: ReceiptKind::Sent,
            at: START,
            received_at: START,
            code: None,
            detail: None,
        };
        store.save_receipts(&[receipt]).await.expect("keeps");
        rig.step().await;
        assert_eq!(
            (outcome(&rig.view(id).await), rig.script.calls()),
            (sent(), vec![id])
        );
    }
}

#[tokio::test]
async fn silence_after_the_call_is_doubt_and_a_refusal_is_none() {
    for (store, _database) in stores().await {
        for (refusal, calls) in [("broken", 1), ("451 4.3.0", 2)] {
            let clock = clock();
            let mut rig = TestReplica::new(&store, &clock, 8).await;
            rig.script.can_be_asked();
            rig.script.refuse(&[refusal]);
            let id = rig.accept(Priority::Normal).await;
            rig.step().await;
            assert_eq!(rig.view(id).await["waitReason"], "RETRY");
            for _ in 0..6 {
                clock.advance(Duration::from_secs(3));
                rig.workers.step().await.expect("renews");
            }
            rig.mover.step().await.expect("moves");
            rig.step().await;
            assert_eq!(
                (outcome(&rig.view(id).await), rig.script.calls().len()),
                (sent(), calls),
                "{refusal}"
            );
        }
    }
}
