//! Accounts as operators see and change them: the command `postern user`, and the page Users.

use postern_tests::mailbox::Mailbox;
use postern_tests::program::{Ended, Program};
use postern_tests::surface::PASSWORD;
use postern_tests::{Browser, Person, Postern, sensitive, skipped};
use serde_json::{Value, json};

use super::standalone_console::{assert_page_is_accessible, wait_for_session};

const NEW_PASSWORD: &str = "Other-Horse-Battery-9";
const ENTER: &str = "\u{e007}";

async fn sign_in(postern: &Postern, person: &Person, password: &str) -> (u16, Value) {
    let body = json!({ "email": person.email, "password": password });
    let answer = postern.surface().client().post_json("/auth/login", &body);
    let answer = answer.await;
    (answer.status.as_u16(), answer.json())
}

async fn refresh(postern: &Postern, person: &Person) -> u16 {
    let body = json!({ "refreshToken": person.tokens["refreshToken"] });
    let client = postern.surface().client();
    let answer = client.post_json("/auth/tokens/refresh", &body).await;
    answer.status.as_u16()
}

async fn user(postern: &Postern, arguments: &[&str]) -> Ended {
    let input = postern.folder().join("password.txt");
    std::fs::write(&input, format!("{NEW_PASSWORD}\n")).expect("written");
    let program = Program::of_workspace("postern", postern.folder()).input(input);
    let program = program
        .arg("--data-dir")
        .arg(postern.folder().display().to_string());
    let program = program.arg("user");
    arguments
        .iter()
        .fold(program, |program, argument| program.arg(*argument))
        .run()
        .await
}

#[tokio::test]
async fn user_command_lists_and_changes_users() {
    let postern = Postern::start().await;
    sensitive::record("password", NEW_PASSWORD);
    let surface = postern.surface();
    let (ada, bob) = (surface.register().await, surface.register().await);
    let listed = user(&postern, &["list"]).await.stdout;
    let line = format!("{} CONFIRMED {}\n", ada.email, ada.id);
    assert!(
        listed.contains(&line) && listed.contains(&bob.email),
        "{listed}"
    );
    let one = user(&postern, &["list", "--email", &ada.email[..20], "--json"]).await;
    let one: Value = one.stdout.parse().expect("one object");
    assert_eq!(
        [&one["email"], &one["subject"]],
        [&json!(ada.email), &json!(ada.id)]
    );
    let add = |email, group| ["add-to-group", "--user", email, "--group", group];
    user(&postern, &add(&ada.email, "recruiters"))
        .await
        .expect(0, 0);
    let (_, tokens) = sign_in(&postern, &ada, PASSWORD).await;
    let token = tokens["accessToken"].as_str().expect("signed in");
    sensitive::record("access token", token);
    let candidates = surface.client().with_token(token).get("/candidates");
    let _ = candidates.send().await.expect(200);
    for (arguments, expected) in [
        (
            &add(&ada.email, "nobody")[..],
            "/group is not a group of the pool",
        ),
        (&add("eve@example.com", "admin")[..], "no user"),
    ] {
        let refused = user(&postern, arguments).await;
        assert!(
            refused.expect(1, 1)[0].contains(expected),
            "{}",
            refused.stderr
        );
    }
    user(&postern, &["set-password", "--user", &ada.email])
        .await
        .expect(0, 0);
    assert_eq!(sign_in(&postern, &ada, PASSWORD).await.0, 401);
    assert_eq!(sign_in(&postern, &ada, NEW_PASSWORD).await.0, 200);
    assert_eq!(
        (refresh(&postern, &ada).await, refresh(&postern, &bob).await),
        (401, 200)
    );
    postern.stop().await;
}

/// Presses the button of an action by the keyboard, confirms it, and waits until the page shows
/// another state.
async fn press(browser: &Browser, action: &str, then: &str) {
    let button = format!("form[data-action='user.{action}'] button");
    browser.find(&button).await;
    browser
        .run(&format!("document.querySelector(\"{button}\").focus()"))
        .await;
    browser.press(ENTER).await;
    browser
        .find("dialog[open] button[value=yes]")
        .await
        .click()
        .await;
    browser.find(then).await;
}

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "one scenario in the order of its events"
)]
async fn account_is_changed_on_the_page_users() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let Some(browser) = Browser::start(folder.path()).await else {
        let reason = "no chromium and chromedriver on this machine";
        return skipped("account_is_changed_on_the_page_users", reason);
    };
    let postern = Postern::start().await;
    let (ada, bob) = (
        postern.surface().register().await,
        postern.surface().register().await,
    );
    browser.open(&postern.console_link().await).await;
    wait_for_session(&browser).await;
    let console = format!("http://{}", postern.addresses().console);
    browser.open(&format!("{console}/users")).await;
    browser
        .find("input[name=email]")
        .await
        .type_text(&ada.email)
        .await;
    browser.press(ENTER).await;
    // The whole row is a link.
    browser
        .find("tbody tr:only-child td:nth-child(3)")
        .await
        .click()
        .await;
    let text = browser.find("dl.facts").await.text().await;
    assert!(
        text.contains(&ada.email) && text.contains(&ada.id),
        "{text}"
    );
    assert!(
        browser
            .address()
            .await
            .ends_with(&format!("/users/{}", ada.id))
    );
    press(
        &browser,
        "add_to_group",
        "[data-action='user.remove_from_group']",
    )
    .await;
    assert_page_is_accessible(&browser).await;
    press(
        &browser,
        "remove_from_group",
        "[data-action='user.add_to_group'] option[value=admin]",
    )
    .await;
    press(&browser, "disable", "[data-action='user.enable']").await;
    assert_eq!(
        (
            sign_in(&postern, &ada, PASSWORD).await.0,
            refresh(&postern, &ada).await
        ),
        (401, 401)
    );
    press(&browser, "enable", "[data-action='user.disable']").await;
    assert_eq!(sign_in(&postern, &ada, PASSWORD).await.0, 200);
    browser.open(&format!("{console}/users/{}", bob.id)).await;
    press(&browser, "sign_out", "#result.shown").await;
    assert_eq!(
        (
            sign_in(&postern, &bob, PASSWORD).await.0,
            refresh(&postern, &bob).await
        ),
        (200, 401)
    );
    press(&browser, "reset_password", "#result.shown").await;
    let mails = Mailbox::at(postern.surface().env("POSTERN_MAIL_URL"));
    let mail = mails.to(&bob.email).await;
    assert!(mail.to_string().contains("password"), "{mail}");
    assert_eq!(sign_in(&postern, &bob, PASSWORD).await.0, 401);
    browser
        .open(&format!("{console}/search?kind=user&q={}", bob.id))
        .await;
    let told = browser.find("ol.timeline").await.text().await;
    assert!(told.contains("Sign out everywhere"), "{told}");
    browser.close().await;
    postern.stop().await;
}
