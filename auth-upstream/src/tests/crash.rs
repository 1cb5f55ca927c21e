//! A process that dies in the middle of a registration, at every call that it makes.

use std::sync::Arc;

use crate::testing::{Fixture, LATER, When, login, registration, visitor};

const ADA: &str = "ada@example.com";

/// Every call of a registration, in order.
const CALLS: [&str; 4] = ["SignUp", "AdminConfirmSignUp", "InitiateAuth", "register"];

/// A registration whose process died before or behind a call; returns whether the profile was
/// saved.
async fn cut_off(fixture: &Fixture, call: &str, when: When) -> bool {
    let holds = if call == "register" {
        &fixture.actors.holds
    } else {
        &fixture.pool.holds
    };
    let held = holds.add(call, when);
    let auth = Arc::clone(&fixture.auth);
    let task = tokio::spawn(async move {
        auth.register(&visitor(), &registration(ADA, "Password-1"))
            .await
    });
    held.reached().await;
    task.abort();
    assert!(task.await.expect_err("cut off").is_cancelled(), "{call}");
    assert_eq!(
        fixture
            .auth
            .store
            .count_registrations()
            .await
            .expect("count"),
        1,
        "{call} {when:?}"
    );
    fixture
        .pool
        .user(ADA)
        .is_some_and(|user| fixture.actors.profile(&user.subject).is_some())
}

#[tokio::test]
async fn it_is_finished_or_undone_wherever_that_happened() {
    for call in CALLS {
        for when in [When::Before, When::After] {
            let fixture = Fixture::new().await;
            let is_saved = cut_off(&fixture, call, when).await;
            assert_eq!(fixture.auth.compensate_due().await.expect("not due yet"), 0);
            fixture.clock.advance(LATER);
            assert_eq!(
                fixture.auth.compensate_due().await.expect("due"),
                1,
                "{call} {when:?}"
            );
            assert_eq!(
                fixture.pool.user(ADA).is_some(),
                is_saved,
                "{call} {when:?}"
            );
            assert_eq!(
                fixture
                    .auth
                    .store
                    .count_registrations()
                    .await
                    .expect("count"),
                0
            );
            fixture
                .auth
                .register(&visitor(), &registration(ADA, "Password-1"))
                .await
                .expect("registered");
        }
    }
}

#[tokio::test]
async fn the_same_registration_again_goes_on_and_is_never_undone() {
    for call in CALLS {
        for when in [When::Before, When::After] {
            let fixture = Fixture::new().await;
            cut_off(&fixture, call, when).await;
            let again = fixture
                .auth
                .register(&visitor(), &registration(ADA, "Password-1"))
                .await;
            again.unwrap_or_else(|problem| panic!("{call} {when:?}: {:?}", problem.code()));
            fixture.clock.advance(LATER);
            fixture.auth.compensate_due().await.expect("looked");
            assert_eq!(
                fixture
                    .auth
                    .store
                    .count_registrations()
                    .await
                    .expect("count"),
                0,
                "{call} {when:?}"
            );
            let user = fixture.pool.user(ADA).expect("there");
            assert!(
                fixture.actors.profile(&user.subject).is_some(),
                "{call} {when:?}"
            );
            fixture
                .auth
                .login(&visitor(), &login(ADA, "Password-1"))
                .await
                .expect("signed in");
        }
    }
}
