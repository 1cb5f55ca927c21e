//! The files that deploy it, as far as linters can tell.

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
