//! Somebody registers a stranger's address in advance and waits: the stranger's first social
//! sign-in leaves them nothing.

use postern_tests::Postern;
use postern_tests::http_body::json;
use postern_tests::surface::{PASSWORD, sample, text};

const GRACE: &str = "grace.social@example.com";

#[tokio::test]
async fn an_account_made_in_advance_is_worth_nothing_to_who_made_it() {
    let postern = Postern::start().await;
    let surface = postern.surface();
    let client = surface.client();
    let squat = json!({"email": GRACE, "password": PASSWORD, "profile": {"firstName": "Mallory"}});
    let tokens = client
        .post("/auth/register")
        .json(&squat)
        .send()
        .await
        .expect(201)
        .json();
    let mallory = surface.person(GRACE, tokens).await;

    let token = surface
        .social_sign_in(&sample("grace"), None)
        .await
        .expect("grace is signed in");
    let exchanged = client
        .post("/auth/tokens/exchange")
        .json(&json!({"temporaryToken": token}))
        .send()
        .await;
    let exchanged = exchanged.expect(200).json();
    let grace = surface.person(GRACE, exchanged["tokens"].clone()).await;
    assert_eq!(exchanged["user"]["userId"], grace.id.as_str());
    // What Mallory holds speaks for a subject that is nobody's any more, until it expires.
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
        .post("/auth/tokens/refresh")
        .json(&refresh)
        .send()
        .await
        .problem(401, "invalid_refresh_token");
    let login = json!({"email": GRACE, "password": PASSWORD});
    let _ = client
        .post("/auth/login")
        .json(&login)
        .send()
        .await
        .problem(401, "invalid_credentials");
    postern.stop().await;
}
