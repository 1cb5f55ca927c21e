//! The triggers and the CloudFormation template for pools at Amazon Cognito (`conf/cognito`).

use std::process::Command;

use postern_harness::paths::{peer, repository};
use postern_harness::skipped;
use postern_harness::systems::succeed;

#[test]
fn cognito_triggers_handle_the_documented_events() {
    let mut node = Command::new("node");
    node.args(["--test", "--test-reporter=tap"]);
    let printed = succeed(node.arg(repository().join("tests/peers/cognito/triggers.test.mjs")));
    assert!(printed.contains("# pass 4"), "{printed}");
}

#[test]
fn cognito_template_has_no_finding_of_the_linter() {
    let linter = peer("cognito/python/bin/cfn-lint");
    if !linter.exists() {
        let test = "cognito_template_has_no_finding_of_the_linter";
        return skipped(test, "run tests/peers/cognito/install first");
    }
    succeed(Command::new(linter).arg(repository().join("conf/cognito/pools.yaml")));
}
