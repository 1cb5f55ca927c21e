//! The packages: made by `conf/deploy/package`, installed into Debian 12 and 13 that are booted with
//! systemd, and started there with the shipped configuration.

use std::path::Path;
use std::process::Command;

use postern_core::testing::note;
use postern_harness::paths::{peer, repository};
use postern_harness::skipped;
use postern_harness::systems::{Network, PROGRAMS, copy_programs, obstacle, succeed};

/// Makes the packages of the programs of the test, quickly compressed.
fn make_packages(programs: &Path, output: &Path) {
    let tools = peer("packages/bin");
    let path = postern_core::config::Env::of_process();
    let path = path.get("PATH").unwrap_or_default();
    let mut package = Command::new(repository().join("conf/deploy/package"));
    package
        .arg("--fast")
        .args([programs, output])
        .env("PATH", format!("{}:{path}", tools.display()))
        .env("SOURCE_DATE_EPOCH", "1700000000");
    let _output = succeed(&mut package);
}

/// Returns the checksums of the files in a folder.
fn checksums(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("SHA256SUMS")).expect("the checksums are written")
}

#[test]
fn packages_run_in_debian_12_and_13() {
    const NAME: &str = "packages_run_in_debian_12_and_13";
    if let Some(obstacle) = obstacle() {
        return skipped(NAME, &obstacle);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (programs, packages) = (
        folder.path().join("programs"),
        folder.path().join("packages"),
    );
    copy_programs(&PROGRAMS, &programs);
    make_packages(&programs, &packages);
    let check = |suite: &str| {
        let network = Network::create();
        let shared = folder.path().join(suite);
        std::fs::create_dir(&shared).expect("the folder is created");
        let copy = |from: &Path, to: &str| {
            let mut copy = Command::new("cp");
            let _output = succeed(copy.arg("-R").arg(from).arg(shared.join(to)));
        };
        copy(&packages, "packages");
        let systems = repository().join("tests/peers/systems");
        copy(&systems.join("check-packages"), "check");
        let mut boot = Command::new(systems.join("boot"));
        let output = succeed(boot.arg(suite).arg(&shared).arg(network.name()));
        assert!(output.ends_with("good\n"), "{output}");
        let first_request = output
            .lines()
            .find(|line| line.starts_with("first request "));
        note(&format!("{suite}: {}", first_request.unwrap_or_default()));
    };
    std::thread::scope(|scope| {
        let suites = ["bookworm", "trixie"].map(|suite| scope.spawn(move || check(suite)));
        suites.map(|suite| suite.join().expect("the check has succeeded"))
    });
}

#[test]
fn equal_programs_make_equal_packages() {
    if let Some(obstacle) = obstacle() {
        return skipped("equal_programs_make_equal_packages", &obstacle);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let programs = folder.path().join("programs");
    // The smallest program in place of all: the time is that of compression.
    copy_programs(&["postern-console"], &programs);
    let small = programs.join("postern-console");
    for name in PROGRAMS.iter().filter(|name| **name != "postern-console") {
        let _bytes = std::fs::copy(&small, programs.join(name)).expect("the file is copied");
    }
    let outputs = ["first", "second"].map(|name| folder.path().join(name));
    outputs
        .iter()
        .for_each(|output| make_packages(&programs, output));
    let [first, second] = outputs.map(|output| checksums(&output));
    assert_eq!(first, second);
    for suffix in ["_amd64.deb", ".x86_64.rpm", ".tar.gz"] {
        assert!(first.contains(suffix), "{first}");
    }
}
