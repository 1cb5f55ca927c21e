//! All programs with the shipped configuration and all dependencies: their start logs no warning, and
//! signals that request something end none.

use std::time::{Duration, Instant};

use postern_harness::console::{self, start_installation};
use postern_harness::process::{Program, Running};
use postern_harness::{Client, wait::answer};

/// Time of the first probes and samples, which have an interval of 2 and 5 s.
const PROBED: Duration = Duration::from_secs(6);

/// Waits until the log has a text this often.
async fn until_logged(log: impl Fn() -> String, text: &str, count: usize) {
    answer(async || {
        let log = log();
        let is_logged = log.matches(text).count() >= count;
        let told = is_logged.then_some(());
        told.ok_or_else(|| format!("{count} times {text}: {log}"))
    })
    .await;
}

/// Sends all signals that end a program without a handler.
async fn request_all(running: &Running) {
    for signal in ["USR1", "USR2", "HUP"] {
        running.signal(signal).await;
    }
}

#[tokio::test]
async fn programs_start_without_a_warning_and_survive_requests() {
    let split = start_installation().await;
    let (console, _) = console::program(&split, split.folder());
    let console = console.start();
    let folder = tempfile::tempdir().expect("a folder");
    let postern = Program::of_workspace("postern", folder.path());
    let postern = postern.args(["--port", "0", "--log", "info"]);
    let mut postern = postern.start();
    let _greeting = postern.wait_for_line("console").await;
    until_logged(|| console.log(), "listening", 1).await;
    let (probed, [.., (_, gateway)]) = (Instant::now() + PROBED, split.admin_ports());
    let gateway = Client::new(&format!("http://127.0.0.1:{gateway}"));
    while Instant::now() < probed {
        let _ready = gateway.fetch("/readyz", 200).await;
    }
    let log = [split.log(), postern.log(), console.log()].concat();
    assert!(log.contains("\"postern-console\""), "{log}");
    let is_warning = |line: &&str| line.contains("WARN") || line.contains("ERROR");
    let warnings: Vec<&str> = log.lines().filter(is_warning).collect();
    assert!(warnings.is_empty(), "{warnings:#?}");
    for process in split.processes().chain([&console, &postern]) {
        request_all(process).await;
    }
    // Authentication and notification service; the gateway reads its file again.
    until_logged(|| split.log(), "configuration unchanged", 2).await;
    until_logged(|| split.log(), "configuration reloaded", 1).await;
    until_logged(|| split.log(), "templates reloaded", 1).await;
    until_logged(|| postern.log(), "templates reloaded", 1).await;
    until_logged(|| console.log(), "configuration unchanged", 1).await;
    let file = split.folder().join("console.toml");
    std::fs::write(file, "# changed").expect("the folder can be written");
    console.signal("HUP").await;
    until_logged(|| console.log(), "configuration change needs a restart", 1).await;
    for running in [console, postern] {
        let ended = running.stop("TERM").await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    }
    split.stop().await;
}
