use std::sync::Arc;
use std::time::Duration;

use postern_common::Code;
use postern_common::cache::testing::both;

use crate::audit::Act;
use crate::grant::Grant;
use crate::testing::{Failure, Fixture, LATER, When, Wish, login, visitor};
use crate::token_set::TokenSet;
use crate::vault::Drawer;

async fn signed_in(fixture: &Fixture) -> TokenSet {
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    fixture
        .auth
        .login(&visitor(), &login("ada@example.com", "Password-1"))
        .await
        .expect("signed in")
}

#[tokio::test]
async fn a_token_used_again_within_the_grace_gets_the_same_pair() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let second = fixture
        .auth
        .refresh(&visitor(), &first.refresh_token)
        .await
        .expect("refreshed");
    assert_ne!(second.access_token, first.access_token);
    fixture.clock.advance(Duration::from_secs(29));
    let again = fixture
        .auth
        .refresh(&visitor(), &first.refresh_token)
        .await
        .expect("replayed");
    assert_eq!(again, second);
    assert_eq!(fixture.pool.count("GetTokensFromRefreshToken"), 1);
    fixture
        .auth
        .refresh(&visitor(), &second.refresh_token)
        .await
        .expect("the next one works");
}

#[tokio::test]
async fn after_the_grace_the_whole_family_is_revoked() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let second = fixture
        .auth
        .refresh(&visitor(), &first.refresh_token)
        .await
        .expect("refreshed");
    fixture.clock.advance(Duration::from_secs(31));
    for stolen in [&first, &second] {
        let refused = fixture
            .auth
            .refresh(&visitor(), &stolen.refresh_token)
            .await
            .expect_err("revoked");
        assert_eq!(refused.code(), Code::InvalidRefreshToken);
    }
    assert_eq!(fixture.pool.count("RevokeToken"), 1);
    assert_eq!(
        fixture
            .auth
            .metrics
            .counted(Act::RefreshReuse, "family_revoked"),
        1
    );
    // Another sign-in of the same person is another family.
    let other = fixture
        .auth
        .login(&visitor(), &login("ada@example.com", "Password-1"))
        .await
        .expect("in");
    fixture
        .auth
        .refresh(&visitor(), &other.refresh_token)
        .await
        .expect("refreshed");
}

#[tokio::test]
async fn fifty_at_once_on_two_replicas_cost_one_call_and_get_equal_answers() {
    let cache = postern_common::cache::testing::redis().await;
    let fixture = Fixture::with(Wish {
        cache: Some(cache),
        ..Wish::default()
    })
    .await;
    let replicas = [Arc::clone(&fixture.auth), fixture.replica().await];
    let first = signed_in(&fixture).await;
    let mut callers = tokio::task::JoinSet::new();
    for index in 0..50 {
        let (auth, token) = (
            Arc::clone(&replicas[index % 2]),
            first.refresh_token.clone(),
        );
        callers.spawn(async move { auth.refresh(&visitor(), &token).await.expect("refreshed") });
    }
    let answers = callers.join_all().await;
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert_eq!(fixture.pool.count("GetTokensFromRefreshToken"), 1);
}

#[tokio::test]
async fn a_pool_without_rotation_is_asked_the_older_way() {
    let fixture = Fixture::new().await;
    fixture
        .pool
        .lacks_rotation
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let mut set = signed_in(&fixture).await;
    for _ in 0..3 {
        set = fixture
            .auth
            .refresh(&visitor(), &set.refresh_token)
            .await
            .expect("refreshed");
    }
    assert_eq!(fixture.pool.count("GetTokensFromRefreshToken"), 1);
}

#[tokio::test]
async fn after_logout_nothing_of_the_family_works() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let second = fixture
        .auth
        .refresh(&visitor(), &first.refresh_token)
        .await
        .expect("refreshed");
    fixture
        .auth
        .logout(&visitor(), &first.refresh_token)
        .await
        .expect("out");
    assert_eq!(
        fixture.pool.live_refresh_tokens(),
        0,
        "the newest is revoked, whichever is shown"
    );
    let refused = fixture
        .auth
        .refresh(&visitor(), &second.refresh_token)
        .await
        .expect_err("revoked");
    assert_eq!(refused.code(), Code::InvalidRefreshToken);
    fixture
        .auth
        .logout(&visitor(), &second.refresh_token)
        .await
        .expect("out twice");
    fixture
        .auth
        .logout(&visitor(), "never a token")
        .await
        .expect("out without a token");
}

/// What ends a family: a logout, and an older token that is used after the grace.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Logout,
    Reuse,
}

#[tokio::test]
async fn refresh_in_flight_does_not_undo_the_end_of_its_family() {
    for end in [End::Logout, End::Reuse] {
        for cache in both().await {
            let is_shared = cache.url != "memory:";
            let fixture = Fixture::with(Wish {
                cache: Some(cache),
                ..Wish::default()
            })
            .await;
            let replica = if is_shared {
                fixture.replica().await
            } else {
                Arc::clone(&fixture.auth)
            };
            let first = signed_in(&fixture).await;
            let second = fixture
                .auth
                .refresh(&visitor(), &first.refresh_token)
                .await
                .expect("refreshed");
            // The pool has rotated, and its answer is on the way.
            let held = fixture
                .pool
                .holds
                .add("GetTokensFromRefreshToken", When::After);
            let (auth, newest) = (Arc::clone(&fixture.auth), second.refresh_token.clone());
            let in_flight = tokio::spawn(async move { auth.refresh(&visitor(), &newest).await });
            held.reached().await;
            if end == End::Logout {
                replica
                    .logout(&visitor(), &second.refresh_token)
                    .await
                    .expect("out");
            } else {
                // The grace is over.
                let replay = Drawer::RefreshReplay.entry(&first.refresh_token);
                fixture.auth.cache.delete(&replay).await.expect("deleted");
                replica
                    .refresh(&visitor(), &first.refresh_token)
                    .await
                    .expect_err("used before");
            }
            held.release();
            let refused = in_flight
                .await
                .expect("no panic")
                .expect_err("the family has ended");
            assert_eq!(refused.code(), Code::InvalidRefreshToken);
            assert_eq!(
                fixture.pool.live_refresh_tokens(),
                0,
                "what the pool gave is revoked there"
            );
            for token in [&first, &second] {
                let refused = fixture
                    .auth
                    .refresh(&visitor(), &token.refresh_token)
                    .await
                    .expect_err("ended");
                assert_eq!(refused.code(), Code::InvalidRefreshToken);
            }
        }
    }
}

#[tokio::test]
async fn used_token_gets_no_replay_after_logout() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let second = fixture
        .auth
        .refresh(&visitor(), &first.refresh_token)
        .await
        .expect("refreshed");
    fixture
        .auth
        .logout(&visitor(), &second.refresh_token)
        .await
        .expect("out");
    let refused = fixture
        .auth
        .refresh(&visitor(), &first.refresh_token)
        .await
        .expect_err("ended");
    assert_eq!(refused.code(), Code::InvalidRefreshToken);
}

#[tokio::test]
async fn logout_repeated_after_a_pool_failure_revokes_at_the_pool() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let away = Failure {
        status: 500,
        name: "InternalErrorException",
        message: "",
    };
    fixture.pool.script.add("RevokeToken", away);
    let failed = fixture
        .auth
        .logout(&visitor(), &first.refresh_token)
        .await
        .expect_err("the pool is away");
    assert!(failed.code().status().is_server_error());
    fixture
        .auth
        .logout(&visitor(), &first.refresh_token)
        .await
        .expect("out");
    assert_eq!(fixture.pool.live_refresh_tokens(), 0);
}

#[tokio::test]
async fn refresh_of_a_client_that_went_away_is_finished() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let held = fixture
        .pool
        .holds
        .add("GetTokensFromRefreshToken", When::After);
    let (auth, token) = (Arc::clone(&fixture.auth), first.refresh_token.clone());
    let in_flight = tokio::spawn(async move { auth.refresh(&visitor(), &token).await });
    held.reached().await;
    in_flight.abort();
    held.release();
    let second = fixture
        .auth
        .refresh(&visitor(), &first.refresh_token)
        .await
        .expect("the same answer");
    assert_eq!(fixture.pool.count("GetTokensFromRefreshToken"), 1);
    fixture
        .auth
        .refresh(&visitor(), &second.refresh_token)
        .await
        .expect("the next one works");
}

#[tokio::test]
async fn family_that_cannot_be_read_is_refused() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let family = Grant::open(&fixture.auth.ring, &first.refresh_token)
        .expect("ours")
        .family;
    let key = format!("postern:auth:family:{family}");
    fixture
        .auth
        .cache
        .set(&key, b"{\"Ended\":{}}", LATER)
        .await
        .expect("kept");
    let refused = fixture
        .auth
        .refresh(&visitor(), &first.refresh_token)
        .await
        .expect_err("unreadable");
    assert_eq!(refused.code(), Code::InvalidRefreshToken);
}

#[tokio::test]
async fn family_has_a_quota_of_refreshes() {
    let fixture = Fixture::with(Wish {
        config: "[refresh]\nquota = 3",
        ..Wish::default()
    })
    .await;
    let mut set = signed_in(&fixture).await;
    for _ in 0..3 {
        set = fixture
            .auth
            .refresh(&visitor(), &set.refresh_token)
            .await
            .expect("within the quota");
    }
    let refused = fixture
        .auth
        .refresh(&visitor(), &set.refresh_token)
        .await
        .expect_err("too many");
    assert_eq!(refused.code(), Code::RateLimited);
    assert_eq!(
        fixture.pool.count("GetTokensFromRefreshToken"),
        3,
        "the pool is not asked"
    );
    let other = fixture
        .auth
        .login(&visitor(), &login("ada@example.com", "Password-1"))
        .await
        .expect("in");
    fixture
        .auth
        .refresh(&visitor(), &other.refresh_token)
        .await
        .expect("another family");
    fixture.clock.advance(Duration::from_secs(10 * 60));
    fixture
        .auth
        .refresh(&visitor(), &set.refresh_token)
        .await
        .expect("the token is still good");
}
