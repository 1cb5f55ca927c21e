//! A headless Chromium browser, driven by the W3C WebDriver protocol
//! (<https://www.w3.org/TR/webdriver2/>).

use std::path::{Path, PathBuf};

use postern_core::config::Env;
use postern_core::testing::skipped;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::Client;
use crate::paths;
use crate::process::{Program, Running};

/// Member that identifies an element in JSON (WebDriver, section 12.1).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// Maximum time for a page to show an element, in milliseconds.
const ELEMENT_TIMEOUT_MS: u32 = 20_000;

/// The widths and heights at which pages are checked, in CSS pixels.
pub const SIZES: [[u32; 2]; 2] = [[1280, 800], [390, 844]];
/// The colour schemes in which pages are checked.
pub const SCHEMES: [&str; 2] = ["light", "dark"];
/// The key Enter (WebDriver, section 17.4.2).
pub const ENTER: &str = "\u{e007}";
/// The key Tab.
pub const TAB: &str = "\u{e004}";

/// A browser with a separate profile, closed by [`Browser::close`].
#[derive(Debug)]
pub struct Browser {
    driver: Running,
    session: Client,
    _folder: TempDir,
}

/// A request that a page has sent.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The URL.
    pub url: String,
    /// The whole request as JSON: method, header fields and body.
    pub text: String,
}

impl Browser {
    /// Starts a browser with a new profile. Returns `None` if no browser is installed, and reports
    /// that `test` is skipped.
    pub async fn start(test: &str) -> Option<Self> {
        let programs = ["chromium", "chromedriver"].map(installed);
        let [Some(chromium), Some(chromedriver)] = programs else {
            skipped(test, "no chromium and chromedriver on this machine");
            return None;
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (driver, port) = start_driver(chromedriver, folder.path()).await;
        let profile = format!(
            "--user-data-dir={}",
            folder.path().join("profile").display()
        );
        let options = json!({
            "binary": chromium,
            // Root has no sandbox; the other flags disable network access of the browser itself.
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--window-size=1280,900",
                "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync", profile],
        });
        let wanted = json!({
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "timeouts": {"implicit": ELEMENT_TIMEOUT_MS, "pageLoad": ELEMENT_TIMEOUT_MS,
                "script": ELEMENT_TIMEOUT_MS},
        });
        let client = Client::new(&format!("http://127.0.0.1:{port}"));
        let body = json!({"capabilities": {"alwaysMatch": wanted}});
        let session = client.posted("/session", &body, 200).await;
        let id = session.string("/value/sessionId");
        Some(Self {
            _folder: folder,
            driver,
            session: Client::new(&format!("http://127.0.0.1:{port}/session/{id}/")),
        })
    }

    /// Navigates to a URL.
    pub async fn open(&self, url: &str) {
        self.post("url", &json!({ "url": url })).await;
    }

    /// Returns the URL of the page.
    pub async fn address(&self) -> String {
        let url = self.get("url").await;
        url.as_str().expect("the URL is a string").to_owned()
    }

    /// Executes the body of a JavaScript function and returns its result.
    pub async fn run(&self, script: &str) -> Value {
        let body = json!({"script": script, "args": []});
        self.post("execute/sync", &body).await
    }

    /// Waits until the page shows an element that matches a CSS selector, and returns the id of the
    /// first one.
    pub async fn find(&self, selector: &str) -> String {
        let query = json!({"using": "css selector", "value": selector});
        let found = self.post("element", &query).await;
        let id = found[ELEMENT].as_str();
        id.unwrap_or_else(|| panic!("{selector}: {found}"))
            .to_owned()
    }

    /// Clicks an element, in the middle of the viewport: at its edge, the header may cover it.
    pub async fn click(&self, selector: &str) {
        let id = self.find(selector).await;
        let script = "arguments[0].scrollIntoView({ block: 'center' })";
        let scroll = json!({"script": script, "args": [{ ELEMENT: id }]});
        self.post("execute/sync", &scroll).await;
        self.post(&format!("element/{id}/click"), &json!({})).await;
    }

    /// Types text into an element.
    pub async fn type_into(&self, selector: &str, text: &str) {
        let path = format!("element/{}/value", self.find(selector).await);
        self.post(&path, &json!({ "text": text })).await;
    }

    /// Returns the visible text of an element.
    pub async fn text_of(&self, selector: &str) -> String {
        let path = format!("element/{}/text", self.find(selector).await);
        self.get(&path).await.as_str().expect("text").to_owned()
    }

    /// Sets the size of the viewport in CSS pixels and the preferred colour scheme, `light` or
    /// `dark`.
    pub async fn emulate(&self, [width, height]: [u32; 2], scheme: &str) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &size)
            .await;
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", &scheme).await;
    }

    /// Disconnects the page from the network, or connects it again.
    pub async fn set_offline(&self, offline: bool) {
        let conditions = json!({"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1});
        self.devtools("Network.enable", &json!({})).await;
        self.devtools("Network.emulateNetworkConditions", &conditions)
            .await;
    }

    /// Hides scroll bars, as touch screens do.
    pub async fn hide_scroll_bars(&self) {
        self.devtools("Emulation.setScrollbarsHidden", &json!({ "hidden": true }))
            .await;
    }

    /// Presses keys, such as `Tab` as `\u{e004}` (WebDriver, section 17.4.2), in the focused element.
    pub async fn press(&self, keys: &str) {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key})))
            .collect();
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.post("actions", &json!({"actions": [keyboard]})).await;
    }

    /// Returns the messages that the browser has logged since the last call: errors of scripts,
    /// refused resources, violations of policies.
    pub async fn messages(&self) -> Vec<String> {
        self.log("browser").await
    }

    /// Returns the requests that pages have sent since the last call, in their order.
    pub async fn requests(&self) -> Vec<Sent> {
        let mut sent = Vec::new();
        for entry in self.log("performance").await {
            let entry: Value = serde_json::from_str(&entry).unwrap_or_default();
            let event = &entry["message"];
            if event["method"] == "Network.requestWillBeSent" {
                let request = &event["params"]["request"];
                sent.push(Sent {
                    url: request["url"].as_str().unwrap_or_default().to_owned(),
                    text: request.to_string(),
                });
            }
        }
        sent
    }

    /// Returns the messages of a log of the driver since the last call.
    async fn log(&self, kind: &str) -> Vec<String> {
        let log = self.post("se/log", &json!({ "type": kind })).await;
        let messages = log.as_array().into_iter().flatten();
        messages
            .filter_map(|entry| entry["message"].as_str())
            .map(str::to_owned)
            .collect()
    }

    /// Runs a script in every page that is opened later, before the page's own scripts.
    pub async fn run_in_new_pages(&self, script: &str) {
        let source = json!({ "source": script });
        self.devtools("Page.addScriptToEvaluateOnNewDocument", &source)
            .await;
    }

    /// Returns a picture of the viewport (PNG).
    pub async fn screenshot(&self) -> Vec<u8> {
        use base64::Engine as _;
        let picture = self.get("screenshot").await;
        let picture = picture.as_str().expect("a string");
        let decoded = base64::engine::general_purpose::STANDARD.decode(picture);
        decoded.expect("base64")
    }

    /// Returns the list of violations that axe-core finds on the page, each with the selector of the
    /// first element. The script is run by the driver, which the page's policy does not restrict.
    async fn accessibility_violations(&self) -> Value {
        if self.run("return typeof axe").await == "undefined" {
            let axe = paths::peer("axe/node_modules/axe-core/axe.min.js");
            let axe = std::fs::read_to_string(axe).expect("tests/run installs axe-core");
            self.run(&axe).await;
        }
        let script = "const done = arguments[arguments.length - 1]; \
            axe.run().then((found) => done(found.violations.map((violation) => \
            violation.id + ' at ' + violation.nodes[0].target)));";
        let body = json!({"script": script, "args": []});
        self.post("execute/async", &body).await
    }

    /// Asserts that the page has no accessibility violation and no horizontal scroll bar, at all
    /// [`SIZES`] and in both [`SCHEMES`]. `show` opens or arranges the page for each of them.
    pub async fn assert_accessible(&self, show: impl AsyncFn()) {
        for size in SIZES {
            for scheme in SCHEMES {
                self.emulate(size, scheme).await;
                show().await;
                let at = self.address().await;
                let found = self.accessibility_violations().await;
                assert_eq!(found, json!([]), "{at} {size:?} {scheme}");
                assert!(!self.is_too_wide().await, "{at} {size:?} {scheme}");
            }
        }
        self.emulate(SIZES[0], SCHEMES[0]).await;
    }

    /// Returns whether the page has a horizontal scroll bar.
    pub async fn is_too_wide(&self) -> bool {
        let wider = "return document.documentElement.scrollWidth > innerWidth";
        self.run(wider).await == true
    }

    /// Asserts that the browser has logged nothing since the last call.
    pub async fn assert_no_messages(&self) {
        let (at, messages) = (self.address().await, self.messages().await);
        assert!(messages.is_empty(), "{at}: {messages:?}");
    }

    async fn devtools(&self, command: &str, parameters: &Value) {
        let body = json!({"cmd": command, "params": parameters});
        self.post("goog/cdp/execute", &body).await;
    }

    /// Closes the browser.
    pub async fn close(self) {
        let session = self.session.base().path().trim_end_matches('/');
        let _ = self.session.delete(session).send().await.expect(200);
        drop(self.driver);
    }

    async fn get(&self, path: &str) -> Value {
        self.session.read(path).await["value"].clone()
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        self.session.posted(path, body, 200).await.json()["value"].clone()
    }
}

/// Starts a driver and returns its URL. The driver chooses a port that is free for IPv4 and exits
/// if it is used for IPv6; then it is started again.
async fn start_driver(program: PathBuf, folder: &Path) -> (Running, String) {
    let program = Program::at(program, folder)
        .arg("--port=0")
        .env("HOME", folder.display().to_string())
        .env("PATH", Env::of_process().get("PATH").unwrap_or_default());
    for _ in 0..5 {
        let mut driver = program.start();
        if let Ok(said) = driver.line_or_end("started successfully on port").await {
            let line = said.last().expect("the expected line");
            return (driver, line.chars().filter(char::is_ascii_digit).collect());
        }
    }
    panic!("chromedriver found no free port in five tries");
}

/// Returns the path of a program, if it is installed.
fn installed(name: &str) -> Option<PathBuf> {
    let env = Env::of_process();
    std::env::split_paths(env.get("PATH")?)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}
