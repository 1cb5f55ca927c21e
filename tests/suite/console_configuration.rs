//! The pages Configuration and History of the console, in a browser over a real gateway.

use postern_harness::Installation;
use postern_harness::browser::TAB;
use postern_harness::console::{Console, start_installation, wait_for_event};
use serde_json::{Value, json};

/// A route that nobody may use before.
const ROUTE: &str = "\n[[route]]\nname = \"extra\"\npath = \"/extra\"\nmethods = [\"GET\"]\nupstream = \"auth\"\npolicy = \"public\"\n";

/// Replaces a range of the text as typing does, so that it can be undone.
async fn type_at(console: &Console, at: &str, text: &str) {
    let text = Value::from(text);
    let script = format!(
        "const area = document.querySelector('#configuration-text'); area.focus(); \
         const at = {at}; area.setSelectionRange(at, at); \
         return document.execCommand('insertText', false, {text});"
    );
    assert_eq!(console.browser().run(&script).await, true);
}

async fn text(console: &Console) -> String {
    let script = "return document.querySelector('#configuration-text').value";
    let text = console.browser().run(script).await;
    text.as_str().expect("a text").to_owned()
}

/// Waits until the line below the text contains this.
async fn wait_for_status(console: &Console, part: &str) {
    let part = Value::from(part);
    let script = format!(
        "return document.querySelector('#configuration-status').textContent.includes({part})"
    );
    console.wait_for(&script).await;
}

async fn submit(console: &Console) {
    let browser = console.browser();
    browser.click("#configuration button[type=submit]").await;
    browser.click("dialog[open] button[value=yes]").await;
}

fn file(split: &Installation) -> std::path::PathBuf {
    split.folder().join("postern-proxy.toml")
}

fn read(split: &Installation) -> String {
    std::fs::read_to_string(file(split)).expect("the gateway's file")
}

/// Adds a mistake, which the check reports, and undoes it.
async fn correct_a_mistake(console: &Console, original: &str) {
    type_at(console, "0", "nothing = 1\n").await;
    wait_for_status(console, "1 error").await;
    console.wait_for_text("is not a known field").await;
    let marked = "return document.querySelector('.bad-line')?.textContent";
    assert_eq!(console.browser().run(marked).await, "1");
    console.assert_clean().await;
    let line = "#check-result button[data-line]";
    console.browser().click(line).await;
    let selected = "const area = document.activeElement; \
         return area.value.slice(area.selectionStart, area.selectionEnd)";
    assert_eq!(console.browser().run(selected).await, "nothing = 1");
    let undo = "return document.execCommand('undo')";
    assert_eq!(console.browser().run(undo).await, true);
    wait_for_status(console, "The text is good").await;
    assert_eq!(text(console).await, original);
}

/// Saves a route that accepts more than before, which needs consent.
async fn save_wider_access(console: &Console, split: &Installation, subject: &str) {
    type_at(console, "area.value.length", ROUTE).await;
    wait_for_status(console, "requests that are rejected now would be accepted").await;
    console.wait_for_text("GET /extra").await;
    console.assert_clean().await;
    submit(console).await;
    wait_for_status(console, "Not saved").await;
    assert!(!read(split).contains("/extra"));
    console.browser().click("#allow-widened").await;
    submit(console).await;
    let outcome = console.outcome().await;
    assert!(outcome.contains("saved and in force"), "{outcome}");
    assert!(read(split).contains("/extra"));
    let expected = json!({ "action": "config.save", "operator": subject });
    let event = wait_for_event(|| split.log(), "administrative action", &expected).await;
    assert_ne!(event["before"], event["after"]);
    let event = console.wait_for_action("configuration.save").await;
    assert_eq!(event["operator"], subject);
}

/// Edits while somebody else changes the file: nothing is lost.
async fn keep_text_in_a_conflict(console: &Console, split: &Installation) {
    console.open("/configuration").await;
    let theirs = format!("{}# theirs\n", read(split));
    std::fs::write(file(split), &theirs).expect("the folder can be written");
    type_at(console, "0", "# mine\n").await;
    wait_for_status(console, "The text is good").await;
    submit(console).await;
    console.wait_for_text("The file has changed since").await;
    console.wait_for_text("+ # theirs").await;
    assert_eq!(read(split), theirs);
    assert!(text(console).await.starts_with("# mine\n"));
    console.assert_clean().await;
    console.browser().click("#keep-text").await;
    wait_for_status(console, "Your text is kept").await;
    submit(console).await;
    let saved = "return document.querySelector('#result.shown')?.textContent.includes('saved and in force')";
    console.wait_for(saved).await;
    assert!(read(split).starts_with("# mine\n") && !read(split).contains("# theirs"));
}

async fn roll_back_with_a_difference(console: &Console, split: &Installation, original: &str) {
    console.open("/history").await;
    console.wait_for_text("widened").await;
    console.wait_for_text("file").await;
    console.assert_clean().await;
    console.open("/history/1").await;
    console.wait_for_text("- path = \"/extra\"").await;
    wait_for_status(console, "The text is good").await;
    console.assert_clean().await;
    submit(console).await;
    let outcome = console.outcome().await;
    assert!(outcome.contains("saved and in force"), "{outcome}");
    assert_eq!(read(split), original);
}

#[tokio::test]
async fn operator_edits_and_rolls_back_the_configuration() {
    let name = "operator_edits_and_rolls_back_the_configuration";
    let split = start_installation().await;
    let Some(console) = Console::start(name, &split).await else {
        return;
    };
    let original = read(&split);
    read_as_a_viewer(&console, &split, &original).await;
    let subject = console.sign_in("editor@example.com", "admin").await;
    assert_eq!(console.open("/configuration").await, "Configuration");
    assert_eq!(text(&console).await, original);
    console.assert_clean().await;
    // The text does not trap the keyboard.
    let focus = "document.querySelector('#configuration-text').focus()";
    console.browser().run(focus).await;
    console.browser().press(TAB).await;
    let focused = "return document.activeElement.id";
    assert_eq!(console.browser().run(focused).await, "check-configuration");
    correct_a_mistake(&console, &original).await;
    save_wider_access(&console, &split, &subject).await;
    keep_text_in_a_conflict(&console, &split).await;
    roll_back_with_a_difference(&console, &split, &original).await;
    console.stop().await;
    split.stop().await;
}

/// Reads the configuration as a viewer, who can change nothing.
async fn read_as_a_viewer(console: &Console, split: &Installation, original: &str) {
    console.sign_in("reader@example.com", "support").await;
    console.open("/configuration").await;
    let reason = "changes require the role operator";
    console.wait_for_text(reason).await;
    let offered = "return document.querySelectorAll('#configuration button').length";
    assert_eq!(console.browser().run(offered).await, 0);
    console.assert_clean().await;
    console.open("/history/1").await;
    console.wait_for_text("What a roll back changes").await;
    assert_eq!(console.browser().run(offered).await, 0);
    console.assert_clean().await;
    let token = console.token().await;
    let change = json!({ "text": "", "bases": {}, "refuseWidened": false });
    let answer = console.call_action(&token, "configuration.save", &change);
    let answer = answer.await;
    answer.problem(403, "insufficient_scope");
    assert_eq!(read(split), original);
    console.sign_out().await;
}
