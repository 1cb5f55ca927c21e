//! One suite of cases against our pool, moto and cognito-local, driven by boto3 as a foreign client
//! (`tests/peers/boto3`; its `install` brings the peers).

use std::path::PathBuf;

use postern_common::testing::skipped;
use tokio::process::Command;

use super::harness::by_the_machines_clock;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/peers/boto3")
}

/// Whether the part is installed; if not, tells the test runner.
fn is_installed(part: &str, test: &str) -> bool {
    if folder()
        .join(format!("../../.peers/boto3/{part}.installed"))
        .exists()
    {
        return true;
    }
    skipped(test, "run tests/peers/boto3/install first");
    false
}

async fn passes(command: &mut Command) {
    let output = command
        .kill_on_drop(true)
        .output()
        .await
        .expect("the peers run");
    let (lines, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let failed: Vec<&str> = lines
        .lines()
        .filter(|line| line.contains("\"failed\""))
        .collect();
    println!("{}", lines.lines().last().unwrap_or_default());
    assert!(output.status.success(), "{}\n{errors}", failed.join("\n"));
}

#[tokio::test]
async fn our_pool_conforms_without_a_gap() {
    if !is_installed("python", "our_pool_conforms_without_a_gap") {
        return;
    }
    let pool = by_the_machines_clock().await;
    let keys = &pool.provisioned;
    passes(
        Command::new(folder().join("run"))
            .args(["postern", &pool.url])
            .env("AWS_ACCESS_KEY_ID", &keys.access_key_id)
            .env("AWS_SECRET_ACCESS_KEY", keys.secret_access_key.expose()),
    )
    .await;
}

#[tokio::test]
async fn moto_has_the_gaps_that_we_know() {
    if is_installed("python", "moto_has_the_gaps_that_we_know") {
        passes(Command::new(folder().join("run")).arg("moto")).await;
    }
}

#[tokio::test]
async fn cognito_local_has_the_gaps_that_we_know() {
    if is_installed("node", "cognito_local_has_the_gaps_that_we_know") {
        passes(Command::new(folder().join("run")).arg("cognito-local")).await;
    }
}
