//! Social sign-in in a real browser.

use postern_tests::{Browser, Postern, skipped};

const NO_BROWSER: &str = "no chromium and chromedriver on this machine";

#[tokio::test]
async fn user_signs_in() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(browser) = Browser::start(folder.path()).await else {
        return skipped("user_signs_in", NO_BROWSER);
    };
    let postern = Postern::start().await;
    browser
        .open(&format!(
            "{}auth/social/login",
            postern.surface().client().base()
        ))
        .await;
    browser.find("button[value=grace]").await.click().await;
    // Shown by the page's script after it has read the fragment.
    let hint = browser.find("#hint:not([hidden])").await.text().await;
    assert!(hint.contains("once"), "{hint}");
    assert_eq!(browser.find("h1").await.text().await, "Signed in");
    let address = browser.address().await;
    assert!(
        address.ends_with("/signed-in"),
        "the fragment remains in the URL: {address}"
    );
    let token = browser.find("#token").await.text().await;
    let token = token.as_str();
    let command = browser.find("#command").await.text().await;
    assert!(
        command.starts_with("curl ") && command.contains(token),
        "{command}"
    );
    // No service has set a cookie.
    assert_eq!(browser.run("return document.cookie").await, "");
    assert_eq!(browser.run("return location.hash").await, "");

    let user = postern.surface().exchange(token).await.expect(200).json();
    assert_eq!(user["user"]["email"], "grace.social@example.com");
    let again = postern.surface().exchange(token).await;
    again.problem(401, "invalid_temporary_token");
    browser.close().await;
    postern.stop().await;
}

#[tokio::test]
async fn declined_sign_in_shows_the_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(browser) = Browser::start(folder.path()).await else {
        return skipped("declined_sign_in_shows_the_reason", NO_BROWSER);
    };
    let postern = Postern::start().await;
    browser
        .open(&format!(
            "{}auth/social/login",
            postern.surface().client().base()
        ))
        .await;
    browser.find("button[value=nobody]").await.click().await;
    let outcome = browser.find("#outcome").await.text().await;
    assert!(
        outcome.starts_with("You declined ") && outcome.ends_with("(access_denied)"),
        "{outcome}"
    );
    assert_eq!(browser.find("h1").await.text().await, "Not signed in");
    assert_eq!(browser.run("return document.title").await, "Not signed in");
    browser.close().await;
    postern.stop().await;
}
