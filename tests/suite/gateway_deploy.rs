//! Linters for the deployment files, and the development certificates.

use std::path::Path;
use std::process::Command;

use postern_harness::paths::{read, repository};
use postern_harness::systems::succeed;

/// Returns output and status of `conf/deploy/check`.
fn check(path: &str) -> (String, Option<i32>) {
    let mut check = Command::new(repository().join("conf/deploy/check"));
    let output = check.env("PATH", path).output().expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (said, output.status.code())
}

#[test]
fn deployment_files_pass_the_linters() {
    let env = postern_core::config::Env::of_process();
    match check(env.get("PATH").unwrap_or_default()) {
        (said, Some(0)) => assert_eq!(said, ""),
        // `tests/run` installs the other linters.
        (said, Some(69)) if said == "not checked: systemd-analyze is missing\n" => {
            postern_harness::skipped("deployment_files_pass_the_linters", said.trim());
        }
        (said, status) => panic!("{status:?}: {said}"),
    }
}

/// Returns whether a certificate is signed by the authority of the same folder.
fn is_signed(folder: &Path, certificate: &str, purpose: &str) -> bool {
    let mut verify = Command::new("openssl");
    verify.args(["verify", "-CAfile", "authority.pem", "-purpose", purpose]);
    let verified = verify.arg(certificate).current_dir(folder).output();
    verified.is_ok_and(|output| output.status.success())
}

#[test]
fn development_certificates_are_valid() {
    if Command::new("openssl").arg("version").output().is_err() {
        let test = "development_certificates_are_valid";
        return postern_harness::skipped(test, "openssl is missing");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("generate.sh");
    let original = repository().join("certs/generate.sh");
    std::fs::copy(original, &script).expect("the file is copied");
    let make = || {
        let _output = succeed(&mut Command::new(&script));
        std::fs::read(folder.path().join("authority.pem")).expect("an authority")
    };
    let (first, second) = (make(), make());
    assert_eq!(first, second, "the authority stays");
    assert!(is_signed(folder.path(), "server.pem", "sslserver"));
    assert!(is_signed(folder.path(), "client.pem", "sslclient"));
    let is_client = is_signed(folder.path(), "server.pem", "sslclient");
    assert!(!is_client, "a server is no client");
    let wrong = Command::new(&script).arg("soon").output().expect("it runs");
    assert_eq!(wrong.status.code(), Some(64));
}

#[test]
fn socket_unit_matches_the_configuration() {
    let unit = read("conf/deploy/postern-proxy.socket");
    let config: toml::Table = toml::from_str(&read("conf/proxy.toml")).expect("TOML");
    let listens = config["listen"].as_array().expect("tables").iter();
    let listens = listens.filter_map(|one| one["address"].as_str());
    let sockets = unit.lines();
    let sockets = sockets.filter_map(|line| line.strip_prefix("ListenStream="));
    assert_eq!(sockets.collect::<Vec<_>>(), listens.collect::<Vec<_>>());
}

/// Publishes a release of one file with a container engine that only prints its first argument,
/// then the same release with another content.
#[test]
fn release_is_published_only_with_right_sums() {
    const STEPS: &str = r#"set -e
        mkdir release
        commit=$(git -C "$0" rev-parse HEAD)
        printf '{\n  "version": "0.1.0",\n  "commit": "%s"\n}\n' "$commit" > release/manifest.json
        (cd release && sha256sum manifest.json > SHA256SUMS)
        printf '#!/bin/sh\necho "engine $1"\n' > engine
        chmod +x engine
        ENGINE=$PWD/engine "$0/conf/deploy/publish" release images.example.com/team first | grep -v '^+'
        cat first/SHA256SUMS
        echo >> release/manifest.json
        "$0/conf/deploy/publish" release - second || echo "status $?"
        ls second"#;
    let folder = tempfile::tempdir().expect("a folder");
    let mut bash = Command::new("bash");
    bash.args(["-c", STEPS]).arg(repository());
    let output = bash.current_dir(folder.path()).output();
    let said = String::from_utf8_lossy(&output.expect("bash runs").stdout).into_owned();
    let sums = std::fs::read_to_string(folder.path().join("first/SHA256SUMS")).expect("sent");
    let failed = "manifest.json: FAILED\nstatus 65\n";
    assert_eq!(said, format!("engine build\nengine push\n{sums}{failed}"));
}
