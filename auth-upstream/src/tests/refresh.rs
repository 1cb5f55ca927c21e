//! Refresh and logout, which are calls to the pool.

use std::time::Duration;

use postern_core::Code;

use crate::flows::{RefreshGrant, TokenSet};
use crate::telemetry::Operation;
use crate::testing::{ADA, Fault, Fixture, PASSWORD, client, plain, refused};

const ROTATION: &str = "GetTokensFromRefreshToken";

async fn signed_in(fixture: &Fixture) -> TokenSet {
    fixture.add_ada().await;
    fixture.sign_in(PASSWORD).await.expect("signed in")
}

async fn logout(fixture: &Fixture, refresh_token: &str) -> Result<(), Code> {
    let outcome = plain(fixture.flows().logout(&client(), refresh_token).await);
    outcome.map_err(|problem| problem.code())
}

#[tokio::test]
async fn rotated_token_is_passed_on_and_reuse_ends_the_session() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    let second = fixture.refresh(&first).await.expect("refreshed");
    assert_ne!(second.access_token, first.access_token);
    fixture
        .refresh(&first)
        .await
        .expect("within the grace period");
    fixture.clock.advance(Duration::from_secs(31));
    let third = fixture.refresh(&second).await.expect("the new token");
    for set in [&first, &third] {
        refused(fixture.refresh(set).await, Code::InvalidRefreshToken);
    }
    let metrics = &fixture.service.metrics;
    let reused = metrics.operations(Operation::RefreshReuse, "invalid_refresh_token");
    assert_eq!(reused, 1);
}

#[tokio::test]
async fn refused_call_is_replaced_by_the_other_one() {
    let fixture = Fixture::new().await;
    let mut set = signed_in(&fixture).await;
    let calls = || [ROTATION, "InitiateAuth"].map(|call| fixture.count(call));
    assert_eq!(calls(), [0, 1], "the sign-in");
    // A pool without rotation: its answers have no refresh token.
    let refusal = Fault::exception("UnknownOperationException", "");
    fixture.inject(ROTATION, 1, refusal);
    let mut tokens = fixture.pool().sign_in(ADA, PASSWORD).await;
    tokens["AuthenticationResult"]["RefreshToken"].take();
    fixture.inject("InitiateAuth", 3, Fault::answer(200, &tokens));
    for _ in 0..3 {
        set = fixture.refresh(&set).await.expect("REFRESH_TOKEN_AUTH");
    }
    assert_eq!(calls(), [1, 4], "the first call is tried once");
    for _ in 0..3 {
        set = fixture.refresh(&set).await.expect("rotated");
    }
    assert_eq!(calls(), [4, 5]);
}

#[tokio::test]
async fn pool_errors_have_problem_codes() {
    let fixture = Fixture::new().await;
    let set = signed_in(&fixture).await;
    let message = "Unable to verify secret hash for client";
    for (fault, code) in [
        (Fault::internal_error(), Code::Unavailable),
        (
            Fault::exception("NotAuthorizedException", message),
            Code::IdpMisconfigured,
        ),
    ] {
        fixture.inject(ROTATION, 1, fault);
        let rejected = fixture.refresh(&set).await.expect_err("a failure");
        assert_eq!(rejected.code(), code);
    }
    let refreshed = fixture.refresh(&set).await;
    refreshed.expect("the token is still valid");
    // The token of another app client is not sent to the pool.
    let key_ring = &fixture.flows().key_ring;
    let grant = RefreshGrant::open(key_ring, &set.refresh_token).expect("sealed here");
    let foreign = RefreshGrant {
        client_id: "another".to_owned(),
        ..grant
    };
    let set = TokenSet {
        refresh_token: foreign.seal(key_ring),
        ..set
    };
    let calls = fixture.count(ROTATION);
    refused(fixture.refresh(&set).await, Code::InvalidRefreshToken);
    assert_eq!(fixture.count(ROTATION), calls);
}

#[tokio::test]
async fn logout_revokes_the_token_at_the_pool() {
    let fixture = Fixture::new().await;
    let first = signed_in(&fixture).await;
    fixture.inject("RevokeToken", 1, Fault::internal_error());
    let token = &first.refresh_token;
    assert_eq!(logout(&fixture, token).await, Err(Code::Unavailable));
    assert_eq!(logout(&fixture, token).await, Ok(()), "repeated");
    refused(fixture.refresh(&first).await, Code::InvalidRefreshToken);
    assert_eq!(logout(&fixture, "never a token").await, Ok(()));
    assert_eq!(fixture.count("RevokeToken"), 2);
}
