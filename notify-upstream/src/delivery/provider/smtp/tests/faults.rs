//! Tests of faults at each command of a session.

use super::*;

/// The faults of a session: the script of the server, and the class, code and scope of the refusal.
const FAULTS: [(Script, FailureClass, &str, FaultScope); 19] = {
    use FailureClass::{Ambiguous, Configuration, Permanent, Throttled, Transient};
    use FaultScope::{Provider, Recipient};
    use Script::{Drop, Say};
    [
        (
            Say("RCPT", "550 5.1.1 no such user"),
            Permanent,
            "mailbox_unknown",
            Recipient,
        ),
        (
            Say("RCPT", "450 4.2.1 slow down"),
            Throttled,
            "provider_throttles",
            Recipient,
        ),
        (
            Say("RCPT", "421 4.7.0 too many of these"),
            Throttled,
            "provider_throttles",
            Recipient,
        ),
        (
            Say("RCPT", "452 4.2.2 over quota"),
            Transient,
            "mailbox_full",
            Recipient,
        ),
        (
            Say("MAIL", "452 4.3.1 system full"),
            Transient,
            "provider_busy",
            Provider,
        ),
        (
            Say("MAIL", "452 no room"),
            Transient,
            "provider_busy",
            Provider,
        ),
        (
            Say("MAIL", "451 4.3.0 later"),
            Transient,
            "provider_busy",
            Provider,
        ),
        (
            Say("MAIL", "550 5.7.1 not your domain"),
            Configuration,
            "sender_refused",
            Provider,
        ),
        (
            Say("MAIL", "553 who?"),
            Configuration,
            "sender_refused",
            Provider,
        ),
        (
            Say("DATA", "554 no"),
            Permanent,
            "provider_refused",
            Recipient,
        ),
        (
            Say("DATA", "451 later"),
            Transient,
            "provider_busy",
            Recipient,
        ),
        (
            Say("DOT", "552 5.2.2 full"),
            Transient,
            "mailbox_full",
            Recipient,
        ),
        (
            Say("DOT", "550 5.7.1 spam from ada@example.com"),
            Permanent,
            "message_refused_by_policy",
            Recipient,
        ),
        (
            Say("EHLO", "421 busy"),
            Throttled,
            "provider_throttles",
            Provider,
        ),
        (
            Say("EHLO", "554 5.7.1 go away"),
            Configuration,
            "provider_turns_us_away",
            Provider,
        ),
        (Drop("MAIL"), Transient, "provider_unreachable", Provider),
        (Drop("RCPT"), Transient, "provider_unreachable", Recipient),
        (Drop("DATA"), Transient, "provider_unreachable", Recipient),
        (Drop("DOT"), Ambiguous, "connection_broken", Recipient),
    ]
};

#[tokio::test]
async fn every_fault_is_classified_and_connection_state_is_known() {
    for (script, class, code, scope) in FAULTS {
        let server = server(script).await;
        let smtp = smtp(server.port);
        let refusal = send(&smtp, &content("x")).await.expect_err("refused");
        assert_eq!(
            (refusal.class, refusal.code.as_str(), refusal.scope),
            (class, code, scope),
            "{script:?}"
        );
        let detail = refusal.detail.unwrap_or_default();
        assert!(!detail.contains("ada@"), "{script:?}");
        if let Script::Say(_, words) = script {
            let words = words.replace("ada@example.com", "<recipient>");
            assert_eq!(detail, words, "the response of the server is kept");
        }
        if matches!(script, Script::Drop(_)) {
            assert!(smtp.idle.pop().is_none(), "{script:?}");
        }
    }
}
