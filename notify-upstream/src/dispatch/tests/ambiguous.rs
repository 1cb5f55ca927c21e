//! Tests of attempts with an ambiguous result.

use super::*;
use crate::notification::order_at;
use crate::store::row::ReceiptKind;
use crate::store::{DeadFilter, Receipt};
use crate::testing::welcome_with;

/// A replica whose predecessor died during the attempt: after the call, before the result.
async fn replica_after_crash(
    store: &Store,
    clock: &Clock,
    settings: &str,
) -> (TestReplica, NotificationId) {
    let mut dead = TestReplica::new(store, clock, 8).await;
    let _forever = dead.script.hold();
    let id = dead.accept(Priority::Normal).await;
    dead.dispatcher.claim_available().await.expect("no error");
    while dead.script.calls().is_empty() {
        tokio::task::yield_now().await;
    }
    let next = TestReplica::new(store, clock, 8).await;
    next.script.share_messages_of(&dead.script);
    next.templates.store(Arc::new(welcome_with(settings)));
    for _ in 0..4 {
        clock.advance(Duration::from_secs(3));
        next.workers.step().await.expect("lease renewal succeeds");
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
async fn lookup_prevents_duplicate_after_ambiguous_result() {
    for (store, _database) in stores().await {
        for settings in ["", "ambiguous = 'fail'"] {
            let (mut rig, id) = replica_after_crash(&store, &clock(), settings).await;
            rig.script.support_lookups();
            rig.step().await;
            let view = rig.view(id).await;
            assert_eq!(
                (outcome(&view), rig.script.calls()),
                (sent(), vec![id]),
                "{view}"
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
        }
    }
}

#[tokio::test]
async fn template_decides_when_lookup_is_unsupported() {
    for (store, _database) in stores().await {
        let (mut rig, id) = replica_after_crash(&store, &clock(), "ambiguous = 'resend'").await;
        rig.step().await;
        assert_eq!(
            (outcome(&rig.view(id).await), rig.script.calls()),
            (sent(), vec![id, id])
        );
        let (mut rig, id) = replica_after_crash(&store, &clock(), "ambiguous = 'fail'").await;
        rig.step().await;
        assert_eq!(
            (outcome(&rig.view(id).await), rig.script.calls()),
            (unknown(), vec![id])
        );
        // A replay by an operator overrides the policy of the template.
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
                .expect("no error"),
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
async fn receipt_proves_that_the_provider_has_the_message() {
    for (store, _database) in stores().await {
        let (mut rig, id) = replica_after_crash(&store, &clock(), "ambiguous = 'fail'").await;
        let receipt = Receipt {
            provider: "twilio".to_owned(),
            event_id: "SM1/queued".to_owned(),
            id,
            kind: ReceiptKind::Sent,
            at: START,
            code: None,
            detail: None,
        };
        store.save_receipts(&[receipt]).await.expect("no error");
        rig.step().await;
        assert_eq!(
            (outcome(&rig.view(id).await), rig.script.calls()),
            (sent(), vec![id])
        );
    }
}

#[tokio::test]
async fn timeout_is_ambiguous_and_refusal_is_not() {
    for (store, _database) in stores().await {
        for (refusal, calls) in [("broken", 1), ("451 4.3.0", 2)] {
            let clock = clock();
            let mut rig = TestReplica::new(&store, &clock, 8).await;
            rig.script.support_lookups();
            rig.script.refuse(&[refusal]);
            let id = rig.accept(Priority::Normal).await;
            rig.step().await;
            assert_eq!(rig.view(id).await["waitReason"], "RETRY");
            for _ in 0..6 {
                clock.advance(Duration::from_secs(3));
                rig.workers.step().await.expect("lease renewal succeeds");
            }
            rig.mover.step().await.expect("no error");
            rig.step().await;
            assert_eq!(
                (outcome(&rig.view(id).await), rig.script.calls().len()),
                (sent(), calls),
                "{refusal}"
            );
        }
    }
}
