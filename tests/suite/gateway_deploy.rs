//! Linters for the deployment files, and the development certificates.

use std::path::Path;
use std::process::Command;

/// Returns output and status of `conf/deploy/check`.
fn check(path: &str) -> (String, Option<i32>) {
    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/deploy/check");
    let output = Command::new(check)
        .env("PATH", path)
        .output()
        .expect("the check can be run");
    let said = [output.stdout, output.stderr].concat();
    (
        String::from_utf8_lossy(&said).into_owned(),
        output.status.code(),
    )
}

#[test]
fn deployment_files_pass_the_linters() {
    let path = postern_core::config::Env::of_process()
        .get("PATH")
        .unwrap_or_default()
        .to_owned();
    match check(&path) {
        (said, Some(0)) => assert_eq!(said, ""),
        // `tests/run` installs the other linters.
        (said, Some(69)) if said == "not checked: systemd-analyze is missing\n" => {
            postern_harness::skipped("linters_find_nothing_in_what_deploys_it", said.trim());
        }
        (said, status) => panic!("{status:?}: {said}"),
    }
}

/// Returns whether a certificate is signed by the authority of the same folder.
fn is_signed(folder: &Path, certificate: &str, purpose: &str) -> bool {
    let mut verify = Command::new("openssl");
    verify.args([
        "verify",
        "-CAfile",
        "authority.pem",
        "-purpose",
        purpose,
        certificate,
    ]);
    verify
        .current_dir(folder)
        .output()
        .is_ok_and(|output| output.status.success())
}

#[test]
fn development_certificates_are_valid() {
    if Command::new("openssl").arg("version").output().is_err() {
        return postern_harness::skipped(
            "the_certificates_of_development_serve_their_purpose",
            "openssl is missing",
        );
    }
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("generate.sh");
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("../certs/generate.sh");
    std::fs::copy(original, &script).expect("the file is copied");
    let authority = || std::fs::read(folder.path().join("authority.pem")).expect("an authority");
    let make = || {
        assert!(
            Command::new(&script)
                .output()
                .expect("it runs")
                .status
                .success()
        );
    };
    make();
    let first = authority();
    make();
    assert_eq!(first, authority(), "the authority stays");
    assert!(is_signed(folder.path(), "server.pem", "sslserver"));
    assert!(is_signed(folder.path(), "client.pem", "sslclient"));
    assert!(
        !is_signed(folder.path(), "server.pem", "sslclient"),
        "a server is no client"
    );
    let wrong = Command::new(&script).arg("soon").output().expect("it runs");
    assert_eq!(wrong.status.code(), Some(64));
}

#[test]
fn socket_unit_matches_the_configuration() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect(path);
    let unit = read("conf/deploy/postern-proxy.socket");
    let config: toml::Table = toml::from_str(&read("conf/proxy.toml")).expect("TOML");
    let listens: Vec<&str> = config["listen"]
        .as_array()
        .expect("tables")
        .iter()
        .filter_map(|one| one["address"].as_str())
        .collect();
    let sockets: Vec<&str> = unit
        .lines()
        .filter_map(|line| line.strip_prefix("ListenStream="))
        .collect();
    assert_eq!(sockets, listens);
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new("bash")
        .args(["-c", STEPS])
        .arg(root)
        .current_dir(folder.path())
        .output()
        .expect("bash runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let sums = std::fs::read_to_string(folder.path().join("first/SHA256SUMS")).expect("sent");
    let failed = "manifest.json: FAILED\nstatus 65\n";
    assert_eq!(said, format!("engine build\nengine push\n{sums}{failed}"));
}
