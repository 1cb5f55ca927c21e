//! Crashes of the process at every call of a registration.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;

use crate::testing::{ADA, Fixture, PASSWORD, PausePoint, REGISTRATION_DUE, client, register};

/// Every call of a registration, in order.
const CALLS: [&str; 4] = [
    "SignUp",
    "AdminConfirmSignUp",
    "InitiateAuth",
    "/actors/register",
];

/// Interrupts a registration before or after a call.
async fn interrupt(call: &str, point: PausePoint) -> Fixture {
    let fixture = Fixture::new().await;
    let paused = fixture.pause(call, point);
    let service = Arc::clone(&fixture.service);
    let task = tokio::spawn(async move { register(&service, &client(), ADA, PASSWORD).await });
    paused.reached().await;
    task.abort();
    assert!(task.await.expect_err("aborted").is_cancelled(), "{call}");
    assert_eq!(fixture.pending_registrations().await, 1, "{call} {point:?}");
    fixture
}

#[tokio::test]
async fn interrupted_registration_is_completed_or_undone() {
    for call in CALLS {
        for point in [PausePoint::Before, PausePoint::After] {
            let fixture = interrupt(call, point).await;
            let is_saved = fixture.has_profile().await;
            assert_eq!(fixture.compensate().await, 0);
            fixture.clock.advance(REGISTRATION_DUE);
            assert_eq!(fixture.compensate().await, 1, "{call} {point:?}");
            let is_kept = fixture.pool().subject(ADA).await.is_some();
            assert_eq!(is_kept, is_saved, "{call} {point:?}");
            assert_eq!(fixture.pending_registrations().await, 0);
            fixture.register(PASSWORD).await.expect("registered");
        }
    }
}

#[tokio::test]
async fn repeated_registration_completes_and_is_kept() {
    for call in CALLS {
        for point in [PausePoint::Before, PausePoint::After] {
            let fixture = interrupt(call, point).await;
            let again = fixture.register(PASSWORD).await;
            again.unwrap_or_else(|problem| panic!("{call} {point:?}: {:?}", problem.code()));
            assert_eq!(fixture.pending_registrations().await, 0, "{call} {point:?}");
            fixture.clock.advance(REGISTRATION_DUE);
            fixture.compensate().await;
            assert_eq!(fixture.pending_registrations().await, 0, "{call} {point:?}");
            assert!(fixture.has_profile().await, "{call} {point:?}");
            fixture.sign_in(PASSWORD).await.expect("signed in");
        }
    }
}

#[tokio::test]
async fn compensation_waits_for_a_repeated_registration() {
    let fixture = interrupt("/actors/register", PausePoint::Before).await;
    fixture.clock.advance(REGISTRATION_DUE);
    let paused = fixture.pause("/actors/register", PausePoint::Before);
    let registration = fixture.register(PASSWORD);
    let compensation = async {
        paused.reached().await;
        let continued = async {
            // Long enough for a compensation that does not wait.
            tokio::time::sleep(Duration::from_millis(300)).await;
            paused.release();
        };
        join(fixture.compensate(), continued).await.0
    };
    let (registered, compensated) = Box::pin(join(registration, compensation)).await;
    registered.expect("registered");
    assert_eq!(compensated, 0);
    assert!(fixture.has_profile().await);
}

#[tokio::test]
async fn account_created_meanwhile_is_kept() {
    let fixture = interrupt("InitiateAuth", PausePoint::Before).await;
    fixture.pool().change_user("AdminDeleteUser", ADA).await;
    let subject = fixture.add_ada().await;
    fixture.clock.advance(REGISTRATION_DUE);
    assert_eq!(fixture.compensate().await, 1);
    assert_eq!(fixture.pool().subject(ADA).await, Some(subject));
}
