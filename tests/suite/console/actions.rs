//! Every change of the pages, with the events that the console and the processes log.

use postern_harness::console::{self, Console};
use postern_harness::json;
use postern_harness::mail_server::{REJECTED_DOMAIN, REPLY};
use postern_harness::public_api::message;
use postern_harness::{Installation, sensitive};
use sha2::{Digest, Sha256};

use super::pages::open_until;
use super::traffic::{Traffic, new_address};
use super::{assert_nothing_ran, hostile};

/// The logs in which a change must be found.
pub(super) struct Audit<'a> {
    console: &'a Console,
    split: &'a Installation,
    subject: &'a str,
}

impl<'a> Audit<'a> {
    pub(super) fn new(console: &'a Console, split: &'a Installation, subject: &'a str) -> Self {
        Self {
            console,
            split,
            subject,
        }
    }

    /// Submits the form of an action on the page that is open, and confirms it. Asserts that the
    /// change is done and logged by the console, and by a process under the name `logged`. Returns
    /// the outcome that the page shows.
    async fn make(&self, form: &str, action: &str, logged: &str) -> String {
        let button = format!("form[data-action='{action}']{form} button");
        self.console.browser().click(&button).await;
        let outcome = self.console.confirm().await;
        self.assert_logged(&outcome, action, logged).await;
        outcome
    }

    async fn assert_logged(&self, outcome: &str, action: &str, logged: &str) {
        assert!(outcome.contains("done"), "{action}: {outcome}");
        let expected = json!({"action": action, "operator": self.subject, "is_done": true});
        console::wait_for_event(|| self.console.log(), "console action", &expected).await;
        let expected = json!({"action": logged, "operator": self.subject});
        let log = || self.split.log();
        console::wait_for_event(log, "administrative action", &expected).await;
        assert_nothing_ran(self.console).await;
    }

    fn count(&self, logged: &str) -> usize {
        let expected = json!({ "action": logged });
        console::events(&self.split.log(), "administrative action", &expected).len()
    }
}

pub(super) async fn of_notifications(audit: &Audit<'_>, traffic: &Traffic) {
    let console = audit.console;
    let page = |id: &str| format!("/notifications/{id}");
    console.open(&page(&traffic.failed)).await;
    let name = "notification.retry";
    audit.make("", name, name).await;
    console.open(&page(&traffic.scheduled)).await;
    let name = "notification.cancel";
    audit.make("", name, name).await;
    console.wait_for_text("CANCELLED").await;
    // What cannot be cancelled is refused with the reason.
    console.open(&page(&traffic.sent)).await;
    let buttons = format!("return document.querySelectorAll(\"[data-action='{name}']\").length");
    assert_eq!(console.browser().run(&buttons).await, 0);
    let (token, target) = (console.token().await, json!({"target": traffic.sent}));
    let refused = console.call_action(&token, name, &target).await;
    let refused = refused.expect(200).json();
    assert_eq!(refused["isDone"], false, "{refused}");
    let outcome = &refused["outcomes"][0]["body"]["code"];
    assert_eq!(outcome, "already_attempted");
}

pub(super) async fn of_dead_letters(audit: &Audit<'_>) {
    let console = audit.console;
    let failed = accept_rejected(audit, "dead").await;
    open_until(console, "/dead-letters?channel=email", &failed).await;
    let dry = "form[data-action='dead.retry'][data-confirm=''] button";
    console.browser().click(dry).await;
    let outcome = console.outcome().await;
    assert!(outcome.contains("dry run true"), "{outcome}");
    assert_eq!(audit.count("dead.retry"), 0, "a dry run is no change");
    console.open("/dead-letters?channel=email").await;
    let (form, name) = (":not([data-confirm=''])", "dead.retry");
    let outcome = audit.make(form, name, name).await;
    assert!(outcome.contains("dry run false"), "{outcome}");
}

/// Sends a notification to a new address that the mail server rejects.
async fn accept_rejected(audit: &Audit<'_>, name: &str) -> String {
    let service = audit.split.development().service_token("auth").await;
    let email = format!("{name}-{}{REJECTED_DOMAIN}", uuid::Uuid::new_v4().simple());
    let mut body = message("email", &json!({"email": email}));
    body["variables"]["name"] = hostile(name).into();
    let client = audit.split.surface().client().with_token(&service);
    let accepted = client.posted("/notifications", &body, 201).await;
    accepted.string("/notificationId")
}

pub(super) async fn of_messages(audit: &Audit<'_>) {
    let console = audit.console;
    let form = "form[data-action='provider.test']:has(input[value=smtp])";
    for (to, expected) in [
        (new_address("test"), "accepted true"),
        (format!("test{REJECTED_DOMAIN}"), REPLY),
    ] {
        sensitive::record("to", &to);
        console.open("/providers").await;
        let browser = console.browser();
        let field = format!("{form} input[name=to]");
        browser.type_into(&field, &to).await;
        browser.click(&format!("{form} button")).await;
        let outcome = console.outcome().await;
        assert!(outcome.contains(expected), "{outcome}");
        let name = "provider.test";
        audit.assert_logged(&outcome, name, name).await;
    }
}

/// Removes a suppression that is found by its address, which leaves the page in no request.
pub(super) async fn of_suppression(audit: &Audit<'_>, traffic: &Traffic) {
    let console = audit.console;
    let hash = hex::encode(Sha256::digest(&traffic.rejected));
    open_until(console, "/suppression", &hash).await;
    let _earlier = console.requests().await;
    let typed = traffic.rejected.to_uppercase();
    console.browser().type_into("#address", &typed).await;
    console.browser().click("#suppression-search button").await;
    let found = format!("return location.search === '?hash={hash}'");
    console.wait_for(&found).await;
    let one = "return document.querySelectorAll('main:not([aria-busy]) tbody tr').length === 1";
    console.wait_for(one).await;
    let name = "suppression.remove";
    audit.make("", name, name).await;
    console.wait_for_text("No address is suppressed.").await;
    let sent = console.requests().await;
    let mut urls = sent.iter().map(|sent| &sent.url);
    assert!(urls.any(|url| url.ends_with(&hash)), "{sent:?}");
    let name = traffic.rejected.split('@').next().expect("a local part");
    let mut sent = sent.iter();
    let found = sent.find(|sent| sent.text.to_lowercase().contains(name));
    assert!(found.is_none(), "the address was sent: {found:?}");
}
