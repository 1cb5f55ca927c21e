//! The pages of the standalone program and the gateway's pages for problems, in a real browser.

use std::collections::BTreeSet;

use postern_tests::mail_token::{UNSUBSCRIBE, mail_token};
use postern_tests::surface::welcome;
use postern_tests::{Browser, Postern, skipped};

pub(crate) const NO_BROWSER: &str = "no chromium and chromedriver on this machine";
const SIZES: [[u32; 2]; 2] = [[1280, 800], [390, 844]];
const SCHEMES: [&str; 2] = ["light", "dark"];
/// The key that follows a link (WebDriver, section 17.4.2).
pub(crate) const ENTER: &str = "\u{e007}";
pub(crate) const TAB: &str = "\u{e004}";

/// A mail that tries to run a script and to load an image.
const HOSTILE: &str = "Subject: <img src=x onerror=alert(1)>\r\nFrom: \"<script>\" <a@b.test>\r\n\
    MIME-Version: 1.0\r\nContent-Type: multipart/alternative; boundary=b\r\n\r\n\
    --b\r\nContent-Type: text/plain\r\n\r\nHello.\r\n\
    --b\r\nContent-Type: text/html\r\n\r\n<h1>Hello</h1><script>parent.document.title='taken'</script>\
    <img src=http://ADDRESS/x><a href='javascript:alert(1)'>x</a><form action=http://ADDRESS/></form>\r\n--b--\r\n";

/// Asserts that the page has no accessibility violation, no horizontal scroll bar and no message
/// in the browser's log, at both widths and in both schemes.
pub(crate) async fn assert_page_is_clean(browser: &Browser, url: &str) {
    for size in SIZES {
        for scheme in SCHEMES {
            browser.emulate(size, scheme).await;
            browser.open(url).await;
            browser.find("main h1").await;
            let found = browser.accessibility_violations().await;
            assert!(found.is_empty(), "{url} {size:?} {scheme}: {found:?}");
            let wider = "return document.documentElement.scrollWidth > innerWidth";
            assert_eq!(browser.run(wider).await, false, "{url} {size:?}");
        }
    }
    let messages = browser.messages().await;
    assert!(messages.is_empty(), "{url}: {messages:?}");
}

#[tokio::test]
async fn standalone_pages_are_accessible() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(browser) = Browser::start(folder.path()).await else {
        return skipped("standalone_pages_are_accessible", NO_BROWSER);
    };
    let postern = Postern::start().await;
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
        assert_page_is_clean(&browser, &format!("{mail}{path}")).await;
    }
    let sign_in = format!("{}auth/social/login", postern.surface().client().base());
    assert_page_is_clean(&browser, &sign_in).await;
    browser.close().await;
    postern.stop().await;
}

/// Swagger UI keeps the strict policy, fits narrow windows, and calls the gateway of this installation.
#[tokio::test]
async fn api_page_sends_requests_to_the_gateway() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(browser) = Browser::start(folder.path()).await else {
        return skipped("api_page_sends_requests_to_the_gateway", NO_BROWSER);
    };
    let postern = Postern::start().await;
    let url = format!("http://{}/api", postern.addresses().mail);
    let wider = "return document.documentElement.scrollWidth > innerWidth";
    let mut colours = BTreeSet::new();
    for size in SIZES {
        for scheme in SCHEMES {
            browser.emulate(size, scheme).await;
            browser.open(&url).await;
            browser.find("#operations-tag-sign-in").await;
            assert_eq!(browser.run(wider).await, false, "{size:?} {scheme}");
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
        browser.find(click).await.click().await;
    }
    let answered = browser.find(".live-responses-table tbody .response-col_status");
    assert!(answered.await.text().await.starts_with("200"));
    assert_eq!(browser.run(wider).await, false, "with an answer");
    let messages = browser.messages().await;
    assert!(messages.is_empty(), "{messages:?}");
    browser.close().await;
    postern.stop().await;
}

#[tokio::test]
async fn mail_arrives_is_read_and_deleted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(browser) = Browser::start(folder.path()).await else {
        return skipped("mail_arrives_is_read_and_deleted", NO_BROWSER);
    };
    let postern = Postern::start().await;
    let mail = format!("http://{}", postern.addresses().mail);
    browser.open(&format!("{mail}/")).await;
    assert!(browser.find("#list").await.text().await.contains("No mail"));

    // Arrives without a reload.
    postern
        .store_mail("grace@b.test", "Subject: Other\r\n\r\nx\r\n")
        .await;
    // Whoever the mail connects to.
    let trap = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    trap.set_nonblocking(true).expect("a socket");
    let address = trap.local_addr().expect("an address").to_string();
    let hostile = HOSTILE.replace("ADDRESS", &address);
    let id = postern.store_mail("ada@b.test", &hostile).await;
    let row = format!("li a[href='/mail/{id}']");
    let subject = browser.find(&row).await.text().await;
    assert!(
        subject.starts_with("<img src=x onerror=alert(1)>"),
        "{subject}"
    );

    browser
        .run(&format!(
            "document.querySelector(\"a[href='/mail/{id}']\").focus()"
        ))
        .await;
    browser.press(ENTER).await;

    // The hostile mail does nothing.
    browser.find("iframe[sandbox='']").await;
    assert_eq!(
        browser.run("return document.title.includes('taken')").await,
        false
    );
    let frame =
        "const frame = document.querySelector('iframe'); return frame.contentDocument === null";
    assert_eq!(
        browser.run(frame).await,
        true,
        "the page cannot reach into the mail"
    );
    let error = trap.accept().expect_err("the mail loads nothing");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);

    browser.find("#delete").await.click().await;
    browser.find("#list").await;
    let left = browser.find("#list").await.text().await;
    assert!(
        left.contains("Other") && !left.contains("onerror"),
        "{left}"
    );
    browser.close().await;
    postern.stop().await;
}

#[tokio::test]
async fn unsubscribe_page_works_with_the_keyboard_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(browser) = Browser::start(folder.path()).await else {
        return skipped("unsubscribe_page_works_with_the_keyboard_alone", NO_BROWSER);
    };
    let postern = Postern::start().await;
    let surface = postern.surface();
    let ada = postern.verified_person().await;
    let notification = welcome(&ada.id);
    let created = ada.client.post_json("/notifications", &notification).await;
    let id = created.expect(201).string("/notificationId");
    let _ = surface.mailbox().to(&ada.email).await;
    let record = format!("/notifications/{id}");
    // The address is known only once the notification is sent.
    while ada.client.fetch(&record, 200).await.string("/status") == "QUEUED" {}
    let token = mail_token(
        surface.env("NOTIFY_TOKEN_KEY"),
        UNSUBSCRIBE,
        &id,
        &ada.email,
    );
    let url = format!("{}unsubscriptions?token={token}", surface.client().base());
    assert_page_is_clean(&browser, &url).await;
    let found = ada.client.get("/notification-preferences").send().await;
    assert_eq!(
        found.expect(200).json()["categories"][0]["subscribed"],
        true
    );
    browser.press(TAB).await;
    browser.press(ENTER).await;
    let done = browser.find("[role=status]").await.text().await;
    assert!(done.contains("welcome"), "{done}");
    let found = ada.client.get("/notification-preferences").send().await;
    assert_eq!(
        found.expect(200).json()["categories"][0]["subscribed"],
        false
    );
    let messages = browser.messages().await;
    assert!(messages.is_empty(), "{messages:?}");
    browser.close().await;
    postern.stop().await;
}
