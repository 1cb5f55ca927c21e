use postern_core::testing::assert_commands_documented;

use super::*;
use crate::delivery::retry::RetryPolicy;
use crate::notification::Priority;

/// Collapses white space, because the manual and code wrap lines differently.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn text_about_attempts_agrees_with_policy_and_manual() {
    let [critical, high, normal, low] = Priority::ALL.map(RetryPolicy::of);
    let hours = |policy: &RetryPolicy| policy.window.as_secs() / 3600;
    let expected = format!(
        "at most {} attempts if it is CRITICAL, {} if HIGH, {} if NORMAL and {} if LOW, within {}, {}, {} and {} hours.",
        critical.attempts,
        high.attempts,
        normal.attempts,
        low.attempts,
        hours(&critical),
        hours(&high),
        hours(&normal),
        hours(&low),
    );
    let manual = words(include_str!("../../../docs/manual/notifications.md"));
    assert!(manual.contains(&expected), "{expected}");
}

#[test]
fn every_command_has_a_text_and_an_example() {
    assert_commands_documented::<Arguments>();
}
