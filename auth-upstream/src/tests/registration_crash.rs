//! Crashes of the process at every call of a registration.

use std::sync::Arc;

use crate::testing::{Fixture, PausePoint, REGISTRATION_DUE, client, registration};

const ADA: &str = "ada@example.com";

/// Every call of a registration, in order.
const CALLS: [&str; 4] = ["SignUp", "AdminConfirmSignUp", "InitiateAuth", "register"];

/// Interrupts a registration before or after a call. Returns whether the profile was saved.
async fn interrupt(fixture: &Fixture, call: &str, point: PausePoint) -> bool {
    let pauses = if call == "register" {
        &fixture.actors.pauses
    } else {
        &fixture.pool.pauses
    };
    let paused = pauses.add(call, point);
    let service = Arc::clone(&fixture.service);
    let task = tokio::spawn(async move {
        service
            .flows
            .registration
            .register(&client(), &registration(ADA, "Password-1"))
            .await
    });
    paused.reached().await;
    task.abort();
    assert!(task.await.expect_err("aborted").is_cancelled(), "{call}");
    assert_eq!(fixture.pending_registrations().await, 1, "{call} {point:?}");
    fixture
        .pool
        .user(ADA)
        .is_some_and(|user| fixture.actors.profile(&user.subject).is_some())
}

#[tokio::test]
async fn interrupted_registration_is_completed_or_undone() {
    for call in CALLS {
        for point in [PausePoint::Before, PausePoint::After] {
            let fixture = Fixture::new().await;
            let is_saved = interrupt(&fixture, call, point).await;
            assert_eq!(fixture.compensate().await, 0);
            fixture.clock.advance(REGISTRATION_DUE);
            assert_eq!(fixture.compensate().await, 1, "{call} {point:?}");
            assert_eq!(
                fixture.pool.user(ADA).is_some(),
                is_saved,
                "{call} {point:?}"
            );
            assert_eq!(fixture.pending_registrations().await, 0);
            fixture
                .register(ADA, "Password-1")
                .await
                .expect("registered");
        }
    }
}

#[tokio::test]
async fn repeated_registration_completes_and_is_kept() {
    for call in CALLS {
        for point in [PausePoint::Before, PausePoint::After] {
            let fixture = Fixture::new().await;
            interrupt(&fixture, call, point).await;
            let again = fixture.register(ADA, "Password-1").await;
            again.unwrap_or_else(|problem| panic!("{call} {point:?}: {:?}", problem.code()));
            fixture.clock.advance(REGISTRATION_DUE);
            fixture.compensate().await;
            assert_eq!(fixture.pending_registrations().await, 0, "{call} {point:?}");
            let user = fixture.pool.user(ADA).expect("a user");
            assert!(
                fixture.actors.profile(&user.subject).is_some(),
                "{call} {point:?}"
            );
            fixture.sign_in(ADA, "Password-1").await.expect("signed in");
        }
    }
}
