//! Traefik reads its examples of `docs/migrating.md`, and Traefik and Caddy take what they say.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use postern_common::testing::skipped;
use serde_json::Value;
use tokio::process::{Child, Command};

use super::certificate_folder::free_port;
use super::harness::STEP_TIMEOUT;
use super::migrating::{TOPICS, examples};
use super::origin::{OriginBehavior, TestOrigin};

/// Time between two looks at what Traefik has read.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Requests nothing of the Internet.
const QUIET: &str = "global: { checkNewVersion: false, sendAnonymousUsage: false }\n";

/// Returns the program, unless `tests/peers/traefik/install` has not run.
fn program() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = root.join("../tests/.peers/traefik/python/bin/traefik");
    program.is_file().then_some(program)
}

/// A running Traefik with its log in a folder.
struct Traefik {
    process: Child,
    folder: tempfile::TempDir,
}

impl Traefik {
    /// Starts it with this static configuration. `$` is replaced by its folder, in which `dynamic`
    /// is the configuration of its file provider.
    fn start(program: &Path, configuration: &str, dynamic: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let configuration = configuration.replace('$', &folder.path().display().to_string());
        std::fs::write(at("static.yml"), configuration).expect("writes");
        std::fs::write(at("dynamic.yml"), dynamic).expect("writes");
        let log = std::fs::File::create(at("log")).expect("creates");
        let process = Command::new(program)
            .arg(format!("--configFile={}", at("static.yml").display()))
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a handle"))
            .stdout(log)
            .kill_on_drop(true)
            .spawn()
            .expect("starts");
        Self { process, folder }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).expect("reads")
    }

    /// Waits until `is_read` returns a result, unless an error is logged or the process ends.
    async fn read<T>(&mut self, is_read: impl AsyncFn(&str) -> Option<T>) -> Result<T, String> {
        let waiting = async {
            loop {
                let has_ended = self.process.try_wait().expect("a process").is_some();
                let log = self.log();
                if has_ended || log.contains(" ERR ") || log.contains("\"level\":\"error\"") {
                    return Err(log);
                }
                if let Some(read) = is_read(&log).await {
                    return Ok(read);
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let read = tokio::time::timeout(STEP_TIMEOUT, waiting).await;
        read.unwrap_or_else(|_| Err("timed out".to_owned()))
    }
}

/// Lets Traefik read a static configuration.
async fn read_static(program: &Path, example: &str) -> Result<(), String> {
    let example = example
        .replace("\":80\"", "\"127.0.0.1:0\"")
        .replace("\":443\"", "\"127.0.0.1:0\"")
        .replace("/var/lib/traefik", "$");
    let text = format!("{example}{QUIET}log: {{ level: INFO, noColor: true }}\n");
    let mut traefik = Traefik::start(program, &text, "");
    let is_read = async |log: &str| log.contains("Starting provider aggregator").then_some(());
    traefik.read(is_read).await
}

/// Lets Traefik read a dynamic configuration. Returns an error of a router as well.
async fn read_dynamic(program: &Path, example: &str) -> Result<(), String> {
    let port = free_port().await;
    let text = format!(
        "{QUIET}log: {{ level: ERROR, noColor: true }}\napi: {{ insecure: true }}\n\
         entryPoints: {{ web: {{ address: \"127.0.0.1:0\" }}, traefik: {{ address: \"127.0.0.1:{port}\" }} }}\n\
         providers: {{ file: {{ filename: \"$/dynamic.yml\" }} }}\n"
    );
    let mut traefik = Traefik::start(program, &text, example);
    let url = format!("http://127.0.0.1:{port}/api/rawdata");
    let client = reqwest::Client::builder().no_proxy().build();
    let client = client.expect("a client");
    let is_read = async |_: &str| {
        let response = client.get(&url).send().await.ok()?;
        let text = response.text().await.ok()?;
        let all: Value = serde_json::from_str(&text).ok()?;
        text.contains("@file\"").then_some(all)
    };
    let read = traefik.read(is_read).await?;
    let kinds = read.as_object().into_iter().flatten();
    for (name, part) in kinds.flat_map(|(_, parts)| parts.as_object().into_iter().flatten()) {
        if name.ends_with("@file") && (part["status"] != "enabled" || !part["error"].is_null()) {
            return Err(format!("{name}: {part}"));
        }
    }
    Ok(())
}

async fn read(program: &Path, example: &str) -> Result<(), String> {
    match example.contains("entryPoints:") {
        true => read_static(program, example).await,
        false => read_dynamic(program, example).await,
    }
}

#[tokio::test]
async fn traefik_accepts_its_examples() {
    let Some(program) = program() else {
        return skipped("traefik_accepts_its_examples", "Traefik is not installed");
    };
    let examples = examples("yaml");
    assert_eq!(examples.len(), TOPICS);
    for (heading, example) in examples {
        let read = read(&program, &example).await;
        assert!(read.is_ok(), "{heading}: {read:?}");
    }
}

#[tokio::test]
async fn traefik_rejects_mistakes_in_examples() {
    let Some(program) = program() else {
        return skipped(
            "traefik_rejects_mistakes_in_examples",
            "Traefik is not installed",
        );
    };
    for wrong in [
        "http: { middlewares: { a: { rateLimits: { average: 5 } } } }\n",
        "http: { routers: { a: { rule: \"PathPrefixes(`/`)\", service: \"noop@internal\" } } }\n",
        "http: { routers: { a: { rule: \"PathPrefix(`/`)\", service: missing } } }\n",
        "entryPoints: { web: { addresses: \":80\" } }\n",
    ] {
        assert!(read(&program, wrong).await.is_err(), "{wrong}");
    }
}

/// The prefixes of the example are those of the table below it.
#[tokio::test]
async fn prefixes_match_as_documented() {
    let installed = program().filter(|program| program.with_file_name("caddy").is_file());
    let Some(program) = installed else {
        return skipped(
            "prefixes_match_as_documented",
            "Traefik and Caddy are not installed",
        );
    };
    let origin = TestOrigin::start(OriginBehavior::Answer).await;
    let example = |language: &str| {
        let (heading, example) = examples(language).swap_remove(0);
        assert_eq!(heading, "Reverse proxy for a path prefix");
        example.replace("10.0.0.5:3000", &origin.address.to_string())
    };
    let [traefik_port, caddy_port] = [free_port().await, free_port().await];
    let text = format!(
        "{QUIET}entryPoints: {{ web: {{ address: \"127.0.0.1:{traefik_port}\" }} }}\n\
         providers: {{ file: {{ filename: \"$/dynamic.yml\" }} }}\n"
    );
    let traefik = Traefik::start(&program, &text, &example("yaml"));
    let caddyfile = example("caddyfile").replace(":8080", &format!("http://:{caddy_port}"));
    let file = traefik.folder.path().join("Caddyfile");
    std::fs::write(&file, format!("{{\n\tadmin off\n}}\n{caddyfile}")).expect("writes");
    let _caddy = Command::new(program.with_file_name("caddy"))
        .args(["run", "--adapter", "caddyfile", "--config"])
        .arg(&file)
        .env("HOME", traefik.folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("starts");
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .expect("a client");
    // Returns whether the request was forwarded.
    let takes = async |port: u16, path: &str| {
        let before = origin.seen().len();
        let _answer = client
            .get(format!("http://127.0.0.1:{port}{path}"))
            .send()
            .await;
        origin.seen().len() > before
    };
    for (port, expected) in [
        (traefik_port, [true, true, true]),
        (caddy_port, [false, true, false]),
    ] {
        let started = async {
            while !takes(port, "/shop/cart").await {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        tokio::time::timeout(STEP_TIMEOUT, started)
            .await
            .expect("starts");
        for (path, expected) in ["/shop", "/shop/cart", "/shopping"].iter().zip(expected) {
            assert_eq!(takes(port, path).await, expected, "{port} {path}");
        }
    }
}
