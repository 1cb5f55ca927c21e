//! A browser's steps of a social sign-in.

use serde_json::Value;
use url::Url;

use super::{Fixture, visitor};
use crate::social::{Callback, Landing};

pub(crate) async fn begin(fixture: &Fixture, challenge: Option<&str>) -> Url {
    let social = fixture.auth.social.as_ref().expect("on");
    fixture
        .auth
        .begin_social(social, challenge.map(str::to_owned))
        .await
        .expect("a URL")
}

pub(crate) async fn finish(fixture: &Fixture, callback: Callback) -> Landing {
    let social = fixture.auth.social.as_ref().expect("on");
    fixture
        .auth
        .finish_social(&visitor(), social, callback)
        .await
}

pub(crate) fn callback((code, state): (String, String)) -> Callback {
    Callback {
        code: Some(code),
        state: Some(state),
        ..Callback::default()
    }
}

/// Signs a person in at the provider, with claims other than Ada's.
pub(crate) async fn land(fixture: &Fixture, claims: Value) -> Landing {
    let url = begin(fixture, None).await;
    finish(fixture, callback(fixture.provider.consent(&url, claims))).await
}
