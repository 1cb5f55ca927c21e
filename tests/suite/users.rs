//! Accounts as operators see and change them: the command `postern user`, and the page Users.

use postern_harness::browser::ENTER;
use postern_harness::process::Ended;
use postern_harness::public_api::{PASSWORD, text};
use postern_harness::{Browser, Person, Standalone, sensitive};
use serde_json::{Value, json};

use super::standalone_console::wait_for_session;

const NEW_PASSWORD: &str = "Other-Horse-Battery-9";

async fn sign_in(postern: &Standalone, person: &Person, password: &str) -> (u16, Value) {
    let body = json!({ "email": person.email, "password": password });
    let answer = postern.surface().client().post_json("/auth/login", &body);
    let answer = answer.await;
    (answer.status.as_u16(), answer.json())
}

async fn refresh(postern: &Standalone, person: &Person) -> u16 {
    let token = text(&person.tokens, "refreshToken");
    postern.surface().refresh(token).await.status.as_u16()
}

/// Returns the statuses of a sign-in and of a refresh.
async fn states(postern: &Standalone, person: &Person) -> [u16; 2] {
    let (status, _) = sign_in(postern, person, PASSWORD).await;
    [status, refresh(postern, person).await]
}

async fn user(postern: &Standalone, arguments: &[&str]) -> Ended {
    let input = postern.folder().join("password.txt");
    std::fs::write(&input, format!("{NEW_PASSWORD}\n")).expect("written");
    let arguments = [&["user"], arguments].concat();
    postern.command(&arguments).input(input).run().await
}

#[tokio::test]
async fn user_command_lists_and_changes_users() {
    let postern = Standalone::start().await;
    sensitive::record("password", NEW_PASSWORD);
    let surface = postern.surface();
    let (ada, bob) = (surface.register().await, surface.register().await);
    let listed = user(&postern, &["list"]).await.stdout;
    let line = format!("{} CONFIRMED {}\n", ada.email, ada.id);
    for part in [&line, &bob.email] {
        assert!(listed.contains(part), "{listed}");
    }
    let one = user(&postern, &["list", "--email", &ada.email[..20], "--json"]).await;
    let one: Value = one.stdout.parse().expect("one object");
    assert_eq!(one["email"], *ada.email);
    assert_eq!(one["subject"], *ada.id);
    let add = |email, group| ["add-to-group", "--user", email, "--group", group];
    let added = user(&postern, &add(&ada.email, "recruiters")).await;
    added.expect(0, 0);
    let (_, tokens) = sign_in(&postern, &ada, PASSWORD).await;
    let signed_in = surface.client().with_token(text(&tokens, "accessToken"));
    let _ = signed_in.fetch("/candidates", 200).await;
    for (email, group, expected) in [
        (&*ada.email, "nobody", "/group is not a group of the pool"),
        ("eve@example.com", "admin", "no user"),
    ] {
        let refused = user(&postern, &add(email, group)).await;
        let said = refused.expect(1, 1)[0];
        assert!(said.contains(expected), "{said}");
    }
    let set = user(&postern, &["set-password", "--user", &ada.email]).await;
    set.expect(0, 0);
    assert_eq!(sign_in(&postern, &ada, PASSWORD).await.0, 401);
    assert_eq!(sign_in(&postern, &ada, NEW_PASSWORD).await.0, 200);
    assert_eq!(refresh(&postern, &ada).await, 401);
    assert_eq!(refresh(&postern, &bob).await, 200);
    postern.stop().await;
}

/// Presses the button of an action by the keyboard, confirms it, and waits until the page shows
/// another state.
async fn press(browser: &Browser, action: &str, then: &str) {
    let button = format!("form[data-action='user.{action}'] button");
    browser.find(&button).await;
    let focus = format!("document.querySelector(\"{button}\").focus()");
    browser.run(&focus).await;
    browser.press(ENTER).await;
    browser.click("dialog[open] button[value=yes]").await;
    browser.find(then).await;
}

#[tokio::test]
async fn account_is_changed_on_the_page_users() {
    let Some(browser) = Browser::start("account_is_changed_on_the_page_users").await else {
        return;
    };
    let postern = Standalone::start().await;
    let surface = postern.surface();
    let (ada, bob) = (surface.register().await, surface.register().await);
    browser.open(&postern.console_link().await).await;
    wait_for_session(&browser).await;
    let console = format!("http://{}", postern.addresses().console);
    browser.open(&format!("{console}/users")).await;
    browser.type_into("input[name=email]", &ada.email).await;
    browser.press(ENTER).await;
    // The whole row is a link.
    browser.click("tbody tr:only-child td:nth-child(3)").await;
    let facts = browser.text_of("dl.facts").await;
    for part in [&ada.email, &ada.id] {
        assert!(facts.contains(part), "{facts}");
    }
    let address = browser.address().await;
    assert!(address.ends_with(&ada.id), "{address}");
    let remove = "[data-action='user.remove_from_group']";
    press(&browser, "add_to_group", remove).await;
    browser.assert_accessible(async || {}).await;
    let add = "[data-action='user.add_to_group'] option[value=admin]";
    press(&browser, "remove_from_group", add).await;
    press(&browser, "disable", "[data-action='user.enable']").await;
    assert_eq!(states(&postern, &ada).await, [401, 401]);
    press(&browser, "enable", "[data-action='user.disable']").await;
    assert_eq!(sign_in(&postern, &ada, PASSWORD).await.0, 200);
    browser.open(&format!("{console}/users/{}", bob.id)).await;
    press(&browser, "sign_out", "#result.shown").await;
    assert_eq!(states(&postern, &bob).await, [200, 401]);
    press(&browser, "reset_password", "#result.shown").await;
    let mail = postern.surface().mailbox().to(&bob.email).await;
    assert!(mail.to_string().contains("password"), "{mail}");
    assert_eq!(sign_in(&postern, &bob, PASSWORD).await.0, 401);
    let search = format!("{console}/search?kind=user&q={}", bob.id);
    browser.open(&search).await;
    let told = browser.text_of("ol.timeline").await;
    assert!(told.contains("Sign out everywhere"), "{told}");
    browser.close().await;
    postern.stop().await;
}
