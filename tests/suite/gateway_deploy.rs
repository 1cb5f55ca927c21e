//! The files that deploy it, as far as linters can tell, and the certificates of development.

use std::path::Path;
use std::process::Command;

#[test]
fn linters_find_nothing_in_what_deploys_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let linters = root.join(".peers/deploy/python/bin");
    let path = postern_common::config::Env::of_process().get("PATH").unwrap_or_default().to_owned();
    let output = Command::new(root.join("../conf/deploy/check"))
        .env("PATH", format!("{}:{path}", linters.display()))
        .output()
        .expect("the check can be run");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for missing in said.lines().filter(|line| line.starts_with("not checked: ")) {
        postern_tests::skipped("linters_find_nothing_in_what_deploys_it", missing);
    }
}

/// A certificate and the authority that signed it, both files of a folder.
fn is_signed(folder: &Path, certificate: &str, purpose: &str) -> bool {
    let mut verify = Command::new("openssl");
    verify.args(["verify", "-CAfile", "authority.pem", "-purpose", purpose, certificate]);
    verify.current_dir(folder).output().is_ok_and(|output| output.status.success())
}

#[test]
fn the_certificates_of_development_serve_their_purpose() {
    if Command::new("openssl").arg("version").output().is_err() {
        return postern_tests::skipped(
            "the_certificates_of_development_serve_their_purpose",
            "openssl is missing",
        );
    }
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("generate.sh");
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("../certs/generate.sh");
    std::fs::copy(original, &script).expect("copied");
    let authority = || std::fs::read(folder.path().join("authority.pem")).expect("an authority");
    let make = || assert!(Command::new(&script).output().expect("it runs").status.success());
    make();
    let first = authority();
    make();
    assert_eq!(first, authority(), "the authority stays");
    assert!(is_signed(folder.path(), "server.pem", "sslserver"));
    assert!(is_signed(folder.path(), "client.pem", "sslclient"));
    assert!(!is_signed(folder.path(), "server.pem", "sslclient"), "a server is no client");
    let wrong = Command::new(&script).arg("soon").output().expect("it runs");
    assert_eq!(wrong.status.code(), Some(64));
}
