use std::sync::Arc;
use std::time::Duration;

use postern_common::Code;

use crate::audit::Act;
use crate::testing::{Fixture, Wish, login, visitor};
use crate::token_set::TokenSet;

async fn signed_in(fixture: &Fixture) -> TokenSet {
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    fixture.auth.login(&visitor(), &login("ada@example.com", "Password-1")).await.expect("signed in")
}

#[tokio::test]
async fn a_token_used_again_within_the_grace_gets_the_same_pair() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let second = fixture.auth.refresh(&visitor(), &first.refresh_token).await.expect("refreshed");
    assert_ne!(second.access_token, first.access_token);
    fixture.clock.advance(Duration::from_secs(29));
    let again = fixture.auth.refresh(&visitor(), &first.refresh_token).await.expect("replayed");
    assert_eq!(again, second);
    assert_eq!(fixture.pool.count("GetTokensFromRefreshToken"), 1);
    fixture.auth.refresh(&visitor(), &second.refresh_token).await.expect("the next one works");
}

#[tokio::test]
async fn after_the_grace_the_whole_family_is_revoked() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let second = fixture.auth.refresh(&visitor(), &first.refresh_token).await.expect("refreshed");
    fixture.clock.advance(Duration::from_secs(31));
    for stolen in [&first, &second] {
        let refused = fixture.auth.refresh(&visitor(), &stolen.refresh_token).await.expect_err("revoked");
        assert_eq!(refused.code(), Code::InvalidRefreshToken);
    }
    assert_eq!(fixture.pool.count("RevokeToken"), 1);
    assert_eq!(fixture.auth.metrics.counted(Act::RefreshReuse, "family_revoked"), 1);
    // Another sign-in of the same person is another family.
    let other = fixture.auth.login(&visitor(), &login("ada@example.com", "Password-1")).await.expect("in");
    fixture.auth.refresh(&visitor(), &other.refresh_token).await.expect("refreshed");
}

#[tokio::test]
async fn fifty_at_once_on_two_replicas_cost_one_call_and_get_equal_answers() {
    let cache = postern_common::cache::testing::redis().await;
    let fixture = Fixture::with(Wish { cache: Some(cache), ..Wish::default() }).await;
    let replicas = [Arc::clone(&fixture.auth), fixture.replica().await];
    let first = signed_in(&fixture).await;
    let mut callers = tokio::task::JoinSet::new();
    for index in 0..50 {
        let (auth, token) = (Arc::clone(&replicas[index % 2]), first.refresh_token.clone());
        callers.spawn(async move { auth.refresh(&visitor(), &token).await.expect("refreshed") });
    }
    let answers = callers.join_all().await;
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    assert_eq!(fixture.pool.count("GetTokensFromRefreshToken"), 1);
}

#[tokio::test]
async fn a_pool_without_rotation_is_asked_the_older_way() {
    let fixture = Fixture::new().await;
    fixture.pool.lacks_rotation.store(true, std::sync::atomic::Ordering::SeqCst);
    let mut set = signed_in(&fixture).await;
    for _ in 0..3 {
        set = fixture.auth.refresh(&visitor(), &set.refresh_token).await.expect("refreshed");
    }
    assert_eq!(fixture.pool.count("GetTokensFromRefreshToken"), 1);
}

#[tokio::test]
async fn after_logout_nothing_of_the_family_works() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let second = fixture.auth.refresh(&visitor(), &first.refresh_token).await.expect("refreshed");
    fixture.auth.logout(&visitor(), &first.refresh_token).await.expect("out");
    assert_eq!(fixture.pool.count("RevokeToken"), 1);
    let refused = fixture.auth.refresh(&visitor(), &second.refresh_token).await.expect_err("revoked");
    assert_eq!(refused.code(), Code::InvalidRefreshToken);
    fixture.auth.logout(&visitor(), &second.refresh_token).await.expect("out twice");
    fixture.auth.logout(&visitor(), "never a token").await.expect("out without a token");
}
