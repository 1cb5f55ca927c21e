//! The pages of the standalone program and the gateway's pages for problems, in a real browser.

use std::collections::BTreeSet;

use postern_harness::browser::{ENTER, SCHEMES, SIZES, TAB};
use postern_harness::mail_token::{UNSUBSCRIBE, mail_token};
use postern_harness::public_api::welcome;
use postern_harness::{Browser, Standalone};

/// A mail that tries to run a script and to load an image.
const HOSTILE: &str = "Subject: <img src=x onerror=alert(1)>\r\nFrom: \"<script>\" <a@b.test>\r\n\
    MIME-Version: 1.0\r\nContent-Type: multipart/alternative; boundary=b\r\n\r\n\
    --b\r\nContent-Type: text/plain\r\n\r\nHello.\r\n\
    --b\r\nContent-Type: text/html\r\n\r\n<h1>Hello</h1><script>parent.document.title='taken'</script>\
    <img src=http://ADDRESS/x><a href='javascript:alert(1)'>x</a><form action=http://ADDRESS/></form>\r\n--b--\r\n";

/// Asserts that the page has no accessibility violation, no horizontal scroll bar and no message
/// in the browser's log, at both widths and in both schemes.
pub(crate) async fn assert_page_is_clean(browser: &Browser, url: &str) {
    let show = async || {
        browser.open(url).await;
        browser.find("main h1").await;
    };
    browser.assert_accessible(show).await;
    browser.assert_no_messages().await;
}

async fn pages_are_accessible(postern: &Standalone, browser: &Browser) {
    let mail = format!("http://{}", postern.addresses().mail);
    let text = "Subject: Hi\r\n\r\nYour code is 135791, or open https://example.com/a\r\n";
    let id = postern.store_mail("ada@b.test", text).await;
    for path in [
        "/mail".to_owned(),
        format!("/mail/{id}"),
        "/signed-in".to_owned(),
        "/signed-in#temporaryToken=abc".to_owned(),
        "/signed-in#error=access_denied".to_owned(),
    ] {
        assert_page_is_clean(browser, &format!("{mail}{path}")).await;
    }
    let sign_in = format!("{}auth/social/login", postern.surface().client().base());
    assert_page_is_clean(browser, &sign_in).await;
}

/// Swagger UI keeps the strict policy, fits narrow windows, and calls the gateway of this installation.
async fn api_page_sends_requests(postern: &Standalone, browser: &Browser) {
    let url = format!("http://{}/api", postern.addresses().mail);
    let mut colours = BTreeSet::new();
    for size in SIZES {
        for scheme in SCHEMES {
            browser.emulate(size, scheme).await;
            browser.open(&url).await;
            browser.find("#operations-tag-sign-in").await;
            assert!(!browser.is_too_wide().await, "{size:?} {scheme}");
            let colour = "return getComputedStyle(document.querySelector('.swagger-ui')).color";
            colours.insert(browser.run(colour).await.to_string());
        }
    }
    assert_eq!(colours.len(), 2, "light and dark: {colours:?}");
    for click in [
        "#operations-tag-keys",
        "#operations-keys-keys .opblock-summary-control",
        "#operations-keys-keys .execute",
    ] {
        browser.click(click).await;
    }
    let answered = ".live-responses-table tbody .response-col_status";
    let answered = browser.text_of(answered).await;
    assert!(answered.starts_with("200"), "{answered}");
    assert!(!browser.is_too_wide().await, "with an answer");
    browser.assert_no_messages().await;
}

async fn mail_is_read_and_deleted(postern: &Standalone, browser: &Browser) {
    let mail = format!("http://{}", postern.addresses().mail);
    browser.open(&format!("{mail}/")).await;
    assert!(browser.text_of("#list").await.contains("No mail"));

    // Arrives without a reload.
    let other = "Subject: Other\r\n\r\nx\r\n";
    postern.store_mail("grace@b.test", other).await;
    // Whoever the mail connects to.
    let trap = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    trap.set_nonblocking(true).expect("a socket");
    let address = trap.local_addr().expect("an address").to_string();
    let hostile = HOSTILE.replace("ADDRESS", &address);
    let id = postern.store_mail("ada@b.test", &hostile).await;
    let row = format!("li a[href='/mail/{id}']");
    let subject = browser.text_of(&row).await;
    let expected = "<img src=x onerror=alert(1)>";
    assert!(subject.starts_with(expected), "{subject}");

    let focus = format!("document.querySelector(\"a[href='/mail/{id}']\").focus()");
    browser.run(&focus).await;
    browser.press(ENTER).await;

    // The hostile mail does nothing, and the page cannot reach into it.
    browser.find("iframe[sandbox='']").await;
    let is_safe = "return !document.title.includes('taken') \
        && document.querySelector('iframe').contentDocument === null";
    assert_eq!(browser.run(is_safe).await, true);
    let error = trap.accept().expect_err("the mail loads nothing");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);

    browser.click("#delete").await;
    browser.find("#list").await;
    let left = browser.text_of("#list").await;
    let is_gone = !left.contains("onerror");
    assert!(is_gone && left.contains("Other"), "{left}");
}

async fn unsubscribe_page_works_with_the_keyboard(postern: &Standalone, browser: &Browser) {
    let surface = postern.surface();
    let ada = postern.verified_person().await;
    let message = welcome(&ada.id);
    let created = ada.client.posted("/notifications", &message, 201).await;
    let id = created.string("/notificationId");
    // The address is known only once the notification is sent.
    ada.client.settled(&format!("/notifications/{id}")).await;
    let key = surface.env("NOTIFY_TOKEN_KEY");
    let token = mail_token(key, UNSUBSCRIBE, &id, &ada.email);
    let url = format!("{}unsubscriptions?token={token}", surface.client().base());
    assert_page_is_clean(browser, &url).await;
    let is_subscribed = async || {
        let found = ada.client.read("/notification-preferences").await;
        found["categories"][0]["subscribed"].clone()
    };
    assert_eq!(is_subscribed().await, true);
    browser.press(TAB).await;
    browser.press(ENTER).await;
    let done = browser.text_of("[role=status]").await;
    assert!(done.contains("welcome"), "{done}");
    assert_eq!(is_subscribed().await, false);
    browser.assert_no_messages().await;
}

#[tokio::test]
async fn pages_of_standalone_work_in_a_browser() {
    let Some(browser) = Browser::start("pages_of_standalone_work_in_a_browser").await else {
        return;
    };
    let postern = Standalone::start().await;
    mail_is_read_and_deleted(&postern, &browser).await;
    // What the hostile mail was refused.
    drop(browser.messages().await);
    pages_are_accessible(&postern, &browser).await;
    api_page_sends_requests(&postern, &browser).await;
    unsubscribe_page_works_with_the_keyboard(&postern, &browser).await;
    browser.close().await;
    postern.stop().await;
}
