//! Tests of acceptance at the limit of the submission queue.

use tokio::task::JoinSet;

use super::*;
use crate::intake::group_commit::MAX_PENDING_SUBMISSIONS;
use crate::principal::Principal;

#[tokio::test]
async fn full_submission_queue_rejects_with_retry_after() {
    for (store, _database) in stores().await {
        let rig = TestReplica::new(&store, &clock(), 1).await;
        let ask = |submissions: crate::intake::group_commit::SubmissionQueue| async move {
            let principal = Principal {
                creator: "service:test".into(),
                actor: None,
            };
            submissions
                .submit(
                    &principal,
                    draft(Priority::Low),
                    None,
                    BudgetPermit::default(),
                )
                .await
        };
        let mut asked = JoinSet::new();
        for _ in 0..MAX_PENDING_SUBMISSIONS {
            asked.spawn(ask(rig.submissions.clone()));
        }
        // Let every task submit, on the one thread of the test: all wait for a commit.
        for _ in 0..MAX_PENDING_SUBMISSIONS {
            tokio::task::yield_now().await;
        }
        let refused = ask(rig.submissions.clone())
            .await
            .expect_err("the queue is full");
        let refused = refused.render("x");
        assert_eq!(
            (refused.status.as_u16(), &refused.headers["retry-after"]),
            (503, &"1".parse().expect("a value"))
        );
    }
}
