//! Resolution of social identities to accounts.

use std::sync::Arc;

use futures_util::future::{join, join_all};
use postern_core::identity::SocialAccount;
use postern_core::{Code, Problem};
use serde_json::{Value, json};

use crate::assembly::AuthService;
use crate::flows::{ExchangedIdentity, SocialLanding, TokenSet};
use crate::testing::browser::{self, Person, consent, start};
use crate::testing::{
    ADA, Fault, Fixture, PASSWORD, PausePoint, client, land, refused, session_of,
};

const UNVERIFIED_ADA: Person = Person {
    is_verified: false,
    ..browser::ADA
};

/// Signs Ada in at the provider and exchanges the temporary token.
async fn sign_in(fixture: &Fixture) -> ExchangedIdentity {
    fixture.social_sign_in(browser::ADA).await
}

/// Signs Ada in at the provider and a replica.
async fn sign_in_at(replica: &AuthService) -> SocialLanding {
    let url = replica.start_social_sign_in(&client(), 0, None).await;
    let back = consent(&url.expect("a URL"), browser::ADA).await;
    land(replica, &client(), back).await
}

/// Signs Ada in at the provider and returns the error.
async fn error_of(fixture: &Fixture) -> String {
    let landing = browser::sign_in(fixture, browser::ADA).await;
    assert_eq!(landing.name, "error");
    landing.value
}

/// Signs a person in at the provider and returns the problem that the exchange ends with.
pub(super) async fn next_step(fixture: &Fixture, person: Person) -> Problem {
    let landing = browser::sign_in(fixture, person).await;
    assert_eq!(landing.name, "temporaryToken", "{}", landing.value);
    let required = fixture.try_exchange(&landing.value, None).await;
    required.expect_err("a challenge")
}

/// Returns how many social sign-ins were started at the pool.
fn started(fixture: &Fixture) -> usize {
    let calls = fixture.bodies("InitiateAuth").into_iter();
    calls.filter(|it| it["AuthFlow"] == "CUSTOM_AUTH").count()
}

pub(super) fn name_of(required: &Problem) -> String {
    let problem = required.to_json("id");
    assert_eq!(
        (&problem["status"], &problem["code"]),
        (&json!(401), &json!("challenge_required"))
    );
    let name = problem["challenge"]["name"].as_str();
    name.expect("a name").to_owned()
}

pub(super) async fn answer_with_code(
    fixture: &Fixture,
    required: &Problem,
    code: &str,
) -> Result<TokenSet, Problem> {
    let session = session_of(required);
    fixture.answer(&client(), session, Ok(code)).await
}

/// Creates an account with Ada's address by somebody else.
async fn squat(fixture: &Fixture) -> String {
    let pool = fixture.pool();
    pool.add_user(ADA, "Squatter-1", false).await
}

#[tokio::test]
async fn verified_account_is_linked_and_keeps_its_password() {
    let fixture = Fixture::new().await;
    let subject = fixture.add_ada().await;
    let found = sign_in(&fixture).await;
    assert_eq!(found.user.user_id, subject);
    let tokens = found.tokens.expect("tokens");
    fixture.refresh(&tokens).await.expect("refreshed");
    fixture.sign_in(PASSWORD).await.expect("the password works");
}

/// Registers Ada's address without a confirmation.
async fn squat_unconfirmed(fixture: &Fixture) -> String {
    let (address, password) = (crate::testing::email(ADA), "Squatter-1".into());
    let created = fixture.service.pool.sign_up(&address, &password);
    created.await.expect("registered").subject
}

#[tokio::test]
async fn unconfirmed_account_is_replaced() {
    let fixture = Fixture::new().await;
    let subject = squat_unconfirmed(&fixture).await;
    let ada = sign_in(&fixture).await;
    assert_ne!(ada.user.user_id, subject);
    assert!(ada.tokens.is_some());
    // Without AWS credentials nobody can delete a user who cannot sign in.
    let fixture = Fixture::without_credentials().await;
    squat_unconfirmed(&fixture).await;
    assert_eq!(error_of(&fixture).await, "access_denied");
}

#[tokio::test]
async fn users_sign_in_without_aws_credentials() {
    let fixture = Fixture::without_credentials().await;
    let squatted = squat(&fixture).await;
    let ada = sign_in(&fixture).await;
    assert_ne!(ada.user.user_id, squatted, "replaced");
    assert!(ada.tokens.is_some() && fixture.has_profile().await);
    let again = sign_in(&fixture).await;
    assert_eq!(again.user, ada.user);
    assert!(again.tokens.is_some());
}

#[tokio::test]
async fn next_sign_in_recovers_from_a_failed_replacement() {
    for operation in ["AdminDeleteUser", "SignUp"] {
        let fixture = Fixture::new().await;
        let squatted = squat(&fixture).await;
        fixture.inject(operation, 1, Fault::internal_error());
        assert_eq!(error_of(&fixture).await, "temporarily_unavailable");
        let ada = sign_in(&fixture).await;
        assert_ne!(ada.user.user_id, squatted);
        assert!(ada.tokens.is_some());
    }
}

#[tokio::test]
async fn address_taken_during_a_replacement_is_reclaimed() {
    let fixture = Fixture::new().await;
    squat(&fixture).await;
    let squatter = fixture.sign_in_at("192.0.2.1", "Squatter-1").await;
    squatter.expect("signed in");
    let exists = Fault::exception("UsernameExistsException", "x");
    fixture.inject("SignUp", 1, exists.clone());
    assert!(sign_in(&fixture).await.tokens.is_some());
    assert_eq!(fixture.count("SignUp"), 2);
    let limiter = &fixture.flows().limiter;
    assert!(!limiter.is_trusted(ADA, "192.0.2.0/24").await);

    let fixture = Fixture::new().await;
    fixture.inject("SignUp", 9, exists);
    let error = error_of(&fixture).await;
    assert_eq!(error, "temporarily_unavailable", "after four attempts");
}

#[tokio::test]
async fn next_sign_in_recovers_from_a_crash_after_creation() {
    let fixture = Fixture::new().await;
    let back = consent(&start(&fixture, None).await, browser::ADA).await;
    let paused = fixture.pause("SignUp", PausePoint::After);
    let service = Arc::clone(&fixture.service);
    let task = tokio::spawn(async move { land(&service, &client(), back).await });
    paused.reached().await;
    task.abort();
    assert!(task.await.expect_err("aborted").is_cancelled());
    let created = fixture.pool().subject(ADA).await.expect("created");
    let ada = sign_in(&fixture).await;
    assert_eq!(ada.user.user_id, created);
    assert!(ada.tokens.is_some() && fixture.has_profile().await);
}

#[tokio::test]
async fn stored_identity_is_kept_by_the_compensation() {
    let fixture = Fixture::new().await;
    fixture.inject("/actors/register", 3, Fault::status(503));
    let ada = sign_in(&fixture).await;
    // A crash between storing the identity and deleting the pending registration.
    let (store, now) = (&fixture.service.store, fixture.clock.now());
    let inserted = store.insert_registration("r", ADA, now, now).await;
    inserted.expect("inserted");
    let updated = store.set_registration_subject("r", &ada.user.user_id);
    updated.await.expect("updated");
    assert_eq!(fixture.compensate().await, 1);
    assert_eq!(sign_in(&fixture).await.user.user_id, ada.user.user_id);
    assert!(fixture.has_profile().await, "saved at the next sign-in");
}

#[tokio::test]
async fn concurrent_sign_ins_resolve_to_one_user() {
    let fixture = Fixture::new().await;
    squat(&fixture).await;
    // Meanwhile another client tries to register the address.
    let racing = (0..4).map(|_| join(sign_in(&fixture), fixture.register("Squatter-1")));
    let outcomes = join_all(racing).await;
    let ada = fixture.pool().subject(ADA).await.expect("one");
    assert!(outcomes.iter().all(|(found, _)| found.user.user_id == ada));
    assert_eq!(fixture.count("AdminDeleteUser"), 1, "the squatter");
}

#[tokio::test]
async fn invited_users_are_linked_and_disabled_users_rejected() {
    let fixture = Fixture::new().await;
    // Invited without a password of their own: the same user, whose invitation stays.
    let invited = fixture.add_ada().await;
    fixture.pool().set_password(ADA, "Temporary-1", false).await;
    let ada = sign_in(&fixture).await;
    assert_eq!(ada.user.user_id, invited);
    assert!(ada.tokens.is_some());
    let invitation = fixture.sign_in("Temporary-1").await;
    let invitation = invitation.expect_err("a challenge").to_json("id");
    assert_eq!(invitation["challenge"]["name"], "NEW_PASSWORD_REQUIRED");
    // Disabled: neither signed in nor replaced, with an account of any kind.
    let linked = Fixture::new().await;
    linked.add_ada().await;
    sign_in(&linked).await;
    let squatted = Fixture::new().await;
    squat(&squatted).await;
    for fixture in [fixture, linked, squatted] {
        fixture.pool().change_user("AdminDisableUser", ADA).await;
        assert_eq!(error_of(&fixture).await, "access_denied");
        assert_eq!(fixture.count("AdminDeleteUser"), 0);
    }
}

#[tokio::test]
async fn deleted_user_is_replaced_at_the_next_sign_in() {
    let fixture = Fixture::new().await;
    let first = sign_in(&fixture).await;
    fixture.pool().change_user("AdminDeleteUser", ADA).await;
    let second = sign_in(&fixture).await;
    assert_ne!(first.user.user_id, second.user.user_id);
    assert!(second.tokens.is_some());
}

/// Lets the pool name this account in the next challenge.
fn name_account(fixture: &Fixture, account: SocialAccount) {
    let key = fixture.proof_key();
    let rename = Fault::change(move |body| {
        let parameters = &mut body["ChallengeParameters"];
        let nonce = parameters["nonce"].as_str().expect("a nonce");
        parameters["account"] = json!(key.seal_account(Some(&account), nonce));
    });
    fixture.inject("InitiateAuth", 1, rename);
}

/// A former owner, whose user name another person has by now, in a pool whose names are addresses.
#[tokio::test]
async fn user_name_of_another_subject_gives_no_tokens() {
    let fixture = Fixture::new().await;
    let first = sign_in(&fixture).await.user.user_id;
    fixture.pool().change_user("AdminDeleteUser", ADA).await;
    let second = fixture.add_ada().await;
    name_account(&fixture, SocialAccount::new(second, Some(ADA), true));
    let required = next_step(&fixture, UNVERIFIED_ADA).await;
    assert_eq!(name_of(&required), "CONFIRM_ADDRESS");
    let stored = fixture.service.store.has_social_identity(&first).await;
    assert!(!stored.expect("read"), "counts as deleted");
    assert_eq!(fixture.count("RespondToAuthChallenge"), 1);
    fixture.sign_in(PASSWORD).await.expect("the second owner's");
}

#[tokio::test]
async fn user_name_that_looks_like_the_address_links_nothing() {
    let fixture = Fixture::new().await;
    let subject = fixture.add_ada().await;
    let account = SocialAccount::new(subject, Some("eda@example.com"), true);
    name_account(&fixture, account);
    assert_eq!(error_of(&fixture).await, "access_denied");
    assert_eq!(fixture.count("RespondToAuthChallenge"), 0);
}

#[tokio::test]
async fn reset_during_social_sign_ins_keeps_the_new_password() {
    let fixture = Fixture::new().await;
    sign_in(&fixture).await;
    fixture.request_code(ADA).await;
    let callbacks = join_all((0..12).map(|_| browser::sign_in(&fixture, browser::ADA)));
    let (landings, ()) = join(callbacks, fixture.reset("192.0.2.1", "Password-2")).await;
    // One that was under way is refused.
    assert!(
        landings
            .iter()
            .all(|it| it.name == "temporaryToken" || it.value == "access_denied")
    );
    fixture
        .sign_in("Password-2")
        .await
        .expect("the new password");
    // An operator's temporary password, and the one that replaces it.
    fixture.pool().set_password(ADA, "Temporary-3", false).await;
    assert!(sign_in(&fixture).await.tokens.is_some());
    let required = fixture
        .sign_in("Temporary-3")
        .await
        .expect_err("a challenge");
    let (session, client) = (session_of(&required), client());
    let answered = fixture.answer(&client, session, Err("Password-4"));
    let (answered, found) = join(answered, sign_in(&fixture)).await;
    answered.expect("answered");
    assert!(found.tokens.is_some());
    fixture
        .sign_in("Password-4")
        .await
        .expect("the own password");
    let set = fixture.count("AdminSetUserPassword");
    assert_eq!(set, 1, "by the reset alone");
}

#[tokio::test]
async fn second_factor_of_the_pool_is_asked_for() {
    let fixture = Fixture::new().await;
    sign_in(&fixture).await;
    let body = json!({ "ChallengeName": "SOFTWARE_TOKEN_MFA", "Session": "pool-session" });
    let respond = "RespondToAuthChallenge";
    fixture.inject(respond, 1, Fault::answer(200, &body));
    let required = next_step(&fixture, browser::ADA).await;
    assert_eq!(name_of(&required), "SOFTWARE_TOKEN_MFA");
    fixture.pool().set_password(ADA, PASSWORD, true).await;
    let tokens = fixture.pool().sign_in(ADA, PASSWORD).await;
    fixture.inject(respond, 1, Fault::answer(200, &tokens));
    let answered = answer_with_code(&fixture, &required, "123456").await;
    answered.expect("tokens");
    // A reset removes the link while the second factor is asked for.
    fixture.inject(respond, 1, Fault::answer(200, &body));
    let required = next_step(&fixture, browser::ADA).await;
    fixture.reset("192.0.2.1", "Password-2").await;
    let tokens = fixture.pool().sign_in(ADA, "Password-2").await;
    fixture.inject(respond, 1, Fault::answer(200, &tokens));
    let calls = fixture.count(respond);
    refused(
        answer_with_code(&fixture, &required, "123456").await,
        Code::InvalidChallenge,
    );
    assert_eq!(fixture.count(respond), calls, "the pool is not asked");
}

#[tokio::test]
async fn required_password_reset_stays_with_a_social_sign_in() {
    let fixture = Fixture::new().await;
    sign_in(&fixture).await;
    let reset = Fault::exception("PasswordResetRequiredException", "Password reset required");
    fixture.inject("InitiateAuth", 1, reset);
    let required = next_step(&fixture, browser::ADA).await;
    assert_eq!(name_of(&required), "PASSWORD_RESET_REQUIRED");
}

#[tokio::test]
async fn identity_without_a_key_gets_an_account_later() {
    let fixture = Fixture::without_proof_key().await;
    let before = sign_in(&fixture).await;
    assert_eq!(sign_in(&fixture).await, before);
    let body = serde_json::to_value(&before).expect("JSON");
    assert_eq!(body.get("tokens"), None);
    assert_eq!(started(&fixture), 0);
    let replica = fixture.replica_with_proof_key(true).await;
    let landing = sign_in_at(&replica).await;
    let ada = replica.exchange(&client(), &landing.value, None).await;
    let ada = ada.expect("exchanged");
    assert!(ada.tokens.is_some());
    assert_ne!(ada.user.user_id, before.user.user_id);
}

#[tokio::test]
async fn key_of_others_deletes_no_link() {
    let fixture = Fixture::new().await;
    let ada = sign_in(&fixture).await;
    let replica = fixture.replica_with_proof_key(false).await;
    let landing = sign_in_at(&replica).await;
    assert_eq!((landing.name, &*landing.value), ("error", "server_error"));
    assert_eq!(sign_in(&fixture).await.user, ada.user);
}

/// An address for which the provider is not authoritative.
pub(super) const ELSEWHERE: &str = "ada@elsewhere.org";

#[tokio::test]
async fn address_without_authority_is_proven_by_a_code() {
    for (account, is_verified) in [
        (None, true),
        (None, false),
        (Some(true), true),
        (Some(false), false),
    ] {
        let case = format!("{account:?} {is_verified}");
        let fixture = Fixture::new().await;
        let existing = match account {
            Some(is_verified) => {
                let added = fixture.pool().add_user(ELSEWHERE, PASSWORD, is_verified);
                Some(added.await)
            }
            None => None,
        };
        let person = Person {
            email: ELSEWHERE,
            is_verified,
        };
        let known = |answer: &mut Value| answer["refresh_token"] = json!("known");
        fixture.inject("/token", 1, Fault::change(known));
        let required = next_step(&fixture, person).await;
        assert_eq!(name_of(&required), "CONFIRM_ADDRESS", "{case}");
        assert_eq!(started(&fixture), 0, "{case}");
        let wrong = answer_with_code(&fixture, &required, "12345678").await;
        let wrong = wrong.expect_err("a wrong code");
        assert_eq!(wrong.code(), Code::InvalidChallenge, "{case}");
        let code = fixture.code(ELSEWHERE, "account-confirm");
        let tokens = answer_with_code(&fixture, &required, &code).await;
        let tokens = tokens.expect("the right code");
        fixture.refresh(&tokens).await.expect("refreshed");
        let again = answer_with_code(&fixture, &required, &code).await;
        again.expect_err("the code is used up");
        let stored = fixture.service.store.provider_tokens().await;
        assert_eq!(stored.len(), 1, "{case}: of the first");
        let subject = fixture.pool().subject(ELSEWHERE).await;
        let is_kept = subject == existing;
        assert_eq!(is_kept, account == Some(true), "{case}");
        let found = fixture.social_sign_in(person).await;
        assert_eq!(Some(found.user.user_id), subject, "{case}");
        assert!(found.tokens.is_some(), "{case}");
        if account == Some(true) {
            fixture.pool().sign_in(ELSEWHERE, PASSWORD).await;
            let notices = fixture.messages(ELSEWHERE, "account-notice");
            assert!(
                notices
                    .iter()
                    .any(|it| it["variables"]["event"] == "social_link")
            );
        }
    }
}

#[tokio::test]
async fn address_is_proven_by_a_code_also_if_the_pool_makes_codes() {
    for no_credentials in [false, true] {
        let fixture = Fixture::with(|it| {
            it.config = "codes = 'pool'";
            it.no_credentials = no_credentials;
        })
        .await;
        let required = next_step(&fixture, UNVERIFIED_ADA).await;
        let code = fixture.code(ADA, "account-confirm");
        let linked = answer_with_code(&fixture, &required, &code).await;
        linked.expect("tokens");
        fixture.inject("ConfirmForgotPassword", 1, Fault::status(200));
        let done = fixture.try_reset(&client(), "123456", "Password-2").await;
        done.expect("reset");
        let required = next_step(&fixture, UNVERIFIED_ADA).await;
        assert_eq!(name_of(&required), "CONFIRM_ADDRESS");
    }
}
