//! The web console in a browser, over separate processes or those of standalone.
//!
//! ```no_run
//! # async fn console_shows_routes() {
//! use postern_harness::console::{Console, start_installation};
//!
//! let installation = start_installation().await;
//! let Some(console) = Console::start("console_shows_routes", &installation).await else { return };
//! console.sign_in("ada@example.com", "admin").await;
//! console.open("/routes").await;
//! console.assert_clean().await;
//! # }
//! ```

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::answer::Answer;
use crate::browser::{Browser, Sent};
use crate::client::Client;
use crate::config_file::ConfigFile;
use crate::installation::standalone::Standalone;
use crate::installation::{Changes, Installation};
use crate::pools::new_user_with_email;
use crate::ports;
use crate::process::{Program, Running};
use crate::public_api::{PASSWORD, PublicApi};
use crate::sensitive;
use crate::wait::{answer, answer_or_reason, until};

/// Selector of the heading of a page that is shown completely.
pub const HEADING: &str = "main:not([aria-busy]) h1";
/// Collects violations of the content security policy of all pages of a tab.
const OBSERVE_VIOLATIONS: &str = "addEventListener('securitypolicyviolation', (event) => { \
    const found = JSON.parse(sessionStorage.getItem('test-violations') || '[]'); \
    found.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sample} at ${location}`); \
    sessionStorage.setItem('test-violations', JSON.stringify(found)); });";

/// The console process and a browser.
#[derive(Debug)]
pub struct Console {
    program: Running,
    browser: Browser,
    surface: PublicApi,
    client: Client,
    _folder: TempDir,
}

/// What a console is started for.
#[derive(Debug)]
pub struct Target<'a> {
    surface: &'a PublicApi,
    /// The port of the authentication service.
    auth: u16,
    /// Ports of the admin listeners of gateway, authentication and notification service.
    admin: [u16; 3],
    token: &'a str,
}

impl<'a> From<&'a Installation> for Target<'a> {
    fn from(installation: &'a Installation) -> Self {
        let [(_, auth), (_, notify), (_, gateway)] = installation.admin_ports();
        Self {
            surface: installation.surface(),
            auth: installation.auth_port(),
            admin: [gateway, auth, notify],
            token: installation.admin_token(),
        }
    }
}

impl<'a> From<&'a Standalone> for Target<'a> {
    fn from(postern: &'a Standalone) -> Self {
        let addresses = postern.addresses();
        let admin = [
            addresses.proxy_admin,
            addresses.auth_admin,
            addresses.notify_admin,
        ];
        Self {
            surface: postern.surface(),
            auth: addresses.auth.port(),
            admin: admin.map(|address| address.port()),
            token: postern.surface().env("POSTERN_ADMIN_TOKEN"),
        }
    }
}

/// The variables of the console with the secrets of the admin routes.
pub const SECRETS: [&str; 3] = [
    "GATEWAY_ADMIN_TOKEN",
    "AUTH_ADMIN_TOKEN",
    "NOTIFY_ADMIN_TOKEN",
];

/// Starts the processes with the secret of the admin routes.
pub async fn start_installation() -> Installation {
    Box::pin(Installation::start_with(Changes::unlimited())).await
}

/// Returns the console as a program over an installation, and its port.
pub fn program<'a>(target: impl Into<Target<'a>>, folder: &std::path::Path) -> (Program, u16) {
    let (target, port): (Target<'a>, u16) = (target.into(), ports::free(1));
    let program = Program::of_workspace("postern-console", folder);
    let program = program.config("console.toml", config(&target, port).text());
    (program.envs(SECRETS.map(|name| (name, target.token))), port)
}

impl Console {
    /// Starts the console and a browser. Returns `None` if no browser is installed, and reports that
    /// `test` is skipped. The group `admin` and the service `auth` are operators; the group `support`
    /// and the service `notify` are viewers.
    pub async fn start<'a>(test: &str, target: impl Into<Target<'a>>) -> Option<Self> {
        let browser = Browser::start(test).await?;
        browser.run_in_new_pages(OBSERVE_VIOLATIONS).await;
        let target: Target<'a> = target.into();
        let surface = target.surface.clone();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (program, port) = program(target, folder.path());
        let mut program = program.start();
        let client = Client::new(&format!("http://127.0.0.1:{port}"));
        until("the console answers", async || {
            program.expect_alive();
            client.get("/livez").try_send().await.is_some()
        })
        .await;
        Some(Self {
            program,
            browser,
            surface,
            client,
            _folder: folder,
        })
    }

    /// Returns the browser.
    pub fn browser(&self) -> &Browser {
        &self.browser
    }

    /// Returns a client of the console without a token.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Creates a user with this address in a group, and signs it in with its password. Returns the
    /// subject.
    pub async fn sign_in(&self, email: &str, group: &str) -> String {
        let (subject, _) = new_user_with_email(&self.surface, email, &[group]).await;
        sensitive::record("email", email);
        self.browser.open(self.client.base().as_str()).await;
        let field = "#sign-in input[name=email]";
        self.browser.type_into(field, email).await;
        let field = "#sign-in input[name=password]";
        self.browser.type_into(field, PASSWORD).await;
        self.browser.click("#sign-in button").await;
        self.until_signed_in().await;
        subject
    }

    /// Creates a user with this address in a group, and returns an access token.
    pub async fn token_of(&self, email: &str, group: &str) -> String {
        let (_, token) = new_user_with_email(&self.surface, email, &[group]).await;
        sensitive::record("bearer token", &token);
        token
    }

    /// Signs in with an access token, on the page that is open.
    pub async fn sign_in_with_token(&self, token: &str) {
        sensitive::record("bearer token", token);
        self.browser.type_into("#token-sign-in input", token).await;
        self.browser.click("#token-sign-in button").await;
        self.until_signed_in().await;
    }

    /// Waits until the page is shown to somebody who is signed in.
    pub async fn until_signed_in(&self) {
        self.browser.find("header.top:not([hidden])").await;
        self.browser.find(HEADING).await;
    }

    /// Signs out.
    pub async fn sign_out(&self) {
        self.browser.click("#sign-out").await;
        self.browser.find("#sign-in").await;
    }

    /// Returns the token that the tab uses.
    pub async fn token(&self) -> String {
        let script = "return sessionStorage.getItem('postern-token')";
        let token = self.browser.run(script).await;
        let token = token.as_str().expect("somebody is signed in").to_owned();
        sensitive::record("bearer token", &token);
        token
    }

    /// Opens a page of the console, whose path may have a query, and waits until it is shown.
    /// Returns its heading.
    pub async fn open(&self, path: &str) -> String {
        let url = self.client.base().join(path).expect("a valid path");
        self.browser.open(url.as_str()).await;
        self.browser.text_of(HEADING).await
    }

    /// Clicks an element and waits until the page that it leads to is shown. Returns its heading.
    pub async fn follow(&self, selector: &str) -> String {
        self.browser.click(selector).await;
        self.browser.text_of(HEADING).await
    }

    /// Returns the visible text of the main part.
    pub async fn text(&self) -> String {
        self.browser.text_of("#main").await
    }

    /// Repeats a script, the body of a function, until it returns a value that is not `null` or
    /// `false`. Returns it.
    pub async fn wait_for(&self, script: &str) -> Value {
        let value = answer_or_reason(async || {
            let value = self.browser.run(script).await;
            let is_there = !value.is_null() && value != false;
            is_there.then_some(value).ok_or_else(String::new)
        });
        match value.await {
            Ok(value) => value,
            Err(_) => panic!("never true: {script}\n{}", self.text().await),
        }
    }

    /// Waits until the main part contains a text.
    pub async fn wait_for_text(&self, text: &str) {
        let text = Value::from(text);
        self.wait_for(&format!(
            "return document.getElementById('main').innerText.includes({text})"
        ))
        .await;
    }

    /// Confirms the dialog of a change, and returns the outcome that the page shows.
    pub async fn confirm(&self) -> String {
        self.browser.click("dialog[open] button[value=yes]").await;
        self.outcome().await
    }

    /// Waits for the outcome of a change, and returns it.
    pub async fn outcome(&self) -> String {
        self.browser.text_of("#result.shown").await
    }

    /// Asserts that the page is accessible ([`Browser::assert_accessible`]), and that no page so far has caused a message in the browser's log or
    /// violated the content security policy.
    pub async fn assert_clean(&self) {
        self.browser.assert_accessible(async || {}).await;
        self.assert_quiet().await;
    }

    /// Asserts that no page so far has caused a message in the browser's log or violated the
    /// content security policy.
    pub async fn assert_quiet(&self) {
        self.browser.assert_no_messages().await;
        let violations = "return sessionStorage.getItem('test-violations')";
        assert_eq!(self.browser.run(violations).await, Value::Null);
    }

    /// Returns the requests that the pages have sent since the last call.
    pub async fn requests(&self) -> Vec<Sent> {
        self.browser.requests().await
    }

    /// Makes a change by a direct call, as a script with this token does.
    pub async fn call_action(&self, token: &str, name: &str, fields: &Value) -> Answer {
        let client = self.client.with_token(token);
        client.post_json(&format!("/actions/{name}"), fields).await
    }

    /// Returns the console's log so far.
    pub fn log(&self) -> String {
        self.program.log()
    }

    /// Waits until the console logs `console action` for an action, and returns the event.
    pub async fn wait_for_action(&self, action: &str) -> Value {
        let expected = json!({ "action": action });
        wait_for_event(|| self.log(), "console action", &expected).await
    }

    /// Stops the browser and the console.
    pub async fn stop(self) {
        self.browser.close().await;
        let ended = self.program.stop("TERM").await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    }
}

/// Waits until a log has an event with this message and these members, and returns the newest one.
pub async fn wait_for_event(log: impl Fn() -> String, message: &str, members: &Value) -> Value {
    answer(async || {
        let log = log();
        let found = events(&log, message, members).pop();
        found.ok_or_else(|| format!("{message} {members} is not in\n{log}"))
    })
    .await
}

/// Returns the events of a log in JSON with this message and these members, in their order.
pub fn events(log: &str, message: &str, members: &Value) -> Vec<Value> {
    let events = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let is_expected = |event: &Value| {
        let mut members = members.as_object().into_iter().flatten();
        event["message"] == message && members.all(|(name, value)| event[name] == *value)
    };
    events.filter(is_expected).collect()
}

fn config(target: &Target<'_>, port: u16) -> ConfigFile {
    let [proxy, auth, notify] = target.admin;
    ConfigFile::of_repository("console.toml")
        .replace_port(8512, port)
        .replace_port(8501, target.auth)
        .replace_port(8509, proxy)
        .replace_port(8510, auth)
        .replace_port(8511, notify)
        .replace_table(
            "roles.viewer",
            "groups = [\"support\"]\nservices = [\"notify\"]\n",
        )
        .replace_table(
            "roles.operator",
            "groups = [\"admin\"]\nservices = [\"auth\"]\n",
        )
}
