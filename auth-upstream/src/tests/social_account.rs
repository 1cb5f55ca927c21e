//! Resolution of social identities to accounts.

use std::collections::BTreeSet;
use std::sync::Arc;

use postern_common::Code;
use serde_json::json;

use crate::flows::{ExchangedIdentity, TokensUnavailable};
use crate::testing::browser::{callback, sign_in as sign_in_at_provider, start};
use crate::testing::{
    Fixture, FixtureOptions, PausePoint, REGISTRATION_DUE, StubFailure, client, registration,
    social_of,
};

const ADA: &str = "ada@example.com";
/// An address for which the provider is not authoritative.
const ADA_ELSEWHERE: &str = "ada@elsewhere.org";

/// Signs Ada in at the provider and exchanges the temporary token.
async fn sign_in(fixture: &Fixture) -> ExchangedIdentity {
    let landing = sign_in_at_provider(fixture, json!({})).await;
    assert_eq!(landing.name, "temporaryToken", "{}", landing.value);
    fixture.exchange(&landing.value).await
}

#[tokio::test]
async fn verified_account_is_linked_and_keeps_its_password() {
    let fixture = Fixture::new().await;
    let user = fixture.pool.add_user(ADA, "Password-1", true);
    let landing = sign_in_at_provider(&fixture, json!({})).await;
    let found = fixture.exchange(&landing.value).await;
    assert_eq!((found.user.user_id, found.tokens), (user.subject, None));
    assert_eq!(
        found.tokens_unavailable,
        Some(TokensUnavailable::PasswordRequired)
    );
    fixture
        .sign_in(ADA, "Password-1")
        .await
        .expect("the password works");
}

#[tokio::test]
async fn squatted_account_is_deleted_with_its_sessions() {
    let fixture = Fixture::new().await;
    let mut squat = registration(ADA, "Squatter-1");
    squat
        .profile
        .insert("firstName".to_owned(), "Mallory".into());
    let squatter = fixture
        .service
        .flows
        .registration
        .register(&client(), &squat)
        .await
        .expect("registered");
    let old = fixture
        .service
        .flows
        .current_user
        .describe(&squatter.access_token)
        .await
        .expect("a user");

    let ada = sign_in(&fixture).await;
    let tokens = ada.tokens.expect("tokens of the pool");
    let new = fixture
        .service
        .flows
        .current_user
        .describe(&tokens.access_token)
        .await
        .expect("a user");
    assert_eq!(new["userId"], ada.user.user_id.as_str());
    // The access token of the squatter identifies a deleted subject.
    assert_ne!(old["userId"], new["userId"]);
    assert!(
        fixture
            .pool
            .user(ADA)
            .is_some_and(|user| user.verified && user.subject == ada.user.user_id)
    );
    assert_eq!(
        fixture.actors.profile(&ada.user.user_id).expect("saved")["profile"]["firstName"],
        "Ada"
    );
    fixture
        .sign_in(ADA, "Squatter-1")
        .await
        .expect_err("the password is gone");
    fixture
        .refresh(&squatter)
        .await
        .expect_err("the sessions are gone");
    let again = fixture
        .service
        .flows
        .registration
        .register(&client(), &squat)
        .await
        .expect_err("the address is taken");
    assert_eq!(again.code(), Code::EmailNotAvailable);
    assert_eq!(sign_in(&fixture).await.user.user_id, ada.user.user_id);
}

#[tokio::test]
async fn next_sign_in_recovers_from_a_failed_replacement() {
    for operation in ["AdminDeleteUser", "AdminCreateUser"] {
        let fixture = Fixture::new().await;
        let squatted = fixture.pool.add_user(ADA, "Squatter-1", false);
        fixture
            .pool
            .failures
            .add(operation, StubFailure::INTERNAL_ERROR);
        let landing = sign_in_at_provider(&fixture, json!({})).await;
        assert_eq!(
            (landing.name, landing.value.as_str()),
            ("error", "temporarily_unavailable")
        );
        let ada = sign_in(&fixture).await;
        assert_ne!(ada.user.user_id, squatted.subject);
        assert!(ada.tokens.is_some());
        assert_eq!(fixture.pending_registrations().await, 0);
    }
}

#[tokio::test]
async fn address_taken_during_a_replacement_is_reclaimed() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user(ADA, "Squatter-1", false);
    let exists = StubFailure {
        status: 400,
        name: "UsernameExistsException",
        message: "x",
    };
    fixture.pool.failures.add("AdminCreateUser", exists.clone());
    let ada = sign_in(&fixture).await;
    assert!(ada.tokens.is_some());
    assert_eq!(fixture.pool.count("AdminCreateUser"), 2);

    let fixture = Fixture::new().await;
    for _ in 0..3 {
        fixture.pool.failures.add("AdminCreateUser", exists.clone());
    }
    assert_eq!(
        sign_in_at_provider(&fixture, json!({})).await.value,
        "temporarily_unavailable",
        "after three attempts"
    );
}

#[tokio::test]
async fn next_sign_in_recovers_from_a_crash_after_creation() {
    for address in [ADA, ADA_ELSEWHERE] {
        let fixture = Fixture::new().await;
        let interrupted = interrupt_after_creation(&fixture, address).await;
        let landing = sign_in_at_provider(&fixture, json!({ "email": address })).await;
        let ada = fixture.exchange(&landing.value).await;
        assert!(ada.tokens.is_some(), "{address}");
        assert_ne!(ada.user.user_id, interrupted);
        assert_eq!(fixture.pending_registrations().await, 0);
    }
}

#[tokio::test]
async fn compensation_deletes_the_user_of_a_crashed_sign_in() {
    let fixture = Fixture::new().await;
    interrupt_after_creation(&fixture, ADA).await;
    fixture.clock.advance(REGISTRATION_DUE);
    assert_eq!(fixture.compensate().await, 1);
    assert!(fixture.pool.user(ADA).is_none());
}

/// Interrupts a sign-in after AdminCreateUser: the pending registration and the pool user remain.
async fn interrupt_after_creation(fixture: &Fixture, address: &str) -> String {
    let url = start(fixture, None).await;
    let back = callback(fixture.provider.consent(&url, json!({ "email": address })));
    let paused = fixture
        .pool
        .pauses
        .add("AdminCreateUser", PausePoint::After);
    let task = tokio::spawn({
        let (service, back) = (Arc::clone(&fixture.service), back);
        async move { social_of(&service).handle_callback(&client(), back).await }
    });
    paused.reached().await;
    task.abort();
    assert!(task.await.expect_err("aborted").is_cancelled());
    assert_eq!(fixture.pending_registrations().await, 1);
    fixture.pool.user(address).expect("the user exists").subject
}

#[tokio::test]
async fn stored_identity_is_kept_by_the_compensation() {
    let fixture = Fixture::new().await;
    fixture
        .actors
        .failures_left
        .store(3, std::sync::atomic::Ordering::SeqCst);
    let ada = sign_in(&fixture).await;
    // A crash between storing the identity and deleting the pending registration.
    let now = fixture.clock.now();
    fixture
        .service
        .store
        .insert_registration("r", ADA, now, now)
        .await
        .expect("inserted");
    fixture
        .service
        .store
        .set_registration_subject("r", &ada.user.user_id)
        .await
        .expect("updated");
    assert_eq!(fixture.compensate().await, 1);
    assert!(fixture.pool.user(ADA).is_some());
    assert_eq!(sign_in(&fixture).await.user.user_id, ada.user.user_id);
    assert!(
        fixture.actors.profile(&ada.user.user_id).is_some(),
        "saved at the next sign-in"
    );
}

#[tokio::test]
async fn concurrent_sign_ins_resolve_to_one_user() {
    let fixture = Fixture::new().await;
    let squatter = fixture.pool.add_user(ADA, "Squatter-1", false);
    let mut racing = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let url = start(&fixture, None).await;
        let back = callback(fixture.provider.consent(&url, json!({})));
        let service = Arc::clone(&fixture.service);
        racing.spawn(async move {
            let landing = social_of(&service).handle_callback(&client(), back).await;
            service
                .flows
                .exchange
                .exchange(&client(), &landing.value, None)
                .await
                .expect("exchanged")
                .user
                .user_id
                .clone()
        });
        // Meanwhile another client tries to register the address.
        let service = Arc::clone(&fixture.service);
        racing.spawn(async move {
            let outcome = service
                .flows
                .registration
                .register(&client(), &registration(ADA, "Squatter-1"))
                .await;
            outcome
                .err()
                .map(|problem| problem.code().as_str().to_owned())
                .unwrap_or_default()
        });
    }
    let outcomes: BTreeSet<String> = racing.join_all().await.into_iter().collect();
    let ada = fixture.pool.user(ADA).expect("one").subject;
    assert_ne!(ada, squatter.subject);
    let ids: Vec<&String> = outcomes
        .iter()
        .filter(|outcome| outcome.len() == 36)
        .collect();
    assert_eq!(ids, [&ada], "{outcomes:?}");
    assert_eq!(fixture.pool.count("AdminDeleteUser"), 1);
}

#[tokio::test]
async fn invited_users_are_linked_and_disabled_users_rejected() {
    let fixture = Fixture::new().await;
    // Invited without a password of their own: the same user.
    let invited = fixture.pool.add_user(ADA, "Temporary-1", true);
    fixture
        .pool
        .alter(ADA, |user| user.status = "FORCE_CHANGE_PASSWORD");
    let ada = sign_in(&fixture).await;
    assert_eq!(ada.user.user_id, invited.subject);
    assert!(ada.tokens.is_some());
    // Disabled: neither signed in nor replaced.
    fixture.pool.alter(ADA, |user| user.enabled = false);
    assert_eq!(
        sign_in_at_provider(&fixture, json!({})).await.value,
        "access_denied"
    );
    let other = Fixture::new().await;
    other.pool.add_user(ADA, "Password-1", false);
    other.pool.alter(ADA, |user| user.enabled = false);
    assert_eq!(
        sign_in_at_provider(&other, json!({})).await.value,
        "access_denied"
    );
    assert_eq!(other.pool.count("AdminDeleteUser"), 0);
}

#[tokio::test]
async fn deleted_user_is_replaced_at_the_next_sign_in() {
    let fixture = Fixture::new().await;
    let first = sign_in(&fixture).await;
    let admin = fixture.service.pool.admin.as_ref().expect("credentials");
    admin
        .delete_user(&first.user.user_id)
        .await
        .expect("deleted");
    let second = sign_in(&fixture).await;
    assert_ne!(first.user.user_id, second.user.user_id);
    assert!(second.tokens.is_some());
}

#[tokio::test]
async fn standalone_identity_gets_a_pool_user_later() {
    // The address is verified later.
    let fixture = Fixture::new().await;
    let exchange = async |claims: serde_json::Value| {
        let landing = sign_in_at_provider(&fixture, claims).await;
        fixture.exchange(&landing.value).await
    };
    let unverified = json!({ "email_verified": false });
    let before = exchange(unverified.clone()).await;
    assert_eq!(
        (before.tokens, exchange(unverified).await.user.user_id),
        (None, before.user.user_id.clone())
    );
    assert_eq!(
        before.tokens_unavailable,
        Some(TokensUnavailable::NoAccount)
    );
    let after = exchange(json!({})).await;
    assert!(after.tokens.is_some() && after.tokens_unavailable.is_none());
    assert_ne!(after.user.user_id, before.user.user_id);
    assert_eq!(exchange(json!({})).await.user.user_id, after.user.user_id);

    // AWS credentials are configured later.
    let fixture = Fixture::with(FixtureOptions {
        no_credentials: true,
        ..FixtureOptions::default()
    })
    .await;
    assert_eq!(sign_in(&fixture).await.tokens, None);
    let replica = fixture.replica_with_credentials().await;
    let social = social_of(&replica);
    let url = social.start(None).await.expect("a URL");
    let back = callback(fixture.provider.consent(&url, json!({})));
    let landing = social.handle_callback(&client(), back).await;
    let ada = replica
        .flows
        .exchange
        .exchange(&client(), &landing.value, None)
        .await
        .expect("exchanged");
    assert!(ada.tokens.is_some());
}

#[tokio::test]
async fn address_without_authority_links_nothing() {
    let fixture = Fixture::new().await;
    let user = fixture.pool.add_user(ADA_ELSEWHERE, "Password-1", true);
    for claims in [
        json!({ "sub": "p-2", "email": ADA_ELSEWHERE, "email_verified": true }),
        json!({ "sub": "p-3", "email": ADA_ELSEWHERE, "email_verified": false }),
    ] {
        let landing = sign_in_at_provider(&fixture, claims.clone()).await;
        let found = fixture.exchange(&landing.value).await;
        assert_ne!(found.user.user_id, user.subject);
        assert_eq!(
            (found.tokens, found.tokens_unavailable),
            (None, Some(TokensUnavailable::NoAccount))
        );
        let again = sign_in_at_provider(&fixture, claims).await;
        let again = fixture.exchange(&again.value).await;
        assert_eq!(again.user.user_id, found.user.user_id, "the same identity");
    }
    fixture
        .sign_in(ADA_ELSEWHERE, "Password-1")
        .await
        .expect("untouched");
}
