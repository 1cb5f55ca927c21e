//! Rotation of refresh tokens, and logout.

use std::sync::Arc;
use std::time::Duration;

use postern_common::Code;
use postern_common::cache::testing::both;

use crate::crypto::VaultPurpose;
use crate::flows::{RefreshGrant, TokenSet};
use crate::telemetry::{Audited, Operation};
use crate::testing::{
    Fixture, FixtureOptions, PausePoint, REGISTRATION_DUE, StubFailure, client, refresh,
};

async fn signed_in(fixture: &Fixture) -> Audited<TokenSet> {
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    fixture
        .sign_in("ada@example.com", "Password-1")
        .await
        .expect("signed in")
}

#[tokio::test]
async fn used_token_gets_the_same_tokens_within_the_grace() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let second = fixture.refresh(&first).await.expect("refreshed");
    assert_ne!(second.access_token, first.access_token);
    fixture.clock.advance(Duration::from_secs(29));
    let again = fixture.refresh(&first).await.expect("replayed");
    assert_eq!(again, second);
    assert_eq!(fixture.pool.count("GetTokensFromRefreshToken"), 1);
    fixture.refresh(&second).await.expect("the next one works");
}

#[tokio::test]
async fn reuse_after_the_grace_revokes_the_family() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let second = fixture.refresh(&first).await.expect("refreshed");
    fixture.clock.advance(Duration::from_secs(31));
    for stolen in [&first, &second] {
        let rejected = fixture.refresh(stolen).await.expect_err("revoked");
        assert_eq!(rejected.code(), Code::InvalidRefreshToken);
    }
    assert_eq!(fixture.pool.count("RevokeToken"), 1);
    assert_eq!(
        fixture
            .service
            .metrics
            .operations(Operation::RefreshReuse, "family_revoked"),
        1
    );
    // Another sign-in of the same user starts another family.
    let other = fixture
        .sign_in("ada@example.com", "Password-1")
        .await
        .expect("signed in");
    fixture.refresh(&other).await.expect("refreshed");
}

#[tokio::test]
async fn concurrent_refreshes_share_one_call_and_its_tokens() {
    let cache = postern_common::cache::testing::redis().await;
    let fixture = Fixture::with(FixtureOptions {
        cache: Some(cache),
        ..FixtureOptions::default()
    })
    .await;
    let replicas = [Arc::clone(&fixture.service), fixture.replica().await];
    let first = signed_in(&fixture).await;
    let mut callers = tokio::task::JoinSet::new();
    for index in 0..50 {
        let (service, token) = (
            Arc::clone(&replicas[index % 2]),
            first.refresh_token.clone(),
        );
        callers.spawn(async move {
            service
                .flows
                .refresh
                .refresh(&client(), &token)
                .await
                .expect("refreshed")
        });
    }
    let answers = callers.join_all().await;
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert_eq!(fixture.pool.count("GetTokensFromRefreshToken"), 1);
}

#[tokio::test]
async fn pool_without_rotation_gets_refresh_token_auth() {
    let fixture = Fixture::new().await;
    fixture
        .pool
        .lacks_rotation
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let mut set = signed_in(&fixture).await;
    for _ in 0..3 {
        set = fixture.refresh(&set).await.expect("refreshed");
    }
    assert_eq!(fixture.pool.count("GetTokensFromRefreshToken"), 1);
}

#[tokio::test]
async fn logout_revokes_the_whole_family() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let second = fixture.refresh(&first).await.expect("refreshed");
    fixture.logout(&first).await.expect("logged out");
    assert_eq!(
        fixture.pool.live_refresh_tokens(),
        0,
        "the newest token is revoked, whichever is presented"
    );
    let rejected = fixture.refresh(&second).await.expect_err("revoked");
    assert_eq!(rejected.code(), Code::InvalidRefreshToken);
    fixture.logout(&second).await.expect("logged out twice");
    fixture
        .service
        .flows
        .logout
        .logout(&client(), "never a token")
        .await
        .expect("nothing to revoke");
}

/// The causes for which a family ends: a logout, or reuse of a token after the grace.
#[derive(Clone, Copy, PartialEq)]
enum FamilyEnd {
    Logout,
    Reuse,
}

#[tokio::test]
async fn refresh_in_flight_does_not_undo_the_end_of_its_family() {
    for end in [FamilyEnd::Logout, FamilyEnd::Reuse] {
        for cache in both().await {
            let is_shared = cache.url != "memory:";
            let fixture = Fixture::with(FixtureOptions {
                cache: Some(cache),
                ..FixtureOptions::default()
            })
            .await;
            let replica = if is_shared {
                fixture.replica().await
            } else {
                Arc::clone(&fixture.service)
            };
            let first = signed_in(&fixture).await;
            let second = fixture.refresh(&first).await.expect("refreshed");
            // The pool has rotated the token; its response is paused.
            let paused = fixture
                .pool
                .pauses
                .add("GetTokensFromRefreshToken", PausePoint::After);
            let (service, newest) = (Arc::clone(&fixture.service), second.refresh_token.clone());
            let in_flight =
                tokio::spawn(
                    async move { service.flows.refresh.refresh(&client(), &newest).await },
                );
            paused.reached().await;
            if end == FamilyEnd::Logout {
                replica
                    .flows
                    .logout
                    .logout(&client(), &second.refresh_token)
                    .await
                    .expect("logged out");
            } else {
                // Ends the grace.
                let replay = VaultPurpose::RefreshReplay.cache_key(&first.refresh_token);
                fixture
                    .service
                    .cache
                    .delete(&replay)
                    .await
                    .expect("deleted");
                refresh(&replica, &first).await.expect_err("used before");
            }
            paused.release();
            let rejected = in_flight
                .await
                .expect("no panic")
                .expect_err("the family has ended");
            assert_eq!(rejected.code(), Code::InvalidRefreshToken);
            assert_eq!(
                fixture.pool.live_refresh_tokens(),
                0,
                "the new token is revoked at the pool"
            );
            for token in [&first, &second] {
                let rejected = fixture.refresh(token).await.expect_err("ended");
                assert_eq!(rejected.code(), Code::InvalidRefreshToken);
            }
        }
    }
}

#[tokio::test]
async fn used_token_gets_no_replay_after_logout() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let second = fixture.refresh(&first).await.expect("refreshed");
    fixture.logout(&second).await.expect("logged out");
    let rejected = fixture.refresh(&first).await.expect_err("ended");
    assert_eq!(rejected.code(), Code::InvalidRefreshToken);
}

#[tokio::test]
async fn logout_repeated_after_a_pool_failure_revokes_at_the_pool() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let failure = StubFailure::INTERNAL_ERROR;
    fixture.pool.failures.add("RevokeToken", failure);
    let failed = fixture
        .logout(&first)
        .await
        .expect_err("the pool is unavailable");
    assert!(failed.code().status().is_server_error());
    fixture.logout(&first).await.expect("logged out");
    assert_eq!(fixture.pool.live_refresh_tokens(), 0);
}

#[tokio::test]
async fn refresh_completes_after_the_client_disconnects() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let paused = fixture
        .pool
        .pauses
        .add("GetTokensFromRefreshToken", PausePoint::After);
    let (service, token) = (Arc::clone(&fixture.service), first.refresh_token.clone());
    let in_flight =
        tokio::spawn(async move { service.flows.refresh.refresh(&client(), &token).await });
    paused.reached().await;
    in_flight.abort();
    paused.release();
    let second = fixture.refresh(&first).await.expect("the same tokens");
    assert_eq!(fixture.pool.count("GetTokensFromRefreshToken"), 1);
    fixture.refresh(&second).await.expect("the next one works");
}

#[tokio::test]
async fn undecodable_family_is_rejected() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let family = RefreshGrant::open(
        &fixture.service.flows.refresh.key_ring,
        &first.refresh_token,
    )
    .expect("a grant")
    .family;
    let key = format!("postern:auth:family:{family}");
    fixture
        .service
        .cache
        .set(&key, b"{\"Ended\":{}}", REGISTRATION_DUE)
        .await
        .expect("stored");
    let rejected = fixture.refresh(&first).await.expect_err("unreadable");
    assert_eq!(rejected.code(), Code::InvalidRefreshToken);
}

#[tokio::test]
async fn family_has_a_quota_of_refreshes() {
    let fixture = Fixture::with_config("[refresh]\nquota = 3").await;
    let mut set = signed_in(&fixture).await;
    for _ in 0..3 {
        set = fixture.refresh(&set).await.expect("within the quota");
    }
    let rejected = fixture.refresh(&set).await.expect_err("too many");
    assert_eq!(rejected.code(), Code::RateLimited);
    assert_eq!(
        fixture.pool.count("GetTokensFromRefreshToken"),
        3,
        "the pool is not called"
    );
    let other = fixture
        .sign_in("ada@example.com", "Password-1")
        .await
        .expect("signed in");
    fixture.refresh(&other).await.expect("another family");
    fixture.clock.advance(Duration::from_secs(10 * 60));
    fixture
        .refresh(&set)
        .await
        .expect("the token is still valid");
}
