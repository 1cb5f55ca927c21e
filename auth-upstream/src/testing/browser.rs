//! The steps of a browser in a social sign-in.

use std::collections::BTreeMap;

use url::Url;

use super::fault_proxy::http;
use super::{Fixture, client, land};
use crate::flows::{SocialCallback, SocialLanding};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Person {
    pub(crate) email: &'static str,
    /// Whether the provider has verified the address.
    pub(crate) is_verified: bool,
}

/// Ada Lovelace, whose address the provider assigns.
pub(crate) const ADA: Person = Person {
    email: "ada@example.com",
    is_verified: true,
};

/// Starts a sign-in and returns the URL at the provider.
pub(crate) async fn start(fixture: &Fixture, code_challenge: Option<&str>) -> Url {
    let code_challenge = code_challenge.map(str::to_owned);
    let client = client();
    let started = fixture
        .flows()
        .start_social_sign_in(&client, 0, code_challenge);
    started.await.expect("a URL")
}

/// Chooses a person at the provider and returns the redirect back to the service.
pub(crate) async fn consent(url: &Url, person: Person) -> SocialCallback {
    let mut form: BTreeMap<String, String> = url.query_pairs().into_owned().collect();
    let chosen = [
        ("person", "other"),
        ("name", "Ada Lovelace"),
        ("email", person.email),
    ];
    form.extend(chosen.map(|(name, value)| (name.to_owned(), value.to_owned())));
    if person.is_verified {
        form.insert("email_verified".to_owned(), "true".to_owned());
    }
    let mut page = url.clone();
    page.set_query(None);
    let sent = http()
        .post(page)
        .form(&form)
        .send()
        .await
        .expect("an answer");
    let location = sent.headers()["location"].to_str().expect("text");
    let location = Url::parse(location).expect("a URL");
    let mut query: BTreeMap<String, String> = location.query_pairs().into_owned().collect();
    SocialCallback {
        code: query.remove("code"),
        state: query.remove("state"),
        error: query.remove("error"),
        issuer: query.remove("iss"),
        ..SocialCallback::default()
    }
}

/// Starts a sign-in of Ada and returns the redirect back to the service.
pub(crate) async fn callback(fixture: &Fixture) -> SocialCallback {
    consent(&start(fixture, None).await, ADA).await
}

/// Follows the redirect of the provider back to the service.
pub(crate) async fn follow(fixture: &Fixture, callback: SocialCallback) -> SocialLanding {
    land(&fixture.service, &client(), callback).await
}

/// Signs a person in at the provider.
pub(crate) async fn sign_in(fixture: &Fixture, person: Person) -> SocialLanding {
    let url = start(fixture, None).await;
    follow(fixture, consent(&url, person).await).await
}
