//! Traefik reads its examples of `docs/manual/migrating.md`.

use std::process::Stdio;

use postern_core::testing::skipped;
use tokio::process::{Child, Command};

use super::migrating::{TOPICS, examples};
use super::*;

/// Time between two looks at what Traefik has read.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Requests nothing of the Internet.
const QUIET: &str = "global: { checkNewVersion: false, sendAnonymousUsage: false }\n";

/// Returns the program, unless `tests/peers/traefik/install` has not run.
pub(super) fn program() -> Option<PathBuf> {
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
    assert_eq!(examples.len(), TOPICS + 1, "and one of a site");
    for (heading, example) in examples {
        let read = read(&program, &example).await;
        assert!(read.is_ok(), "{heading}: {read:?}");
    }
}
