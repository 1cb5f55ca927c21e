//! The steps of a browser in a social sign-in.

use serde_json::Value;
use url::Url;

use super::{Fixture, client};
use crate::flows::{SocialCallback, SocialLanding};

/// Starts a sign-in and returns the URL at the provider.
pub(crate) async fn start(fixture: &Fixture, code_challenge: Option<&str>) -> Url {
    let code_challenge = code_challenge.map(str::to_owned);
    fixture.social().start(code_challenge).await.expect("a URL")
}

/// Follows the redirect of the provider back to the service.
pub(crate) async fn follow(fixture: &Fixture, callback: SocialCallback) -> SocialLanding {
    fixture
        .social()
        .handle_callback(&client(), callback)
        .await
        .into_inner()
}

/// Builds a callback from a code and a state.
pub(crate) fn callback((code, state): (String, String)) -> SocialCallback {
    SocialCallback {
        code: Some(code),
        state: Some(state),
        ..SocialCallback::default()
    }
}

/// Signs a user in at the provider. `claims` replace the default ones of Ada.
pub(crate) async fn sign_in(fixture: &Fixture, claims: Value) -> SocialLanding {
    let url = start(fixture, None).await;
    follow(fixture, callback(fixture.provider.consent(&url, claims))).await
}
