//! Who a provider's subject is here: links, and accounts that somebody made in advance.

use std::collections::BTreeSet;
use std::sync::Arc;

use postern_common::Code;
use serde_json::json;

use crate::temporary_token::{Exchanged, TokensUnavailable};
use crate::testing::social::{begin, callback, land};
use crate::testing::{Failure, Fixture, LATER, When, Wish, login, registration, visitor};

const ADA: &str = "ada@example.com";
/// An address that the provider verified and does not hand out.
const ELSEWHERE: &str = "ada@elsewhere.org";

/// Ada signs in at the provider and the UI exchanges the temporary token.
async fn sign_in(fixture: &Fixture) -> Exchanged {
    let landing = land(fixture, json!({})).await;
    assert_eq!(landing.name, "temporaryToken", "{}", landing.value);
    fixture
        .auth
        .exchange(&visitor(), &landing.value, None)
        .await
        .expect("exchanged")
}

fn away() -> Failure {
    Failure {
        status: 500,
        name: "InternalErrorException",
        message: "x",
    }
}

#[tokio::test]
async fn a_verified_account_is_linked_and_keeps_its_password() {
    let fixture = Fixture::new().await;
    let user = fixture.pool.add_user(ADA, "Password-1", true);
    let landing = land(&fixture, json!({})).await;
    let found = fixture
        .auth
        .exchange(&visitor(), &landing.value, None)
        .await
        .expect("exchanged");
    assert_eq!((found.user.user_id, found.tokens), (user.subject, None));
    assert_eq!(
        found.tokens_unavailable,
        Some(TokensUnavailable::PasswordRequired)
    );
    fixture
        .auth
        .login(&visitor(), &login(ADA, "Password-1"))
        .await
        .expect("the password works");
}

#[tokio::test]
async fn who_registered_a_strangers_address_in_advance_keeps_nothing_of_it() {
    let fixture = Fixture::new().await;
    let mut squat = registration(ADA, "Squatter-1");
    squat
        .profile
        .insert("firstName".to_owned(), "Mallory".into());
    let squatter = fixture
        .auth
        .register(&visitor(), &squat)
        .await
        .expect("registered");
    let old = fixture
        .auth
        .me(&squatter.access_token)
        .await
        .expect("a user");

    let ada = sign_in(&fixture).await;
    let tokens = ada.tokens.expect("tokens of the pool");
    let new = fixture.auth.me(&tokens.access_token).await.expect("a user");
    assert_eq!(new["userId"], ada.user.user_id.as_str());
    // The token that the squatter still holds speaks for a subject that is nobody's any more.
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
        .auth
        .login(&visitor(), &login(ADA, "Squatter-1"))
        .await
        .expect_err("the password is gone");
    fixture
        .auth
        .refresh(&visitor(), &squatter.refresh_token)
        .await
        .expect_err("the sessions are gone");
    let again = fixture
        .auth
        .register(&visitor(), &squat)
        .await
        .expect_err("the address is taken");
    assert_eq!(again.code(), Code::EmailNotAvailable);
    assert_eq!(sign_in(&fixture).await.user.user_id, ada.user.user_id);
}

#[tokio::test]
async fn an_outage_between_deleting_and_making_is_mended_by_the_next_sign_in() {
    for operation in ["AdminDeleteUser", "AdminCreateUser"] {
        let fixture = Fixture::new().await;
        let squatted = fixture.pool.add_user(ADA, "Squatter-1", false);
        fixture.pool.script.add(operation, away());
        let landing = land(&fixture, json!({})).await;
        assert_eq!(
            (landing.name, landing.value.as_str()),
            ("error", "temporarily_unavailable")
        );
        let ada = sign_in(&fixture).await;
        assert_ne!(ada.user.user_id, squatted.subject);
        assert!(ada.tokens.is_some());
        assert_eq!(
            fixture
                .auth
                .store
                .count_registrations()
                .await
                .expect("count"),
            0
        );
    }
}

#[tokio::test]
async fn who_takes_the_address_between_deleting_and_making_loses_it_again() {
    let fixture = Fixture::new().await;
    fixture.pool.add_user(ADA, "Squatter-1", false);
    let exists = Failure {
        status: 400,
        name: "UsernameExistsException",
        message: "x",
    };
    fixture.pool.script.add("AdminCreateUser", exists.clone());
    let ada = sign_in(&fixture).await;
    assert!(ada.tokens.is_some());
    assert_eq!(fixture.pool.count("AdminCreateUser"), 2);

    let fixture = Fixture::new().await;
    for _ in 0..3 {
        fixture.pool.script.add("AdminCreateUser", exists.clone());
    }
    assert_eq!(
        land(&fixture, json!({})).await.value,
        "temporarily_unavailable",
        "not for ever"
    );
}

#[tokio::test]
async fn a_crash_behind_the_making_of_the_user_loses_nobody() {
    for address in [ADA, ELSEWHERE] {
        let fixture = Fixture::new().await;
        let half_made = cut_off(&fixture, address).await;
        let landing = land(&fixture, json!({ "email": address })).await;
        let ada = fixture
            .auth
            .exchange(&visitor(), &landing.value, None)
            .await
            .expect("exchanged");
        assert!(ada.tokens.is_some(), "{address}");
        assert_ne!(ada.user.user_id, half_made);
        assert_eq!(
            fixture
                .auth
                .store
                .count_registrations()
                .await
                .expect("count"),
            0
        );
    }
}

#[tokio::test]
async fn a_user_whose_making_was_cut_off_goes_if_nobody_comes_back() {
    let fixture = Fixture::new().await;
    cut_off(&fixture, ADA).await;
    fixture.clock.advance(LATER);
    assert_eq!(fixture.auth.compensate_due().await.expect("due"), 1);
    assert!(fixture.pool.user(ADA).is_none());
}

/// A sign-in whose process died behind AdminCreateUser: only the note and the pool user are left.
async fn cut_off(fixture: &Fixture, address: &str) -> String {
    let url = begin(fixture, None).await;
    let back = callback(fixture.provider.consent(&url, json!({ "email": address })));
    let held = fixture.pool.holds.add("AdminCreateUser", When::After);
    let task = tokio::spawn({
        let (auth, back) = (Arc::clone(&fixture.auth), back);
        async move {
            let social = auth.social.as_ref().expect("on");
            auth.finish_social(&visitor(), social, back).await
        }
    });
    held.reached().await;
    task.abort();
    assert!(task.await.expect_err("cut off").is_cancelled());
    assert_eq!(
        fixture
            .auth
            .store
            .count_registrations()
            .await
            .expect("count"),
        1
    );
    fixture.pool.user(address).expect("half made").subject
}

#[tokio::test]
async fn a_saved_identity_is_never_undone() {
    let fixture = Fixture::new().await;
    fixture
        .actors
        .failing
        .store(3, std::sync::atomic::Ordering::SeqCst);
    let ada = sign_in(&fixture).await;
    // Cut off between the identity and the end of the note.
    let now = fixture.clock.now();
    fixture
        .auth
        .store
        .begin_registration("r", ADA, now, now)
        .await
        .expect("begun");
    fixture
        .auth
        .store
        .name_registration("r", &ada.user.user_id)
        .await
        .expect("named");
    assert_eq!(fixture.auth.compensate_due().await.expect("due"), 1);
    assert!(fixture.pool.user(ADA).is_some());
    assert_eq!(sign_in(&fixture).await.user.user_id, ada.user.user_id);
    assert!(
        fixture.actors.profile(&ada.user.user_id).is_some(),
        "saved at the next sign-in"
    );
}

#[tokio::test]
async fn of_sign_ins_that_race_all_are_the_same_person() {
    let fixture = Fixture::new().await;
    let squatter = fixture.pool.add_user(ADA, "Squatter-1", false);
    let mut racing = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let url = begin(&fixture, None).await;
        let back = callback(fixture.provider.consent(&url, json!({})));
        let auth = Arc::clone(&fixture.auth);
        racing.spawn(async move {
            let social = auth.social.as_ref().expect("on");
            let landing = auth.finish_social(&visitor(), social, back).await;
            auth.exchange(&visitor(), &landing.value, None)
                .await
                .expect("exchanged")
                .user
                .user_id
        });
        // Somebody else goes on trying to have the address.
        let auth = Arc::clone(&fixture.auth);
        racing.spawn(async move {
            let outcome = auth
                .register(&visitor(), &registration(ADA, "Squatter-1"))
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
async fn an_operators_word_counts() {
    let fixture = Fixture::new().await;
    // Invited, and never came: the same user, who has no password of its own.
    let invited = fixture.pool.add_user(ADA, "Temporary-1", true);
    fixture
        .pool
        .alter(ADA, |user| user.status = "FORCE_CHANGE_PASSWORD");
    let ada = sign_in(&fixture).await;
    assert_eq!(ada.user.user_id, invited.subject);
    assert!(ada.tokens.is_some());
    // Disabled: neither let in nor replaced.
    fixture.pool.alter(ADA, |user| user.enabled = false);
    assert_eq!(land(&fixture, json!({})).await.value, "access_denied");
    let other = Fixture::new().await;
    other.pool.add_user(ADA, "Password-1", false);
    other.pool.alter(ADA, |user| user.enabled = false);
    assert_eq!(land(&other, json!({})).await.value, "access_denied");
    assert_eq!(other.pool.count("AdminDeleteUser"), 0);
}

#[tokio::test]
async fn a_person_whose_user_was_deleted_begins_anew() {
    let fixture = Fixture::new().await;
    let first = sign_in(&fixture).await;
    let admin = fixture.auth.pool.admin.as_ref().expect("credentials");
    admin.delete(&first.user.user_id).await.expect("deleted");
    let second = sign_in(&fixture).await;
    assert_ne!(first.user.user_id, second.user.user_id);
    assert!(second.tokens.is_some());
}

#[tokio::test]
async fn who_had_no_pool_user_gets_one_as_soon_as_that_is_possible() {
    // An address that is verified later.
    let fixture = Fixture::new().await;
    let exchange = async |claims: serde_json::Value| {
        let landing = land(&fixture, claims).await;
        fixture
            .auth
            .exchange(&visitor(), &landing.value, None)
            .await
            .expect("exchanged")
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

    // Credentials that come later.
    let fixture = Fixture::with(Wish {
        no_credentials: true,
        ..Wish::default()
    })
    .await;
    assert_eq!(sign_in(&fixture).await.tokens, None);
    let replica = fixture.replica_with_credentials().await;
    let social = replica.social.as_ref().expect("on");
    let url = replica.begin_social(social, None).await.expect("a URL");
    let back = callback(fixture.provider.consent(&url, json!({})));
    let landing = replica.finish_social(&visitor(), social, back).await;
    let ada = replica
        .exchange(&visitor(), &landing.value, None)
        .await
        .expect("exchanged");
    assert!(ada.tokens.is_some());
}

#[tokio::test]
async fn an_address_alone_links_nothing() {
    let fixture = Fixture::new().await;
    let user = fixture.pool.add_user(ELSEWHERE, "Password-1", true);
    for claims in [
        json!({ "sub": "p-2", "email": ELSEWHERE, "email_verified": true }),
        json!({ "sub": "p-3", "email": ELSEWHERE, "email_verified": false }),
    ] {
        let landing = land(&fixture, claims.clone()).await;
        let found = fixture
            .auth
            .exchange(&visitor(), &landing.value, None)
            .await
            .expect("exchanged");
        assert_ne!(found.user.user_id, user.subject);
        assert_eq!(
            (found.tokens, found.tokens_unavailable),
            (None, Some(TokensUnavailable::NoAccount))
        );
        let again = land(&fixture, claims).await;
        let again = fixture
            .auth
            .exchange(&visitor(), &again.value, None)
            .await
            .expect("exchanged");
        assert_eq!(again.user.user_id, found.user.user_id, "the same identity");
    }
    fixture
        .auth
        .login(&visitor(), &login(ELSEWHERE, "Password-1"))
        .await
        .expect("untouched");
}
