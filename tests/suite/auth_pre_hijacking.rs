//! Account pre-hijacking: an account registered in advance with another person's address gains
//! nothing from that person's first social sign-in.

use postern_tests::Postern;
use postern_tests::http_body::json;
use postern_tests::surface::{PASSWORD, sample, text};

const GRACE: &str = "grace.social@example.com";

#[tokio::test]
async fn account_registered_in_advance_is_invalidated() {
    let postern = Postern::start().await;
    let surface = postern.surface();
    let client = surface.client();
    let squat = json!({"email": GRACE, "password": PASSWORD, "profile": {"firstName": "Mallory"}});
    let tokens = client
        .post_json("/auth/register", &squat)
        .await
        .expect(201)
        .json();
    let mallory = surface.person(GRACE, tokens).await;

    let token = surface
        .social_sign_in(&sample("grace"), None)
        .await
        .expect("grace is signed in");
    let exchanged = client
        .post_json("/auth/tokens/exchange", &json!({"temporaryToken": token}))
        .await;
    let exchanged = exchanged.expect(200).json();
    let grace = surface.person(GRACE, exchanged["tokens"].clone()).await;
    assert_eq!(exchanged["user"]["userId"], grace.id.as_str());
    // Mallory's tokens are valid until they expire, for a subject that no longer has an account.
    assert_ne!(mallory.id, grace.id);
    let me = mallory.client.get("/auth/me").send().await.expect(200);
    assert_eq!(me.string("/userId"), mallory.id);
    let profile = grace
        .client
        .get(&format!("/actors/{}", grace.id))
        .send()
        .await
        .expect(200)
        .json();
    assert_eq!(profile["email"], GRACE);
    assert_ne!(profile["firstName"], "Mallory", "{profile}");
    let refresh = json!({"refreshToken": text(&mallory.tokens, "refreshToken")});
    let _ = client
        .post_json("/auth/tokens/refresh", &refresh)
        .await
        .problem(401, "invalid_refresh_token");
    let login = json!({"email": GRACE, "password": PASSWORD});
    let _ = client
        .post_json("/auth/login", &login)
        .await
        .problem(401, "invalid_credentials");
    postern.stop().await;
}
