//! Official client libraries of providers, used to validate requests (`tests/peers/notify`; install
//! them with its `install` script).

use std::path::PathBuf;
use std::process::Stdio;

use postern_core::testing::skipped;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/peers/notify")
}

/// Returns the folder of the client libraries if they are installed. Otherwise reports `test` as
/// skipped.
pub(crate) fn installed(test: &str) -> Option<PathBuf> {
    if folder().join("../../.peers/notify/installed").exists() {
        return Some(folder());
    }
    skipped(test, "run tests/peers/notify/install first");
    None
}

/// Sends requests to the client libraries and returns their responses in order.
pub(crate) async fn ask(questions: &[(&str, Value)]) -> Vec<Value> {
    let mut command = Command::new(folder().join("run"));
    let command = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().expect("the client libraries start");
    let text = serde_json::to_vec(questions).expect("JSON");
    let mut stdin = child.stdin.take().expect("piped");
    let (written, output) = tokio::join!(
        async move {
            stdin.write_all(&text).await?;
            stdin.shutdown().await
        },
        child.wait_with_output()
    );
    written.expect("the client libraries read standard input");
    let output = output.expect("the client libraries exit");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("a JSON array")
}
