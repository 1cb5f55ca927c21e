//! The environment variables of the interface: each works as documented, and no others are
//! required.

use postern_harness::Changes;
use postern_harness::Installation;
use postern_harness::json;
use postern_harness::pools::new_user;
use postern_harness::public_api::{credentials, text, welcome};

/// Endpoint of the pools, because they are not Amazon's.
const ENDPOINT: &[&str] = &["AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER"];
/// Administrator credentials of the pools.
const ADMINISTRATOR: &[&str] = &["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];

/// The variables without CLOUD_REGION, which has a default, and without the social provider.
const IDENTITY: &[&str] = &[
    "IDP_ACTOR_POOL_ID",
    "IDP_ACTOR_CLIENT_ID",
    "IDP_ACTOR_CLIENT_SECRET",
    "IDP_SERVICE_POOL_ID",
    "IDP_SERVICE_CLIENT_ID",
    "IDP_SERVICE_CLIENT_SECRET",
    "IDP_SERVICE_ACCOUNT_USERNAME",
    "IDP_SERVICE_ACCOUNT_PASSWORD",
];
const SOCIAL: &[&str] = &[
    "SOCIAL_OAUTH2_CLIENT_ID",
    "SOCIAL_OAUTH2_CLIENT_SECRET",
    "SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY",
];

#[tokio::test]
async fn documented_variables_are_sufficient() {
    let split = Installation::start_with(Changes {
        only: [IDENTITY, SOCIAL, ENDPOINT].concat(),
        ..Changes::default()
    })
    .await;
    let surface = split.surface();
    let (id, token) = new_user(surface, &[]).await;
    let client = surface.client().with_token(&token);
    let me = client.fetch("/auth/me", 200).await;
    assert_eq!([me.string("/kind"), me.string("/userId")], ["user", &*id]);
    // The notification upstream requests the profile with its own service account.
    let auth = split.service("auth").await;
    let email = "interface@example.com";
    let profile = json!({"actorId": id, "email": email, "profile": {}});
    let _ = auth.posted("/actors/register", &profile, 201).await;
    let message = welcome(&id);
    let _ = client.posted("/notifications", &message, 201).await;
    assert!(text(&surface.mailbox().to(email).await, "subject").contains("Ada"));
    // Without the key of the pool's triggers, a social sign-in is identified but gets no tokens.
    let temporary = surface.social_token("grace").await;
    let exchanged = surface.exchange(&temporary).await.expect(200).json();
    assert_eq!(exchanged["user"]["email"], "grace.social@example.com");
    assert_eq!(exchanged.get("tokens"), None, "{exchanged}");
    split.stop().await;
}

#[tokio::test]
async fn social_sign_in_is_optional() {
    let only = [IDENTITY, ADMINISTRATOR, ENDPOINT].concat();
    let split = Installation::start_with(Changes {
        only,
        ..Changes::default()
    })
    .await;
    let client = split.surface().client();
    let callback = "/auth/social/login/callback?code=x&state=y";
    for path in ["/auth/social/login", callback] {
        client.denied(path, 404, "not_found").await;
    }
    let form = client.post("/auth/social/login/callback");
    let form = form.form(&[("code", "x")]);
    let _ = form.send().await.problem(404, "not_found");
    let ada = split.surface().register().await;
    let login = credentials(&ada.email);
    let _ = client.posted("/auth/login", &login, 200).await;
    split.stop().await;
}
