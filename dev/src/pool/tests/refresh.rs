use std::time::Duration;

use aws_sdk_cognitoidentityprovider::types::AuthenticationResultType;

use super::harness::{EMAIL, PASSWORD, RunningServer, error_text, start};

async fn refresh(pool: &RunningServer, token: &str) -> Result<AuthenticationResultType, String> {
    let actor = pool.actor();
    let secret = actor.client_secret.clone().expect("a secret");
    let call = pool
        .anonymous
        .get_tokens_from_refresh_token()
        .client_id(&actor.client_id);
    let output = call
        .client_secret(secret.expose())
        .refresh_token(token)
        .send()
        .await
        .map_err(error_text)?;
    Ok(output.authentication_result.expect("tokens"))
}

async fn signed_in(pool: &RunningServer) -> AuthenticationResultType {
    pool.register(EMAIL, PASSWORD).await;
    pool.sign_in(EMAIL, PASSWORD).await.expect("signed in")
}

#[tokio::test]
async fn refresh_token_ends_by_expiry_user_or_revocation() {
    let pool = start().await;
    let tokens = signed_in(&pool).await;
    let token = tokens.refresh_token().expect("refresh token");
    let unknown = refresh(&pool, "unknown").await.expect_err("rejected");
    assert_eq!(unknown, "NotAuthorizedException: Invalid Refresh Token");
    let actor = pool.actor();
    let secret = actor.client_secret.clone().expect("a secret");
    let revoke = pool
        .anonymous
        .revoke_token()
        .client_id(&actor.client_id)
        .client_secret(secret.expose());
    revoke.token(token).send().await.expect("revoked");
    let revoked = refresh(&pool, token).await.expect_err("rejected");
    assert_eq!(
        revoked,
        "NotAuthorizedException: Refresh Token has been revoked"
    );
    let gone = pool.get_user(&tokens).await;
    assert_eq!(
        gone.expect_err("rejected"),
        "NotAuthorizedException: Access Token has been revoked"
    );

    let tokens = pool.sign_in(EMAIL, PASSWORD).await.expect("signed in");
    let token = tokens.refresh_token().expect("refresh token");
    pool.set_enabled(EMAIL, false).await;
    assert!(refresh(&pool, token).await.is_err());
    pool.set_enabled(EMAIL, true).await;
    let tokens = pool.sign_in(EMAIL, PASSWORD).await.expect("signed in");
    pool.clock.advance(Duration::from_secs(30 * 86_400));
    let expired = refresh(&pool, tokens.refresh_token().expect("refresh token"))
        .await
        .expect_err("rejected");
    assert_eq!(expired, "NotAuthorizedException: Refresh Token has expired");
}
