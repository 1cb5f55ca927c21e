//! Refresh and logout, which are calls to the pool.

use std::sync::atomic::Ordering;

use postern_common::Code;

use crate::flows::TokenSet;
use crate::telemetry::{Audited, Operation};
use crate::testing::{Fixture, StubFailure, client};

async fn signed_in(fixture: &Fixture) -> Audited<TokenSet> {
    fixture.pool.add_user("ada@example.com", "Password-1", true);
    fixture
        .sign_in("ada@example.com", "Password-1")
        .await
        .expect("signed in")
}

fn exception(name: &'static str, message: &'static str) -> StubFailure {
    StubFailure {
        status: 400,
        name,
        message,
    }
}

#[tokio::test]
async fn rotated_token_is_passed_on() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let second = fixture.refresh(&first).await.expect("refreshed");
    assert_ne!(second.access_token, first.access_token);
    // The stub has no grace period: only the new token is valid.
    let third = fixture.refresh(&second).await.expect("the new token");
    let rejected = fixture.refresh(&first).await.expect_err("rotated");
    assert_eq!(rejected.code(), Code::InvalidRefreshToken);
    fixture.refresh(&third).await.expect("the newest token");
    assert_eq!(fixture.pool.count("GetTokensFromRefreshToken"), 4);
}

#[tokio::test]
async fn refused_call_is_replaced_by_the_other_one() {
    let fixture = Fixture::new().await;
    let mut set = signed_in(&fixture).await;
    let calls = || {
        ["GetTokensFromRefreshToken", "InitiateAuth"].map(|operation| fixture.pool.count(operation))
    };
    assert_eq!(calls(), [0, 1], "the sign-in");
    fixture.pool.lacks_rotation.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        set = fixture.refresh(&set).await.expect("REFRESH_TOKEN_AUTH");
    }
    assert_eq!(calls(), [1, 4], "the first call is tried once");
    fixture.pool.lacks_rotation.store(false, Ordering::SeqCst);
    for _ in 0..3 {
        set = fixture.refresh(&set).await.expect("rotated");
    }
    assert_eq!(calls(), [4, 5]);
}

#[tokio::test]
async fn pool_errors_have_problem_codes() {
    let fixture = Fixture::new().await;
    let set = signed_in(&fixture).await;
    let not_authorized = |message| exception("NotAuthorizedException", message);
    for (failure, code) in [
        (
            not_authorized("Refresh Token has been revoked"),
            Code::InvalidRefreshToken,
        ),
        (
            not_authorized("Refresh Token has expired"),
            Code::InvalidRefreshToken,
        ),
        (
            exception("RefreshTokenReuseException", "reused"),
            Code::InvalidRefreshToken,
        ),
        (
            exception("TooManyRequestsException", "x"),
            Code::RateLimited,
        ),
        (StubFailure::INTERNAL_ERROR, Code::Unavailable),
    ] {
        let operation = "GetTokensFromRefreshToken";
        fixture.pool.failures.add(operation, failure);
        let rejected = fixture.refresh(&set).await.expect_err("a failure");
        assert_eq!(rejected.code(), code);
    }
    for operation in ["GetTokensFromRefreshToken", "InitiateAuth"] {
        let failure = not_authorized("Unable to verify secret hash for client");
        fixture.pool.failures.add(operation, failure);
    }
    let rejected = fixture.refresh(&set).await.expect_err("a wrong secret");
    assert_eq!(rejected.code(), Code::IdpMisconfigured);
    fixture
        .refresh(&set)
        .await
        .expect("the token is still valid");
    let metrics = &fixture.service.metrics;
    let reused = metrics.operations(Operation::RefreshReuse, "invalid_refresh_token");
    assert_eq!(reused, 1);
}

#[tokio::test]
async fn logout_revokes_the_token_at_the_pool() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let failure = StubFailure::INTERNAL_ERROR;
    fixture.pool.failures.add("RevokeToken", failure);
    let failed = fixture.logout(&first).await.expect_err("a failure");
    assert_eq!(failed.code(), Code::Unavailable);
    fixture.logout(&first).await.expect("repeated");
    assert_eq!(fixture.pool.live_refresh_tokens(), 0);
    let rejected = fixture.refresh(&first).await.expect_err("revoked");
    assert_eq!(rejected.code(), Code::InvalidRefreshToken);
    let flow = &fixture.service.flows.logout;
    let outcome = flow.logout(&client(), "never a token").await;
    outcome.expect("nothing to revoke");
    assert_eq!(fixture.pool.count("RevokeToken"), 2);
}
