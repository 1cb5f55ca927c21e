//! Runs one suite of cases against this pool, moto, and cognito-local, driven by boto3 as an
//! independent client (`tests/peers/boto3`; its `install` installs the peers).

use std::path::PathBuf;

use postern_core::Clock;
use postern_core::testing::skipped;
use tokio::process::Command;

use super::harness::{SAMPLE_PROOF_KEY, start_server};

fn peers_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/peers/boto3")
}

/// Returns whether the part is installed, and reports a skipped test if not.
fn is_installed(part: &str, test: &str) -> bool {
    let mark = format!("../../.peers/boto3/{part}.installed");
    let is_installed = peers_folder().join(mark).exists();
    if !is_installed {
        skipped(test, "run tests/peers/boto3/install first");
    }
    is_installed
}

async fn assert_command_succeeds(command: &mut Command) {
    let output = command.kill_on_drop(true).output().await;
    let output = output.expect("the peers run");
    let lines = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let failed = lines.lines().filter(|line| line.contains("\"failed\""));
    let failed: Vec<&str> = failed.collect();
    println!("{}", lines.lines().last().unwrap_or_default());
    assert!(output.status.success(), "{}\n{errors}", failed.join("\n"));
}

#[tokio::test]
async fn identity_pool_passes_conformance_suite() {
    if !is_installed("python", "our_pool_conforms_without_a_gap") {
        return;
    }
    // The client signs with it.
    let pool = start_server(Clock::system()).await;
    let keys = &pool.provisioned;
    assert_command_succeeds(
        Command::new(peers_folder().join("run"))
            .args(["postern", &pool.url])
            .env("SOCIAL_PROOF_KEY", SAMPLE_PROOF_KEY)
            .env("AWS_ACCESS_KEY_ID", &keys.access_key_id)
            .env("AWS_SECRET_ACCESS_KEY", keys.secret_access_key.expose()),
    )
    .await;
}

#[tokio::test]
async fn moto_has_known_gaps() {
    if is_installed("python", "moto_has_the_gaps_that_we_know") {
        assert_command_succeeds(Command::new(peers_folder().join("run")).arg("moto")).await;
    }
}

#[tokio::test]
async fn cognito_local_has_known_gaps() {
    if is_installed("node", "cognito_local_has_the_gaps_that_we_know") {
        assert_command_succeeds(Command::new(peers_folder().join("run")).arg("cognito-local"))
            .await;
    }
}
