//! The pages: contents, accessibility, keyboard, live updates, and what they send.

use postern_harness::Installation;
use postern_harness::console::{Console, HEADING};
use postern_harness::mail_server::REPLY;
use postern_harness::wait::{answer, until};
use serde_json::{Value, json};

use super::traffic::Traffic;
use super::{ENTER, assert_nothing_ran, hostile};

/// Address, heading, and a text that proves that the data has arrived.
type Page = (String, String, String);

fn page(path: &str, heading: &str, text: &str) -> Page {
    (path.to_owned(), heading.to_owned(), text.to_owned())
}

fn query(path: &str, pairs: &[(&str, &str)]) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    format!("{path}?{}", query.extend_pairs(pairs).finish())
}

/// Returns the pages of the gateway and of sign-ins, and the searches.
fn pages_of_traffic(traffic: &Traffic) -> Vec<Page> {
    let (email, failed) = (&traffic.person.email, &traffic.failed);
    let searched = hostile("search");
    let hostile_search = query("/search", &[("q", &searched)]);
    let explained = query(
        "/routes",
        &[("request", "GET /actors/42"), ("q", &searched)],
    );
    vec![
        page("/", "Overview", "Identity pool"),
        page("/processes", "Processes", "ready"),
        page(&format!("/search?q={email}"), email, "invalid_credentials"),
        page(&format!("/search?q={email}"), email, "account-reset"),
        page(&hostile_search, &searched, "No sign-in and no notification"),
        page(
            &format!("/search?kind=notification&q={failed}"),
            failed,
            REPLY,
        ),
        page("/routes", "Routes", "/auth/login"),
        page(&explained, "Routes", "authentication_required"),
        page("/upstreams", "Upstreams", "healthy"),
        page("/processes", "Processes", "RS256"),
        page(&format!("/users?email={email}"), "Users", email),
        page("/sign-ins", "Sign-ins", "invalid_credentials"),
    ]
}

/// Returns the pages of notifications.
fn pages_of_notifications(traffic: &Traffic) -> Vec<Page> {
    let (failed, sent) = (&traffic.failed, &traffic.sent);
    let name = hostile("preview");
    let variables = json!({ "name": name }).to_string();
    let preview = [("channel", "email"), ("variables", &*variables)];
    let preview = query("/templates/welcome", &preview);
    let title = |id: &str| format!("Notification {id}");
    vec![
        page("/notifications", "Notifications", "o'neil&b@example.com"),
        page(&format!("/notifications/{failed}"), &title(failed), REPLY),
        page(
            &format!("/notifications/{sent}?message=shown"),
            &title(sent),
            &hostile("name"),
        ),
        page("/dead-letters?channel=email", "Dead letters", REPLY),
        page("/providers", "Providers", "mailbox_unknown"),
        page("/templates", "Templates", "welcome"),
        page(&preview, "Template welcome", &name),
        page("/suppression", "Suppression list", "mailbox_unknown"),
    ]
}

/// Asserts that each page shows its data, that its heading has the focus, and that it is clean at
/// both widths and in both schemes.
pub(super) async fn assert_all(console: &Console, traffic: &Traffic) {
    let pages = pages_of_traffic(traffic);
    for (path, heading, text) in pages.into_iter().chain(pages_of_notifications(traffic)) {
        let shown = open_until(console, &path, &text).await;
        assert!(shown.starts_with(&heading), "{path}: {shown}");
        let focused = "return document.activeElement.tagName";
        assert_eq!(console.browser().run(focused).await, "H1", "{path}");
        assert_nothing_ran(console).await;
        console.assert_clean().await;
    }
}

/// Opens a page, again until it contains a text: audit events and suppressions are stored soon
/// after the response. Returns its heading.
pub(super) async fn open_until(console: &Console, path: &str, text: &str) -> String {
    answer(async || {
        let (heading, shown) = (console.open(path).await, console.text().await);
        match shown.contains(text) {
            true => Ok(heading),
            false => Err(format!("{path} lacks {text}:\n{shown}")),
        }
    })
    .await
}

/// Asserts that the rate of requests appears on the overview without a reload.
pub(super) async fn assert_overview_is_live(console: &Console, split: &Installation) {
    console.open("/").await;
    let rate =
        "parseFloat(document.querySelector('.part[href=\"/routes\"] .figures')?.textContent)";
    let before = format!("window.before = {rate}; return window.before >= 0");
    console.wait_for(&before).await;
    let shown = format!("return {rate} > window.before");
    assert_eq!(console.browser().run(&shown).await, false);
    until("the overview shows the new requests", async || {
        let _ = split.surface().client().fetch("/resumes/1", 401).await;
        console.browser().run(&shown).await == true
    })
    .await;
}

/// Asserts that the values of a chart are told by the keyboard, and that the focus stays in it at an update.
pub(super) async fn assert_charts_tell_values(console: &Console) {
    console.open("/?range=1h").await;
    let chosen = "return document.querySelector('.ranges [aria-current]').textContent";
    assert_eq!(console.browser().run(chosen).await, "1 hour");
    // Keys keep the range, also over a page without charts, and so does the picture.
    for (keys, title) in [
        ("gn", "Notifications"),
        ("gr", "Requests"),
        ("go", "Overview"),
    ] {
        console.browser().press(keys).await;
        wait_for_heading(console, title).await;
    }
    assert_eq!(console.browser().run(chosen).await, "1 hour");
    let part = "document.querySelector('.part[href=\"/notifications\"]').click()";
    console.browser().run(part).await;
    wait_for_heading(console, "Notifications").await;
    assert_eq!(console.browser().run(chosen).await, "1 hour");
    console.open("/").await;
    focus_by_keyboard(console, ".plot").await;
    console.browser().press("\u{e012}").await;
    let told = "const text = document.activeElement.getAttribute('aria-valuetext'); \
        return /^\\d\\d:\\d\\d:\\d\\d: .*\\/s$/.test(text) && document.querySelector('.chart.read .at').textContent === text.slice(0, 8)";
    assert_eq!(console.browser().run(told).await, true);
    let text = "return document.activeElement.getAttribute('aria-valuetext')";
    let before = console.browser().run(text).await;
    console
        .browser()
        .run("window.replaced = document.querySelector('[data-live]')")
        .await;
    console
        .wait_for("return !window.replaced.isConnected && document.activeElement.matches('.plot')")
        .await;
    assert_eq!(console.browser().run(told).await, true);
    assert_eq!(console.browser().run(text).await, before);
}

/// Signs in, searches, opens a result, makes a change and goes back by the keyboard alone.
pub(super) async fn assert_keyboard_suffices(console: &Console, traffic: &Traffic, subject: &str) {
    let token = console.token().await;
    let browser = console.browser();
    browser
        .run("sessionStorage.removeItem('postern-token')")
        .await;
    browser.open(console.client().base().as_str()).await;
    browser.find("#sign-in").await;
    focus_by_keyboard(console, "#token-sign-in input").await;
    browser.press(&token).await;
    browser.press(ENTER).await;
    console.until_signed_in().await;
    browser.press("/").await;
    browser.press(&traffic.scheduled).await;
    browser.press(ENTER).await;
    console.wait_for_text("events, times in UTC").await;
    focus_by_keyboard(console, "main ol.timeline a[href^='/notifications/']").await;
    browser.press(ENTER).await;
    console.wait_for_text("What was sent").await;
    focus_by_keyboard(console, "[data-action='notification.cancel'] button").await;
    browser.press(ENTER).await;
    browser.find("dialog[open]").await;
    focus_by_keyboard(console, "dialog button[value=yes]").await;
    browser.press(ENTER).await;
    let outcome = console.outcome().await;
    assert!(outcome.contains("done"), "{outcome}");
    let event = console.wait_for_action("notification.cancel").await;
    assert_eq!(event["operator"], subject);
    console.wait_for_text("CANCELLED").await;
    console
        .wait_for("return document.activeElement.tagName === 'H1'")
        .await;
    browser.run("history.back()").await;
    console
        .wait_for("return location.pathname === '/search'")
        .await;
    console.wait_for_text("events, times in UTC").await;
}

/// Goes to pages by keys and by the palette, of which none acts in a field.
pub(super) async fn assert_keys_lead_to_pages(console: &Console, traffic: &Traffic) {
    let browser = console.browser();
    console.open("/").await;
    browser.press("gr").await;
    wait_for_heading(console, "Requests").await;
    browser.press("?").await;
    browser.find("dialog#keys[open]").await;
    console.assert_clean().await;
    browser.press("\u{e00c}gu").await;
    wait_for_heading(console, "Upstreams").await;
    // Ctrl-K, and what is typed before the answer to it arrives.
    browser.press("/").await;
    browser.press("why mail").await;
    console.wait_for("return document.querySelector('#palette [aria-selected=true]')?.dataset.href === '/dead-letters'").await;
    console.assert_clean().await;
    browser.press(ENTER).await;
    wait_for_heading(console, "Dead letters").await;
    browser.press("/").await;
    browser.press(&traffic.person.email).await;
    browser.press(ENTER).await;
    console.wait_for_text("events, times in UTC").await;
    // An action of the page, the last option.
    console.open("/requests").await;
    browser.press("/").await;
    browser.press("pause").await;
    let last = "document.querySelector('#palette [role=option]:last-child')?.textContent";
    console
        .wait_for(&format!("return {last} === 'Action Pause'"))
        .await;
    console.assert_clean().await;
    browser.press("\u{e013}").await;
    browser.press(ENTER).await;
    console
        .wait_for("return document.querySelector('#tail-pause').textContent === 'Continue'")
        .await;
    console.open("/users").await;
    browser.type_into("input[name=email]", "gr?").await;
    let typed =
        "return document.activeElement.value === 'gr?' && !document.querySelector('dialog[open]')";
    assert_eq!(browser.run(typed).await, true);
}

async fn wait_for_heading(console: &Console, title: &str) {
    let heading = format!("document.querySelector({})", Value::from(HEADING));
    let is_shown = format!("return {heading}?.textContent === '{title}'");
    console.wait_for(&is_shown).await;
}

/// Moves the focus by the keyboard to the first element of a selector.
async fn focus_by_keyboard(console: &Console, selector: &str) {
    console.browser().find(selector).await;
    let selector = Value::from(selector);
    let is_focused =
        format!("return document.activeElement === document.querySelector({selector})");
    for _ in 0..80 {
        if console.browser().run(&is_focused).await == true {
            return;
        }
        console.browser().press("\u{e004}").await;
    }
    panic!("{selector} cannot be reached by the keyboard");
}
