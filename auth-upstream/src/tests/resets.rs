//! What a password reset takes from an account, and what it leaves.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join;
use postern_core::{Code, Problem};
use serde_json::json;

use super::account_codes::{DAY, NOTICE, REGISTER, RESET, is_verified, send};
use super::second_factor::{mismatch, next};
use super::social_account::{ELSEWHERE, answer_with_code, name_of, next_step};
use crate::flows::{AccountChange, ChallengeAnswer, CodePurpose};
use crate::testing::browser::{self, Person, consent, start};
use crate::testing::{
    ADA, Fault, Fixture, PASSWORD, PausePoint, client, client_at, land, refused, register, reset,
    session_of,
};

const ANSWER: &str = "RespondToAuthChallenge";

#[tokio::test]
async fn reset_that_ends_not_all_earlier_sign_ins_can_be_repeated() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    fixture.request_code(ADA).await;
    let code = fixture.code(ADA, RESET);
    for call in ["AdminUserGlobalSignOut", "AdminGetUser"] {
        fixture.inject(call, 1, Fault::internal_error());
        refused(
            fixture.try_reset(&client(), &code, "Password-2").await,
            Code::Unavailable,
        );
        assert!(fixture.messages(ADA, NOTICE).is_empty(), "{call}");
    }
    let done = fixture.try_reset(&client(), &code, "Password-2").await;
    done.expect("reset");
}

/// In a pool without `UsernameAttributes`, a name may look like the address of somebody else.
#[tokio::test]
async fn name_that_looks_like_an_address_is_not_its_owner() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    let other = Fault::change(|user| {
        let attributes = user["UserAttributes"].as_array_mut().expect("a list");
        attributes.retain(|it| it["Name"] != "email");
        attributes.push(json!({ "Name": "email", "Value": "eve@example.com" }));
    });
    fixture.inject("AdminGetUser", 2, other);
    fixture.request_code(ADA).await;
    assert!(fixture.messages(ADA, RESET).is_empty());
    let code = send(&fixture, CodePurpose::Reset, ADA).await;
    refused(
        fixture.try_reset(&client(), &code, "Password-2").await,
        Code::InvalidCode,
    );
    fixture.sign_in(PASSWORD).await.expect("unchanged");
}

/// An operator invites a person by a temporary password.
#[tokio::test]
async fn reset_keeps_an_invited_account_that_nobody_registered() {
    for is_registered in [true, false] {
        let fixture = Fixture::new().await;
        let before = if is_registered {
            fixture.register("Password-0").await.expect("registered");
            fixture.pool().subject(ADA).await
        } else {
            Some(fixture.pool().add_user(ADA, "Password-0", false).await)
        };
        fixture.pool().set_password(ADA, "Temporary-1", false).await;
        fixture.reset("192.0.2.1", "Password-2").await;
        let after = fixture.pool().subject(ADA).await;
        assert_eq!(after == before, !is_registered);
        assert!(is_verified(&fixture).await);
        fixture.sign_in("Password-2").await.expect("signed in");
    }
}

#[tokio::test]
async fn reset_of_an_unproven_account_takes_over_nothing() {
    // With both ways to register; the profile of the new account may have to be repeated.
    for (mode, failures) in [("confirm = 'admin'", 0), ("confirm = 'code'", 0), ("", 3)] {
        let fixture = Fixture::with_config(mode).await;
        let stranger = register(&fixture.service, &client(), ADA, "Password-0").await;
        let subject = fixture.pool().subject(ADA).await.expect("a user");
        fixture.request_code(ADA).await;
        if failures > 0 {
            fixture.inject(REGISTER, failures, Fault::status(503));
        }
        let code = fixture.code(ADA, RESET);
        let client = client_at("192.0.2.1");
        let done = fixture.try_reset(&client, &code, "Password-2");
        done.await.expect("reset");
        let own = fixture.pool().subject(ADA).await.expect("a user");
        assert_ne!(own, subject, "{mode}");
        assert!(is_verified(&fixture).await);
        if let Ok(stranger) = stranger {
            fixture.refresh(&stranger).await.expect_err("ended");
        }
        fixture.sign_in("Password-2").await.expect("signed in");
        fixture.clock.advance(DAY);
        fixture.compensate().await;
        fixture.sign_in("Password-2").await.expect("kept");
        let saved = fixture.bodies(REGISTER).pop().expect("a profile");
        assert_eq!(
            (&saved["actorId"], &saved["profile"]),
            (&json!(own), &json!({ "emailVerified": true })),
            "{mode}"
        );
        assert!(fixture.has_profile().await);
        // Proven now, so that the next reset keeps the account.
        fixture.reset("192.0.2.1", "Password-3").await;
        assert_eq!(fixture.pool().subject(ADA).await, Some(own));
    }
}

/// Somebody has read one code in the mailbox of the owner, who is told to reset the password then.
#[tokio::test]
async fn reset_removes_social_links_and_ends_their_sign_ins() {
    let fixture = Fixture::new().await;
    let subject = fixture.pool().add_user(ELSEWHERE, PASSWORD, true).await;
    let person = Person {
        email: ELSEWHERE,
        is_verified: false,
    };
    let required = next_step(&fixture, person).await;
    let code = fixture.code(ELSEWHERE, "account-confirm");
    let linked = answer_with_code(&fixture, &required, &code).await;
    let linked = linked.expect("linked");
    let waiting = consent(&start(&fixture, None).await, person).await;
    // A sign-in that the pool has started, and whose proof it gets after the reset.
    let late = consent(&start(&fixture, None).await, person).await;
    let paused = fixture.pause("RespondToAuthChallenge", PausePoint::Before);
    let service = Arc::clone(&fixture.service);
    let late = tokio::spawn(async move { land(&service, &client(), late).await });
    paused.reached().await;
    fixture.request_code(ELSEWHERE).await;
    let code = fixture.code(ELSEWHERE, "account-reset");
    let request = reset(ELSEWHERE, &code, "Password-2");
    let done = fixture.flows().reset_password(&client(), &request).await;
    done.expect("reset");
    paused.release();
    let late = late.await.expect("no panic");
    assert_eq!((late.name, &*late.value), ("error", "access_denied"));
    fixture.refresh(&linked).await.expect_err("ended");
    let landing = browser::follow(&fixture, waiting).await;
    let required = fixture.try_exchange(&landing.value, None).await;
    assert_eq!(name_of(&required.expect_err("a code")), "CONFIRM_ADDRESS");
    assert_eq!(fixture.pool().subject(ELSEWHERE).await, Some(subject));
}

/// Somebody has read a code in the mailbox before the reset, and enters it while the reset runs.
#[tokio::test]
async fn reset_ends_codes_for_links() {
    let fixture = Fixture::new().await;
    fixture.pool().add_user(ELSEWHERE, PASSWORD, true).await;
    let person = Person {
        email: ELSEWHERE,
        is_verified: false,
    };
    let required = next_step(&fixture, person).await;
    let code = fixture.code(ELSEWHERE, "account-confirm");
    fixture.request_code(ELSEWHERE).await;
    let reset_code = fixture.code(ELSEWHERE, "account-reset");
    let request = reset(ELSEWHERE, &reset_code, "Password-2");
    let paused = fixture.pause("AdminSetUserPassword", PausePoint::Before);
    let client = client();
    let answering = async {
        paused.reached().await;
        let released = async {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            paused.release();
        };
        let answered = answer_with_code(&fixture, &required, &code);
        join(answered, released).await.0
    };
    let resetting = fixture.flows().reset_password(&client, &request);
    let (done, answered) = join(resetting, answering).await;
    done.expect("reset");
    refused(answered, Code::InvalidChallenge);
    let required = next_step(&fixture, person).await;
    assert_eq!(name_of(&required), "CONFIRM_ADDRESS");
}

/// Begins a sign-in of Ada that waits for a second factor.
async fn begin(fixture: &Fixture) -> Problem {
    fixture.inject("InitiateAuth", 1, next("SMS_MFA"));
    let begun = fixture.sign_in(PASSWORD).await;
    begun.expect_err("a challenge")
}

/// Begins a sign-in of Ada with a password that an operator has set.
async fn begin_invited(fixture: &Fixture) -> String {
    fixture.pool().set_password(ADA, "Temporary-1", false).await;
    let begun = fixture.sign_in("Temporary-1").await;
    session_of(&begun.expect_err("a challenge"))
}

async fn operate(fixture: &Fixture, subject: &str, change: &AccountChange) {
    let client = client();
    let changed = fixture.flows().change_account(&client, subject, change);
    changed.await.expect("changed");
}

/// Somebody knows the password and waits at a second factor, at the choice of one, at a code for the
/// address, or for the pool's answer to the password.
#[tokio::test]
async fn challenge_from_before_a_reset_or_sign_out_is_refused() {
    use AccountChange::{Disable, Enable, ResetPassword, SetPassword, SignOut};
    for (change, ends) in [
        (Some(SignOut), true),
        (Some(Disable), true),
        (Some(ResetPassword), true),
        (Some(SetPassword("Password-2".into())), true),
        (Some(Enable), false),
        (None, true),
    ] {
        let fixture = Fixture::new().await;
        let subject = fixture.add_ada().await;
        let waiting = begin(&fixture).await;
        fixture.inject(ANSWER, 1, next("SELECT_MFA_TYPE"));
        let chosen = answer_with_code(&fixture, &waiting, "1").await;
        let chosen = chosen.expect_err("a challenge");
        let unproven = Person {
            is_verified: false,
            ..browser::ADA
        };
        let unproven = next_step(&fixture, unproven).await;
        let code = fixture.code(ADA, "account-confirm");
        fixture.pool().set_password(ADA, "Temporary-1", false).await;
        let paused = fixture.pause("InitiateAuth", PausePoint::After);
        let changing = async {
            paused.reached().await;
            match &change {
                Some(change) => operate(&fixture, &subject, change).await,
                None => fixture.reset("192.0.2.1", "Password-2").await,
            }
            paused.release();
        };
        let (late, ()) = join(fixture.sign_in("Temporary-1"), changing).await;
        let late = late.expect_err("a challenge");
        let calls = fixture.count(ANSWER);
        for required in [waiting, chosen, late] {
            if !ends {
                fixture.inject(ANSWER, 1, mismatch());
            }
            let answered = answer_with_code(&fixture, &required, "1").await;
            refused(answered, Code::InvalidChallenge);
        }
        let asked = fixture.count(ANSWER) - calls;
        assert_eq!(asked, if ends { 0 } else { 3 }, "{change:?}");
        if ends {
            let answered = answer_with_code(&fixture, &unproven, &code).await;
            refused(answered, Code::InvalidChallenge);
        }
        // What begins afterwards is as before.
        let required = begin(&fixture).await;
        fixture.inject(ANSWER, 1, next("SELECT_MFA_TYPE"));
        let next = answer_with_code(&fixture, &required, "1").await;
        assert_eq!(name_of(&next.expect_err("a step")), "SELECT_MFA_TYPE");
    }
}

#[tokio::test]
async fn new_password_ends_other_challenges_and_not_its_own() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    let waiting = begin(&fixture).await;
    let session = begin_invited(&fixture).await;
    fixture.inject(ANSWER, 1, next("SMS_MFA"));
    let own = fixture.answer(&client(), session, Err("Password-2")).await;
    let own = own.expect_err("a second factor");
    refused(
        answer_with_code(&fixture, &waiting, "1").await,
        Code::InvalidChallenge,
    );
    assert_eq!(fixture.count(ANSWER), 1);
    fixture.pool().set_password(ADA, "Password-2", true).await;
    let tokens = fixture.pool().sign_in(ADA, "Password-2").await;
    fixture.inject(ANSWER, 1, Fault::answer(200, &tokens));
    let answered = answer_with_code(&fixture, &own, "1").await;
    answered.expect("signed in");
}

#[tokio::test]
async fn sign_out_ends_a_challenge_that_is_being_answered() {
    let fixture = Fixture::new().await;
    let subject = fixture.add_ada().await;
    let tokens = fixture.pool().sign_in(ADA, PASSWORD).await;
    let waiting = begin(&fixture).await;
    let answer = Fault::answer(200, &tokens);
    let answering = answer_with_code(&fixture, &waiting, "1");
    refused(
        sign_out_during(&fixture, &subject, answer, answering).await,
        Code::InvalidChallenge,
    );
    // The pool asks a social user for a second factor.
    let started = next_step(&fixture, browser::ADA);
    let waiting = sign_out_during(&fixture, &subject, next("SMS_MFA"), started).await;
    refused(
        answer_with_code(&fixture, &waiting, "1").await,
        Code::InvalidChallenge,
    );
    assert_eq!(fixture.count(ANSWER), 2);
}

/// Signs Ada out everywhere before the pool gives `answer` to a challenge.
async fn sign_out_during<T>(
    fixture: &Fixture,
    subject: &str,
    answer: Fault,
    answering: impl Future<Output = T>,
) -> T {
    let paused = fixture.pause(ANSWER, PausePoint::Before);
    fixture.inject(ANSWER, 1, answer);
    let ending = async {
        paused.reached().await;
        operate(fixture, subject, &AccountChange::SignOut).await;
        paused.release();
    };
    join(answering, ending).await.0
}

/// What the pool has done when its answer is lost is not known.
#[tokio::test]
async fn challenges_end_before_a_reset_sets_the_password() {
    for (config, call) in [
        ("", "AdminSetUserPassword"),
        ("codes = 'pool'", "ConfirmForgotPassword"),
    ] {
        let fixture = Fixture::with_config(config).await;
        fixture.add_ada().await;
        let waiting = begin(&fixture).await;
        let code = send(&fixture, CodePurpose::Reset, ADA).await;
        fixture.inject(call, 1, Fault::internal_error());
        refused(
            fixture.try_reset(&client(), &code, "Password-2").await,
            Code::Unavailable,
        );
        refused(
            answer_with_code(&fixture, &waiting, "1").await,
            Code::InvalidChallenge,
        );
        assert_eq!(fixture.count(ANSWER), 0, "{call}");
    }
}

#[tokio::test]
async fn reset_and_operator_wait_for_a_new_password_that_is_being_set() {
    for change in [None, Some(AccountChange::SetPassword("Password-2".into()))] {
        let fixture = Fixture::new().await;
        let subject = fixture.add_ada().await;
        fixture.request_code(ADA).await;
        let code = fixture.code(ADA, RESET);
        let session = begin_invited(&fixture).await;
        let answer = fixture.pause(ANSWER, PausePoint::Before);
        let set = fixture.pause("AdminSetUserPassword", PausePoint::Before);
        let client = client();
        let answering = fixture.answer(&client, session, Err("Password-3"));
        let setting = async {
            match &change {
                Some(change) => operate(&fixture, &subject, change).await,
                None => {
                    let done = fixture.try_reset(&client, &code, "Password-2").await;
                    done.expect("reset");
                }
            }
        };
        let setting = async {
            answer.reached().await;
            let released = async {
                let wait = std::time::Duration::from_millis(500);
                let early = tokio::time::timeout(wait, set.reached()).await;
                assert!(early.is_err(), "set meanwhile");
                answer.release();
                set.reached().await;
                set.release();
            };
            join(setting, released).await;
        };
        join(answering, setting).await.0.expect("answered");
        fixture.sign_in("Password-2").await.expect("set last");
    }
}

/// Another cache has lost a stamp, as a fail-over may; none answers.
#[tokio::test]
async fn challenge_needs_the_cache_in_which_it_began() {
    let fixture = Fixture::new().await;
    fixture.add_ada().await;
    let session = session_of(&begin(&fixture).await);
    let replica = fixture.replica().await;
    let answer = ChallengeAnswer {
        session,
        new_password: None,
        code: Some("1".to_owned()),
        responses: HashMap::new(),
    };
    let answered = replica.flows.answer_challenge(&client(), answer).await;
    refused(answered, Code::InvalidChallenge);
    let fixture = Fixture::with_cache("redis://127.0.0.1:1/0").await;
    fixture.add_ada().await;
    fixture
        .sign_in(PASSWORD)
        .await
        .expect("without a challenge");
    assert_eq!(begin(&fixture).await.code(), Code::Unavailable);
}
