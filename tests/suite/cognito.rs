//! The triggers and the CloudFormation template for pools at Amazon Cognito (`conf/cognito`).

use std::path::Path;
use std::process::Command;

use postern_harness::skipped;
use postern_harness::systems::succeed;

#[test]
fn cognito_triggers_handle_the_documented_events() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/cognito/triggers.test.mjs");
    let printed = succeed(
        Command::new("node")
            .args(["--test", "--test-reporter=tap"])
            .arg(tests),
    );
    assert!(printed.contains("# pass 4"), "{printed}");
}

#[test]
fn cognito_template_has_no_finding_of_the_linter() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let linter = root.join(".peers/cognito/python/bin/cfn-lint");
    if !linter.exists() {
        let test = "cognito_template_has_no_finding_of_the_linter";
        return skipped(test, "run tests/peers/cognito/install first");
    }
    succeed(Command::new(linter).arg(root.join("../conf/cognito/pools.yaml")));
}
