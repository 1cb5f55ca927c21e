//! The console's page Requests in a real browser: the live tail, and the details of a request.

use postern_harness::RawClient;
use postern_harness::console::{Console, start_installation};

use crate::console::assert_gateway_is_away;

/// Follows a tail of the test's own with the script of the page: `events` is an array of pairs of
/// event name and data.
const FOLLOW: &str = "const main = document.getElementById('main'); const end = new AbortController(); \
    window.passed = 0; const tools = { call: fetch, problemOf: () => '', say: () => {}, visible: (text) => text, \
    events: async (path, signal, handle) => { for (const [name, data] of EVENTS) handle(name, data); \
    await new Promise(() => {}); } }; \
    import(document.querySelector('script[data-pages]').dataset.pages.split(' ').find((path) => path.endsWith('requests.js'))) \
    .then((module) => module.follow(main, end.signal, tools)); return true";

#[tokio::test]
async fn live_tail_of_the_console_shows_a_request() {
    let mut split = start_installation().await;
    let Some(console) = Console::start("live_tail_of_the_console_shows_a_request", &split).await
    else {
        return;
    };
    console.sign_in("operator@example.com", "admin").await;
    console.open("/requests?status=4xx").await;
    console.wait_for_text("Following 1 of 1 gateway.").await;
    let gateway = split.surface().client().address();
    let path = "/nothing/%3Cimg%20src=x%20onerror=alert(1)%3E";
    for path in ["/auth/health", path] {
        let request = format!("GET {path}?secret=1 HTTP/1.1\r\nHost: gate.example\r\n\r\n");
        let _ = RawClient::send(gateway, request.as_bytes()).await;
    }
    console.wait_for_text(path).await;
    let text = console.text().await;
    assert!(text.contains("401 authentication_required"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    // By keyboard: the button of the request opens its details, Escape closes them.
    let focus = "const buttons = [...document.querySelectorAll('#tail button')]; \
        const found = buttons.find((button) => button.textContent.includes('/nothing/')); \
        if (!found) return false; found.focus(); return document.activeElement === found";
    console.wait_for(focus).await;
    console.browser().press("\u{e006}").await;
    console.browser().click("#make-test summary").await;
    console.wait_for_text("[[test]]").await;
    let details = console.browser().text_of("#request-details").await;
    for expected in [
        "decision = \"authentication_required\"",
        "gate.example",
        "TIME LINE",
        "no path matches",
    ] {
        let found = details.to_lowercase().contains(&expected.to_lowercase());
        assert!(found, "{expected} is missing in {details}");
    }
    console.assert_clean().await;
    let is_focused =
        "return document.getElementById('request-details').contains(document.activeElement)";
    console.wait_for(is_focused).await;
    console.browser().press("\u{e00c}").await;
    let is_closed = "return document.getElementById('request-details').hidden";
    console.wait_for(is_closed).await;
    // A later one, so that the chart has two bars.
    let request = b"GET /auth/health HTTP/1.1\r\nHost: gate.example\r\n\r\n";
    let _ = RawClient::send(gateway, request).await;
    filter_and_select(&console).await;
    // A filter that the gateway refuses.
    console.open("/requests?status=9xx").await;
    let refused = "must be a status such as 503 or 5xx";
    console.wait_for_text(refused).await;
    assert_tail_is_bounded(&console).await;
    assert_gateway_is_away(&console, &mut split).await;
    console.stop().await;
    split.stop().await;
}

/// Adds a filter by its most frequent value and removes it, then selects a part of the time: by the
/// keyboard and with the pointer.
async fn filter_and_select(console: &Console) {
    let focus = "const link = document.querySelector('#tail-frequent a[href*=\"code=\"]'); \
        if (!link) return false; link.focus(); return document.activeElement === link";
    console.wait_for(focus).await;
    console.browser().press("\u{e007}").await;
    let is_set =
        "return location.search.includes('code=') && document.activeElement.matches('a.chip.set')";
    console.wait_for(is_set).await;
    console.assert_clean().await;
    console.browser().press("\u{e007}").await;
    let is_other =
        "return document.querySelectorAll('main:not([aria-busy]) a.chip.set').length === 1";
    console.wait_for(is_other).await;
    let rows = "return document.querySelectorAll('#tail tr').length > 1";
    console.wait_for(rows).await;
    let focus = "document.querySelector('#tail-chart input').focus()";
    console.browser().run(focus).await;
    // The right arrow key leaves the oldest row out.
    console.browser().press("\u{e014}").await;
    let is_selected = "return !document.querySelector('#tail-time').hidden && \
        document.querySelector('#tail tr:last-child').hidden && !document.querySelector('#tail tr').hidden";
    console.wait_for(is_selected).await;
    console.assert_clean().await;
    console.browser().click("#tail-time").await;
    let is_whole = "return document.querySelector('#tail-time').hidden && !document.querySelector('#tail tr[hidden]')";
    console.wait_for(is_whole).await;
    let drag = "const svg = document.querySelector('#tail-chart svg'); const box = svg.getBoundingClientRect(); \
        svg.setPointerCapture = () => {}; svg.hasPointerCapture = () => true; \
        for (const [type, at] of [['pointerdown', 0.5], ['pointermove', 1]]) svg.dispatchEvent(new PointerEvent(type, \
        { clientX: box.left + at * box.width, bubbles: true }))";
    console.browser().run(drag).await;
    console.wait_for(is_selected).await;
}

/// The page shows the newest of many requests, and no text of them as HTML.
async fn assert_tail_is_bounded(console: &Console) {
    // The refused filter.
    drop(console.browser().messages().await);
    console.open("/requests?status=5xx").await;
    let hostile = "Array.from({ length: 20000 }, (_, at) => ['request', JSON.stringify({ method: 'GET', status: 200, \
        path: `/<img src=x onerror=alert(1)>${at}`, route: '<b>x</b>', subject: '\"><script>alert(2)</script>' })])\
        .concat([['dropped', '{\"count\":7}']])";
    let follow = FOLLOW.replace("EVENTS", hostile);
    console.browser().run(&follow).await;
    let received = "20,000 received, 7 dropped by gateways";
    for text in [received, "not shown", "onerror=alert(1)>19999"] {
        console.wait_for_text(text).await;
    }
    // All arrive at once, of which the page shows the newest.
    let rows = "return document.querySelectorAll('#tail tr').length";
    assert_eq!(console.browser().run(rows).await, 1000);
    let parsed = "return document.querySelectorAll('#tail img, #tail script, #tail b').length";
    assert_eq!(console.browser().run(parsed).await, 0);
    console.assert_quiet().await;
}
