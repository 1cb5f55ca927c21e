use std::time::Duration;

use serde_json::json;

use super::harness::{EMAIL, PASSWORD, start};

#[tokio::test]
async fn refresh_token_expires() {
    let pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    let tokens = pool.sign_in(EMAIL, PASSWORD).await;
    pool.clock.advance(Duration::from_secs(30 * 86_400));
    let (actor, token) = (
        pool.actor(),
        &tokens["AuthenticationResult"]["RefreshToken"],
    );
    let body = json!({ "ClientId": actor.client_id, "ClientSecret": actor.client_secret.expose(),
        "RefreshToken": token });
    let expired = pool.call("GetTokensFromRefreshToken", body).await;
    let expired = expired.expect_err("rejected");
    assert_eq!(expired, "NotAuthorizedException: Refresh Token has expired");
}
