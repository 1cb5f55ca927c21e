//! The web console in a browser, over the processes of [`Split`] or those of standalone.
//!
//! ```no_run
//! # async fn example() {
//! use postern_tests::console::{self, Console};
//! use postern_tests::skipped;
//!
//! let split = console::start_split().await;
//! let Some(console) = Console::start(&split).await else {
//!     return skipped("test_name", "no chromium and chromedriver on this machine");
//! };
//! console.sign_in("ada@example.com", "admin").await;
//! console.open("/routes").await;
//! console.wait_for_text("first match first").await;
//! console.assert_clean().await;
//! console.stop().await;
//! split.stop().await;
//! # }
//! ```

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::answer::Answer;
use crate::browser::{Browser, Sent};
use crate::client::Client;
use crate::config_file::ConfigFile;
use crate::pools::new_user_with_email;
use crate::ports;
use crate::postern::Postern;
use crate::program::{Program, Running};
use crate::sensitive;
use crate::split::{Changes, Split};
use crate::surface::{PASSWORD, PublicApi};

/// The widths and heights at which pages are checked, in CSS pixels.
pub const SIZES: [[u32; 2]; 2] = [[1280, 800], [390, 844]];
/// The colour schemes in which pages are checked.
pub const SCHEMES: [&str; 2] = ["light", "dark"];
/// Selector of the heading of a page that is shown completely.
pub const HEADING: &str = "main:not([aria-busy]) h1";
/// Maximum time for a condition.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(25);
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

impl<'a> From<&'a Split> for Target<'a> {
    fn from(split: &'a Split) -> Self {
        let [(_, auth), (_, notify), (_, gateway)] = split.admin_ports();
        Self {
            surface: split.surface(),
            auth: split.auth_port(),
            admin: [gateway, auth, notify],
            token: split.admin_token(),
        }
    }
}

impl<'a> From<&'a Postern> for Target<'a> {
    fn from(postern: &'a Postern) -> Self {
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

/// Returns changes that give the processes a secret of the admin routes, and no limits that tests of
/// one address would exceed.
#[must_use]
pub fn changes() -> Changes {
    let unlimited = || "1000000".to_owned();
    Changes {
        admin_token: Some(uuid::Uuid::new_v4().simple().to_string()),
        set: vec![
            ("postern-proxy", "requests", unlimited()),
            ("postern-proxy", "burst", unlimited()),
            // Nothing reads the standard output of the processes.
            ("postern-proxy", "to", "\"./access.log\"".to_owned()),
        ],
        ..Changes::default()
    }
}

/// Starts the three processes with the secret of the admin routes.
pub async fn start_split() -> Split {
    Box::pin(Split::start_with(changes())).await
}

// === impl Console ===

impl Console {
    /// Starts the console and a browser. Returns `None` if no browser is installed. The group
    /// `admin` and the service `auth` are operators; the group `support` and the service `notify` are
    /// viewers.
    ///
    /// # Panics
    /// If the console does not start.
    pub async fn start<'a>(target: impl Into<Target<'a>>) -> Option<Self> {
        let target = target.into();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let browser = Browser::start(folder.path()).await?;
        browser.run_in_new_pages(OBSERVE_VIOLATIONS).await;
        let port = ports::free(1);
        let path = folder.path().join("console.toml");
        std::fs::write(&path, config(&target, port).text()).expect("the folder can be written");
        let program = Program::of_workspace("postern-console", folder.path())
            .arg("--config")
            .arg(path.display().to_string());
        let variables = [
            "GATEWAY_ADMIN_TOKEN",
            "AUTH_ADMIN_TOKEN",
            "NOTIFY_ADMIN_TOKEN",
        ];
        let program = variables
            .iter()
            .fold(program, |program, name| program.env(*name, target.token));
        let mut program = program.start();
        let client = Client::new(&format!("http://127.0.0.1:{port}"));
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        while client.get("/livez").try_send().await.is_none() {
            program.expect_alive();
            poll.tick().await;
        }
        Some(Self {
            program,
            browser,
            surface: target.surface.clone(),
            client,
            _folder: folder,
        })
    }

    /// Returns the browser.
    #[must_use]
    pub fn browser(&self) -> &Browser {
        &self.browser
    }

    /// Returns a client of the console without a token.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Creates a user with this address in a group, and signs it in with its password. Returns the
    /// subject.
    pub async fn sign_in(&self, email: &str, group: &str) -> String {
        let (subject, _) = new_user_with_email(&self.surface, email, &[group]).await;
        sensitive::record("email", email);
        self.browser.open(self.client.base().as_str()).await;
        self.browser
            .find("#sign-in input[name=email]")
            .await
            .type_text(email)
            .await;
        self.browser
            .find("#sign-in input[name=password]")
            .await
            .type_text(PASSWORD)
            .await;
        self.browser.find("#sign-in button").await.click().await;
        self.browser.find("header.top:not([hidden])").await;
        self.browser.find(HEADING).await;
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
        let field = self.browser.find("#token-sign-in input").await;
        field.type_text(token).await;
        self.browser
            .find("#token-sign-in button")
            .await
            .click()
            .await;
        self.browser.find("header.top:not([hidden])").await;
        self.browser.find(HEADING).await;
    }

    /// Returns the token that the tab uses.
    ///
    /// # Panics
    /// If nobody is signed in.
    pub async fn token(&self) -> String {
        let script = "return sessionStorage.getItem('postern-token')";
        let token = self.browser.run(script).await;
        let token = token.as_str().expect("somebody is signed in").to_owned();
        sensitive::record("bearer token", &token);
        token
    }

    /// Opens a page of the console, whose path may have a query, and waits until it is shown.
    /// Returns its heading.
    ///
    /// # Panics
    /// If the path is invalid.
    pub async fn open(&self, path: &str) -> String {
        let url = self.client.base().join(path).expect("a valid path");
        self.browser.open(url.as_str()).await;
        self.browser.find(HEADING).await.text().await
    }

    /// Clicks an element and waits until the page that it leads to is shown. Returns its heading.
    pub async fn follow(&self, selector: &str) -> String {
        self.browser.find(selector).await.click().await;
        self.browser.find(HEADING).await.text().await
    }

    /// Returns the visible text of the main part.
    pub async fn text(&self) -> String {
        self.browser.find("#main").await.text().await
    }

    /// Repeats a script, the body of a function, until it returns a value that is not `null` or
    /// `false`. Returns it.
    ///
    /// # Panics
    /// If it does not within 30 s.
    pub async fn wait_for(&self, script: &str) -> Value {
        let repeated = async {
            let mut poll = tokio::time::interval(POLL_INTERVAL);
            loop {
                poll.tick().await;
                let value = self.browser.run(script).await;
                if !value.is_null() && value != false {
                    return value;
                }
            }
        };
        match tokio::time::timeout(WAIT_LIMIT, repeated).await {
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
        let yes = self.browser.find("dialog[open] button[value=yes]").await;
        yes.click().await;
        self.outcome().await
    }

    /// Waits for the outcome of a change, and returns it.
    pub async fn outcome(&self) -> String {
        self.browser.find("#result.shown").await.text().await
    }

    /// Asserts that the page has no accessibility violation and no horizontal scroll bar, at all
    /// [`SIZES`] and [`SCHEMES`], and that no page so far has caused a message in the browser's log or
    /// violated the content security policy.
    ///
    /// # Panics
    /// If one of them is found.
    pub async fn assert_clean(&self) {
        let at = self.browser.address().await;
        for size in SIZES {
            for scheme in SCHEMES {
                self.browser.emulate(size, scheme).await;
                let found = self.browser.accessibility_violations().await;
                assert!(found.is_empty(), "{at} {size:?} {scheme}: {found:?}");
            }
            let wider = "return document.documentElement.scrollWidth > innerWidth";
            assert_eq!(self.browser.run(wider).await, false, "{at} {size:?}");
        }
        self.assert_quiet().await;
    }

    /// Asserts that no page so far has caused a message in the browser's log or violated the
    /// content security policy.
    ///
    /// # Panics
    /// If one has.
    pub async fn assert_quiet(&self) {
        let messages = self.browser.messages().await;
        assert!(messages.is_empty(), "{messages:?}");
        let violations = self.violations().await;
        assert!(violations.is_empty(), "{violations}");
    }

    /// Returns the violations of the content security policy by the pages of this tab as JSON, or
    /// an empty text.
    pub async fn violations(&self) -> String {
        let script = "return sessionStorage.getItem('test-violations') || ''";
        let found = self.browser.run(script).await;
        found.as_str().unwrap_or_default().to_owned()
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
    #[must_use]
    pub fn log(&self) -> String {
        self.program.log()
    }

    /// Waits until the console logs `console action` for an action, and returns the event.
    ///
    /// # Panics
    /// If it does not within 30 s.
    pub async fn wait_for_action(&self, action: &str) -> Value {
        let expected = json!({ "action": action });
        wait_for_event(|| self.log(), "console action", &expected).await
    }

    /// Stops the browser and the console.
    ///
    /// # Panics
    /// If the console ends with an error.
    pub async fn stop(self) {
        self.browser.close().await;
        let ended = self.program.stop("TERM").await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    }
}

/// Waits until a log has an event with this message and these members, and returns the newest one.
///
/// # Panics
/// If it does not within 30 s.
pub async fn wait_for_event(log: impl Fn() -> String, message: &str, members: &Value) -> Value {
    let repeated = async {
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        loop {
            poll.tick().await;
            if let Some(event) = events(&log(), message, members).pop() {
                return event;
            }
        }
    };
    match tokio::time::timeout(WAIT_LIMIT, repeated).await {
        Ok(event) => event,
        Err(_) => panic!("{message} {members} is not in\n{}", log()),
    }
}

/// Returns the events of a log in JSON with this message and these members, in their order.
#[must_use]
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
