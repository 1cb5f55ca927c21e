//! Signals: those that request something end no program.

use std::time::Duration;

use postern_tests::config_file::ConfigFile;
use postern_tests::console::start_split;
use postern_tests::ports;
use postern_tests::program::{Program, Running};

/// Time in which a program logs what a signal has requested.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until the log has a text this often.
async fn until_logged(log: impl Fn() -> String, text: &str, count: usize) {
    let mut again = tokio::time::interval(Duration::from_millis(20));
    let waited = tokio::time::timeout(TIMEOUT, async {
        while log().matches(text).count() < count {
            again.tick().await;
        }
    });
    assert!(waited.await.is_ok(), "{count} times {text}: {}", log());
}

/// Sends all signals that end a program without a handler.
async fn request_all(running: &Running) {
    for signal in ["USR1", "USR2", "HUP"] {
        running.signal(signal).await;
    }
}

#[tokio::test]
async fn requesting_signals_end_no_program() {
    let split = start_split().await;
    let port = ports::free(1);
    let console = ConfigFile::of_repository("console.toml").replace_port(8512, port);
    let path = split.folder().join("console.toml");
    std::fs::write(&path, console.text()).expect("the folder can be written");
    let tokens = [
        "GATEWAY_ADMIN_TOKEN",
        "AUTH_ADMIN_TOKEN",
        "NOTIFY_ADMIN_TOKEN",
    ];
    let program = Program::of_workspace("postern-console", split.folder());
    let program = tokens.iter().fold(program, |program, name| {
        program.env(*name, split.admin_token())
    });
    let console = program
        .arg("--config")
        .arg(path.display().to_string())
        .start();
    until_logged(|| console.log(), "listening", 1).await;
    let folder = tempfile::tempdir().expect("a folder");
    let postern = Program::of_workspace("postern", folder.path());
    let postern = postern.arg("--port").arg("0").arg("--log").arg("info");
    let mut postern = postern.start();
    let _greeting = postern.wait_for_line("console").await;
    for process in split.processes() {
        request_all(process).await;
    }
    request_all(&console).await;
    request_all(&postern).await;
    // Authentication and notification service; the gateway reads its file again.
    until_logged(|| split.log(), "configuration unchanged", 2).await;
    until_logged(|| split.log(), "configuration reloaded", 1).await;
    until_logged(|| split.log(), "templates reloaded", 1).await;
    until_logged(|| postern.log(), "templates reloaded", 1).await;
    until_logged(|| console.log(), "configuration unchanged", 1).await;
    std::fs::write(&path, "# changed").expect("the folder can be written");
    console.signal("HUP").await;
    until_logged(|| console.log(), "configuration change needs a restart", 1).await;
    for running in [console, postern] {
        let ended = running.stop("TERM").await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    }
    split.stop().await;
}
