use std::time::Duration;

use super::harness::{EMAIL, PASSWORD, error_text, start};

#[tokio::test]
async fn refresh_token_expires() {
    let pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    let tokens = pool.sign_in(EMAIL, PASSWORD).await.expect("signed in");
    pool.clock.advance(Duration::from_secs(30 * 86_400));
    let actor = pool.actor();
    let secret = actor.client_secret.as_ref().expect("a secret");
    let call = pool.anonymous.get_tokens_from_refresh_token();
    let call = call
        .client_id(&actor.client_id)
        .client_secret(secret.expose())
        .set_refresh_token(tokens.refresh_token);
    let expired = call.send().await.map_err(error_text).expect_err("rejected");
    assert_eq!(expired, "NotAuthorizedException: Refresh Token has expired");
}
