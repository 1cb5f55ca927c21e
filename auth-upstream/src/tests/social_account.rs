//! Resolution of social identities to accounts.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::{join, join_all};
use serde_json::json;

use crate::flows::{ExchangedIdentity, TokensUnavailable};
use crate::testing::browser::{self, Person, consent, start};
use crate::testing::{
    ADA, Fault, Fixture, FixtureOptions, PASSWORD, PausePoint, REGISTRATION_DUE, client, social_of,
};

/// An address for which the provider is not authoritative.
const ADA_ELSEWHERE: Person = Person {
    email: "ada@elsewhere.org",
    is_verified: true,
};

const UNVERIFIED_ADA: Person = Person {
    is_verified: false,
    ..browser::ADA
};

/// Signs Ada in at the provider and exchanges the temporary token.
async fn sign_in(fixture: &Fixture) -> ExchangedIdentity {
    fixture.social_sign_in(browser::ADA).await
}

/// Signs Ada in at the provider and returns the error.
async fn error_of(fixture: &Fixture) -> String {
    let landing = browser::sign_in(fixture, browser::ADA).await;
    assert_eq!(landing.name, "error");
    landing.value
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
    assert_eq!((found.user.user_id, found.tokens), (subject, None));
    let reason = TokensUnavailable::PasswordRequired;
    assert_eq!(found.tokens_unavailable, Some(reason));
    fixture.sign_in(PASSWORD).await.expect("the password works");
}

#[tokio::test]
async fn unconfirmed_account_is_replaced() {
    let fixture = Fixture::new().await;
    let subject = fixture.add_ada().await;
    let unconfirmed = Fault::change(|user| user["UserStatus"] = json!("UNCONFIRMED"));
    fixture.proxy().inject("AdminGetUser", 1, unconfirmed);
    assert_ne!(sign_in(&fixture).await.user.user_id, subject);
}

#[tokio::test]
async fn next_sign_in_recovers_from_a_failed_replacement() {
    for operation in ["AdminDeleteUser", "AdminCreateUser"] {
        let fixture = Fixture::new().await;
        let squatted = squat(&fixture).await;
        fixture
            .proxy()
            .inject(operation, 1, Fault::internal_error());
        assert_eq!(error_of(&fixture).await, "temporarily_unavailable");
        let ada = sign_in(&fixture).await;
        assert_ne!(ada.user.user_id, squatted);
        assert!(ada.tokens.is_some());
        assert_eq!(fixture.pending_registrations().await, 0);
    }
}

#[tokio::test]
async fn address_taken_during_a_replacement_is_reclaimed() {
    let fixture = Fixture::new().await;
    squat(&fixture).await;
    let squatter = fixture.sign_in_at("192.0.2.1", "Squatter-1").await;
    squatter.expect("signed in");
    let exists = Fault::exception("UsernameExistsException", "x");
    fixture.proxy().inject("AdminCreateUser", 1, exists.clone());
    assert!(sign_in(&fixture).await.tokens.is_some());
    assert_eq!(fixture.proxy().count("AdminCreateUser"), 2);
    let limiter = fixture.flows().login.guard.limiter();
    assert!(!limiter.is_trusted(ADA, "192.0.2.0/24").await);

    let fixture = Fixture::new().await;
    fixture.proxy().inject("AdminCreateUser", 3, exists);
    let error = error_of(&fixture).await;
    assert_eq!(error, "temporarily_unavailable", "after three attempts");
}

/// Interrupts a sign-in after AdminCreateUser: the pending registration and the pool user remain.
async fn interrupt_after_creation(fixture: &Fixture, person: Person) -> String {
    let back = consent(&start(fixture, None).await, person).await;
    let paused = fixture.proxy().pause("AdminCreateUser", PausePoint::After);
    let service = Arc::clone(&fixture.service);
    let task =
        tokio::spawn(async move { social_of(&service).handle_callback(&client(), back).await });
    paused.reached().await;
    task.abort();
    assert!(task.await.expect_err("aborted").is_cancelled());
    assert_eq!(fixture.pending_registrations().await, 1);
    let subject = fixture.pool().subject(person.email).await;
    subject.expect("the user exists")
}

#[tokio::test]
async fn next_sign_in_recovers_from_a_crash_after_creation() {
    for person in [browser::ADA, ADA_ELSEWHERE] {
        let fixture = Fixture::new().await;
        let interrupted = interrupt_after_creation(&fixture, person).await;
        let ada = fixture.social_sign_in(person).await;
        assert!(ada.tokens.is_some(), "{person:?}");
        assert_ne!(ada.user.user_id, interrupted);
        assert_eq!(fixture.pending_registrations().await, 0);
    }
}

#[tokio::test]
async fn compensation_deletes_the_user_of_a_crashed_sign_in() {
    let fixture = Fixture::new().await;
    interrupt_after_creation(&fixture, browser::ADA).await;
    fixture.clock.advance(REGISTRATION_DUE);
    assert_eq!(fixture.compensate().await, 1);
    assert!(fixture.pool().subject(ADA).await.is_none());
}

#[tokio::test]
async fn stored_identity_is_kept_by_the_compensation() {
    let fixture = Fixture::new().await;
    let away = Fault::answer(503, &json!({}));
    fixture.proxy().inject("/actors/register", 3, away);
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
    let squatted = squat(&fixture).await;
    let racing = (0..4).map(|_| {
        // Meanwhile another client tries to register the address.
        join(sign_in(&fixture), fixture.register("Squatter-1"))
    });
    let outcomes = join_all(racing).await;
    let ids: BTreeSet<String> = outcomes
        .into_iter()
        .map(|(found, _)| found.user.user_id)
        .collect();
    let ada = fixture.pool().subject(ADA).await.expect("one");
    assert_ne!(ada, squatted);
    assert_eq!(ids, BTreeSet::from([ada]));
    assert_eq!(fixture.proxy().count("AdminDeleteUser"), 1);
}

#[tokio::test]
async fn invited_users_are_linked_and_disabled_users_rejected() {
    let fixture = Fixture::new().await;
    // Invited without a password of their own: the same user.
    let invited = fixture.add_ada().await;
    fixture.pool().set_password(ADA, "Temporary-1", false).await;
    let ada = sign_in(&fixture).await;
    assert_eq!(ada.user.user_id, invited);
    assert!(ada.tokens.is_some());
    // Disabled: neither signed in nor replaced, with an account of any kind.
    let linked = Fixture::new().await;
    linked.add_ada().await;
    sign_in(&linked).await;
    let squatted = Fixture::new().await;
    squat(&squatted).await;
    for fixture in [fixture, linked, squatted] {
        fixture.pool().change_user("AdminDisableUser", ADA).await;
        assert_eq!(error_of(&fixture).await, "access_denied");
        assert_eq!(fixture.proxy().count("AdminDeleteUser"), 0);
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

#[tokio::test]
async fn standalone_identity_gets_a_pool_user_later() {
    // The address is verified later.
    let fixture = Fixture::new().await;
    let before = fixture.social_sign_in(UNVERIFIED_ADA).await;
    let again = fixture.social_sign_in(UNVERIFIED_ADA).await;
    assert_eq!(before, again);
    assert_eq!(before.tokens, None);
    let reason = TokensUnavailable::NoAccount;
    assert_eq!(before.tokens_unavailable, Some(reason));
    let after = sign_in(&fixture).await;
    assert!(after.tokens.is_some() && after.tokens_unavailable.is_none());
    assert_ne!(after.user.user_id, before.user.user_id);
    assert_eq!(sign_in(&fixture).await.user.user_id, after.user.user_id);

    // AWS credentials are configured later.
    let fixture = Fixture::with(FixtureOptions {
        no_credentials: true,
        ..FixtureOptions::default()
    })
    .await;
    assert_eq!(sign_in(&fixture).await.tokens, None);
    let replica = fixture.replica_with_credentials().await;
    let url = social_of(&replica).start(None).await.expect("a URL");
    let back = consent(&url, browser::ADA).await;
    let landing = social_of(&replica).handle_callback(&client(), back).await;
    let exchange = &replica.flows.exchange;
    let ada = exchange.exchange(&client(), &landing.value, None).await;
    assert!(ada.expect("exchanged").tokens.is_some());
}

#[tokio::test]
async fn address_without_authority_links_nothing() {
    let fixture = Fixture::new().await;
    let email = ADA_ELSEWHERE.email;
    let subject = fixture.pool().add_user(email, PASSWORD, true).await;
    for is_verified in [true, false] {
        let person = Person { email, is_verified };
        let found = fixture.social_sign_in(person).await;
        assert_ne!(found.user.user_id, subject);
        assert_eq!(
            (&found.tokens, found.tokens_unavailable),
            (&None, Some(TokensUnavailable::NoAccount))
        );
        let again = fixture.social_sign_in(person).await;
        assert_eq!(again, found, "the same identity");
    }
    fixture.pool().sign_in(email, PASSWORD).await;
}
