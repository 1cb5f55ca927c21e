//! The web console in a real browser, over the processes.

mod access;
mod actions;
mod pages;
pub(crate) mod traffic;

use postern_harness::browser::ENTER;
use postern_harness::{Changes, Console, Installation, MailServer};

/// Returns a value with an element that runs a script if it is not escaped. `place` tells the
/// values of a test apart.
fn hostile(place: &str) -> String {
    format!("<img src=x onerror=window.taken='{place}'>")
}

/// Starts the processes with a mail server of the test, some traffic, and the console; or nothing
/// without a browser.
async fn start(test: &str) -> Option<(Installation, Console, traffic::Traffic)> {
    let mut changes = Changes {
        mail_port: Some(MailServer::start().await.port),
        ..Changes::unlimited()
    };
    // Below the five failures after which the identity pool locks the account itself, which nobody can release.
    let account = ("postern-auth", "account", "1".to_owned());
    changes.set.push(account);
    let split = Box::pin(Installation::start_with(changes)).await;
    let console = Console::start(test, &split).await?;
    let traffic = traffic::create(&split).await;
    Some((split, console, traffic))
}

/// Asserts that no value has become an element, or has run.
async fn assert_nothing_ran(console: &Console) {
    let at = console.browser().address().await;
    let script = "return window.taken || document.querySelectorAll('main img, main script, main iframe:not([sandbox]), \
        #result img').length";
    assert_eq!(console.browser().run(script).await, 0, "{at}");
}

#[tokio::test]
async fn console_pages_show_data_and_are_accessible() {
    let Some((split, console, traffic)) = start("console_pages_show_data_and_are_accessible").await
    else {
        return;
    };
    let subject = console
        .sign_in(&traffic::new_address("operator"), "admin")
        .await;
    console.assert_clean().await;
    pages::assert_all(&console, &traffic).await;
    pages::assert_overview_is_live(&console, &split).await;
    pages::assert_charts_tell_values(&console).await;
    pages::assert_keyboard_suffices(&console, &traffic, &subject).await;
    pages::assert_keys_lead_to_pages(&console, &traffic).await;
    console.stop().await;
    split.stop().await;
}

#[tokio::test]
async fn console_changes_are_logged_with_the_operator() {
    let Some((split, console, traffic)) =
        start("console_changes_are_logged_with_the_operator").await
    else {
        return;
    };
    let operator = traffic::new_address("operator");
    let subject = console.sign_in(&operator, "admin").await;
    let audit = actions::Audit::new(&console, &split, &subject);
    actions::of_notifications(&audit, &traffic).await;
    actions::of_dead_letters(&audit).await;
    actions::of_messages(&audit).await;
    actions::of_suppression(&audit, &traffic).await;
    console.assert_quiet().await;
    access::assert_viewer_changes_nothing(&console).await;
    access::assert_others_see_nothing(&console).await;
    console.stop().await;
    split.stop().await;
}

#[tokio::test]
async fn console_sign_in_returns_to_the_page_after_expiry() {
    let postern = postern_harness::Standalone::start_with_manual_clock().await;
    let Some(console) =
        Console::start("console_sign_in_returns_to_the_page_after_expiry", &postern).await
    else {
        return;
    };
    access::assert_expiry_keeps_the_place(&console, &postern).await;
    console.stop().await;
    postern.stop().await;
}

/// Kills the gateway of an installation that has nothing else wrong.
pub(crate) async fn assert_gateway_is_away(console: &Console, split: &mut Installation) {
    console.open("/").await;
    console.wait_for_text("Nothing is wrong").await;
    // An update is not lost while the focus is inside.
    let focus = "document.querySelector('main .plot').focus()";
    console.browser().run(focus).await;
    split.gateway.kill().await;
    let killed = std::time::Instant::now();
    console.wait_for_text("A process does not answer").await;
    let elapsed = killed.elapsed();
    assert!(elapsed <= std::time::Duration::from_secs(10), "{elapsed:?}");
    // What nobody tells is unknown, and not zero.
    let names = "const names = (health) => [...document.querySelectorAll(`.part.${health} strong`)].map((it) => it.textContent); ";
    let parts = format!(
        "{names} return [names('failing').includes('Gateway'), names('unknown').includes('Clients')]"
    );
    let found = console.browser().run(&parts).await;
    assert_eq!(found, serde_json::json!([true, true]));
    // The chart with the focus shows the reading of its cursor.
    let unknown = "return [...document.querySelectorAll('.chart .key em')].slice(0, 4) \
        .every((it) => (it.dataset.newest ?? it.textContent) === '–')";
    console.wait_for(unknown).await;
    let focused = "return document.activeElement.matches('main .plot')";
    assert_eq!(console.browser().run(focused).await, true);
    let text = console.text().await;
    assert!(!text.contains("Nothing is wrong"), "{text}");
    console.assert_clean().await;
    // The other pages work, and a reload too.
    console.open("/providers").await;
    console.open("/").await;
    console.wait_for_text("A process does not answer").await;
}
