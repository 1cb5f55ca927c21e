//! Roles and the end of tokens.

use std::time::Duration;

use postern_harness::Standalone;
use postern_harness::console::{self, Console};
use postern_harness::json;

use super::traffic::new_address;

/// The pages with changes.
const PAGES_WITH_CHANGES: [&str; 3] = ["/dead-letters?channel=email", "/providers", "/suppression"];
const ACTIONS: [&str; 8] = [
    "notification.retry",
    "notification.cancel",
    "dead.retry",
    "provider.test",
    "suppression.remove",
    "user.disable",
    "user.reset_password",
    "configuration.save",
];

/// Asserts that a viewer sees no button of a change, and that direct calls are refused.
pub(super) async fn assert_viewer_changes_nothing(console: &Console) {
    console.sign_out().await;
    console.sign_in(&new_address("viewer"), "support").await;
    let who = console.browser().text_of("#who").await;
    assert!(who.starts_with("viewer · "), "{who}");
    for path in PAGES_WITH_CHANGES {
        console.open(path).await;
        let forms = "return document.querySelectorAll('[data-action]').length";
        assert_eq!(console.browser().run(forms).await, 0, "{path}");
    }
    let token = console.token().await;
    let logged = || console::events(&console.log(), "console action", &json!({})).len();
    let before = logged();
    for action in ACTIONS {
        let refused = console.call_action(&token, action, &json!({})).await;
        let _ = refused.problem(403, "insufficient_scope");
    }
    assert_eq!(logged(), before, "a refused change is not logged as made");
}

/// Asserts that a user without a role, a wrong token and no token have no access.
pub(super) async fn assert_others_see_nothing(console: &Console) {
    let _messages = console.browser().messages().await;
    console.sign_out().await;
    let client = console.client();
    let overview = ["/fragments/overview", "/live/fragments/overview"];
    for path in ["/session"].into_iter().chain(overview) {
        client.denied(path, 401, "authentication_required").await;
    }
    let token = console.token_of(&new_address("nobody"), "others").await;
    for path in ["/session", "/fragments/overview", "/live/requests"] {
        let client = client.with_token(&token);
        client.denied(path, 403, "insufficient_scope").await;
    }
    let refused = console.call_action(&token, "dead.retry", &json!({})).await;
    let _ = refused.problem(403, "insufficient_scope");
    for wrong in [&token, "not-a-token"] {
        let browser = console.browser();
        browser.type_into("#token-sign-in input", wrong).await;
        browser.click("#token-sign-in button").await;
        let reason = "return document.querySelector('#sign-in-reason').innerText !== ''";
        console.wait_for(reason).await;
        let kept = "return sessionStorage.getItem('postern-token')";
        assert!(console.browser().run(kept).await.is_null());
        console.browser().open(client.base().as_str()).await;
        console.browser().find("#sign-in").await;
    }
}

/// Asserts that an expired token shows the sign-in, also on a page that only listens, and that the
/// next sign-in returns to the page.
pub(super) async fn assert_expiry_keeps_the_place(console: &Console, postern: &Standalone) {
    console.sign_in(&new_address("operator"), "admin").await;
    console.open("/routes?q=login").await;
    // Past the lifetime of access tokens.
    postern.clock().advance(Duration::from_secs(61 * 60));
    // A result of the verification is used for some seconds. Of several requests at once, each is rejected.
    let script = "const link = document.querySelector('nav:not([hidden]) a[href=\"/upstreams\"]'); \
        const now = performance.now(); \
        if (link && !(now - window.clickedAt < 1000)) { window.clickedAt = now; [1, 2, 3].forEach(() => link.click()); } \
        return document.querySelector('#sign-in') !== null";
    console.wait_for(script).await;
    let reason = "return document.querySelector('#sign-in-reason').innerText.includes('expired')";
    console.wait_for(reason).await;
    assert!(console.browser().address().await.ends_with("/upstreams"));
    let focused = "return document.activeElement.name";
    assert_eq!(console.browser().run(focused).await, "email");
    let token = postern.service_token("auth").await;
    console.sign_in_with_token(&token).await;
    let heading = console.browser().text_of("h1").await;
    assert_eq!(heading, "Upstreams");
    // The stream of the overview ends with its token.
    console.follow("nav a[href='/']").await;
    postern.clock().advance(Duration::from_secs(61 * 60));
    let signed_out = "return document.querySelector('#sign-in') !== null";
    console.wait_for(signed_out).await;
}
