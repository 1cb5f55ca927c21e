//! Reports written by mail servers, and forgeries of them.

mod forms;

use proptest::prelude::*;

use super::*;
use crate::testing::mail_tokens as tokens;

const NOW: Timestamp = Timestamp(1_763_600_000_000);
const ID: &str = "0190a5d0-0000-7000-8000-000000000001";
const OTHER: &str = "0190a5d0-0000-7000-8000-000000000002";

const POSTFIX: &str = include_str!("samples/postfix-failed.eml");
const DELAYED: &str = include_str!("samples/postfix-delayed.eml");
const EXCHANGE: &str = include_str!("samples/exchange-failed.eml");
const EXIM: &str = include_str!("samples/exim-expired.eml");

/// Returns the delivery report token of a notification to `address`.
fn token(id: &str, address: &str) -> String {
    tokens().issue(
        TokenPurpose::DeliveryReport,
        NotificationId::parse(id).expect("an id"),
        &hash(address),
    )
}

/// Returns the verified reports of a message to Ada, without addresses known from the store.
fn read_text(mail: &str) -> Vec<ProviderReport> {
    read_with(&mail.replace("{token}", &token(ID, "ada@example.com")), &[])
}

fn read_with(mail: &str, known: &[AddressHash]) -> Vec<ProviderReport> {
    let report = read(mail.replace("{id}", ID).as_bytes(), NOW);
    report
        .map(|report| report.verified_reports(&tokens(), |_| known.to_vec()))
        .unwrap_or_default()
}

#[track_caller]
fn only(mail: &str) -> ProviderReport {
    let [report] = &read_text(mail)[..] else {
        panic!("one recipient: {:?}", read_text(mail))
    };
    assert_eq!(report.id, NotificationId::parse(ID), "{report:?}");
    report.clone()
}

#[test]
fn reports_of_mail_servers_are_parsed() {
    use ReceiptKind::{Bounced, Deferred, Failed};
    let delayed_at = Timestamp::parse("2025-11-20T00:51:05Z").expect("an instant");
    let unknown = Some("mailbox_unknown");
    let cases = [
        (POSTFIX, Bounced, unknown, NOW),
        (DELAYED, Deferred, None, delayed_at),
        (EXCHANGE, Bounced, unknown, NOW),
        (EXIM, Failed, Some("provider_busy"), NOW),
    ];
    for (mail, kind, code, at) in cases {
        for mail in [mail.to_owned(), mail.replace('\n', "\r\n")] {
            let report = only(&mail);
            let found = (report.kind, report.code.as_deref(), report.at);
            assert_eq!(found, (kind, code, at), "{report:?}");
            let dead = code.filter(|_| kind == Bounced).map(|_| "ada@example.com");
            assert_eq!(report.dead_address.as_deref(), dead, "{report:?}");
            let detail = report.detail.as_ref().expect("a detail");
            assert!(!detail.contains("ada@"), "{report:?}");
        }
    }
    let detail = "5.1.1 550 5.1.1 <<recipient>>: Recipient address rejected: User unknown in virtual mailbox table";
    assert_eq!(only(POSTFIX).detail.as_deref(), Some(detail));
}

#[test]
fn report_is_verified_by_envelope_id_or_return_path() {
    only(&POSTFIX.replace("Original-Envelope-Id: {token}\n", ""));
    only(&POSTFIX.replace("bounces+{token}@", "bounces@"));
    let piped = EXCHANGE.replace("To: <bounces+{token}@", "To: <bounces@");
    assert_ne!(piped, EXCHANGE);
    for header in ["Delivered-To", "X-Original-To", "Envelope-To"] {
        only(&format!(
            "{header}: <bounces+{{token}}@example.org>\n{piped}"
        ));
    }
}

#[test]
fn report_with_notification_id_only_is_rejected() {
    for mail in [POSTFIX, EXCHANGE, EXIM, DELAYED] {
        let believed = |token: &str| read_with(&mail.replace("{token}", token), &[]);
        let id = NotificationId::parse(ID).expect("an id");
        let click = tokens().issue(TokenPurpose::Unsubscribe, id, &hash("ada@example.com"));
        for (token, reason) in [
            (ID.to_owned(), "the notification id is not secret"),
            (token(ID, "eve@example.com"), "sent to another address"),
            (token(OTHER, "eve@example.com"), "another notification"),
            (click, "an unsubscribe token verifies no report"),
        ] {
            assert!(believed(&token).is_empty(), "{reason}");
        }
        assert_eq!(believed(&token(ID, "ada@example.com")).len(), 1);
    }
}

#[test]
fn forwarding_address_is_not_suppressed() {
    // The message went to Ada's alias, and the report names only the address that it was forwarded
    // to.
    let mail = POSTFIX.replace("{token}", &token(ID, "alias@example.com"));
    assert!(read_with(&mail, &[]).is_empty(), "an unknown address");
    let report = read_with(&mail, &[hash("alias@example.com")]).remove(0);
    let found = (report.kind, report.dead_address.as_deref());
    assert_eq!(found, (ReceiptKind::Bounced, None));
}

#[test]
fn recipients_of_a_report_are_bounded() {
    let many = "Final-Recipient: rfc822; bob@example.com\nAction: failed\nStatus: 5.1.1\n\n"
        .repeat(16_000);
    let boundary = "--4dB0xj6Lq1z3m.1763599802/mail.example.org\nContent-Description: Undelivered";
    let reports = read_text(&POSTFIX.replace(boundary, &format!("{many}{boundary}")));
    assert_eq!(reports.len(), MAX_RECIPIENTS);
}

#[test]
fn event_id_identifies_a_report() {
    let event = only(POSTFIX).event_id;
    let hop = POSTFIX.replace("Return-Path: <>", "Return-Path: <>\nX-Hop: 2");
    assert_eq!(event, only(&hop).event_id);
    assert_ne!(event, only(DELAYED).event_id);
    let twice = |id: &str| {
        let mail = EXCHANGE.replace("{token}", &token(id, "ada@example.com"));
        read_with(&mail, &[]).remove(0).event_id
    };
    assert_ne!(twice(ID), twice(OTHER), "the text names no notification");
}

#[test]
fn each_recipient_has_its_own_report() {
    let second = "Final-Recipient: rfc822; bob@example.com\nAction: relayed\nStatus: 2.0.0\n\n";
    let boundary = "--4dB0xj6Lq1z3m.1763599802/mail.example.org\nContent-Description: Undelivered";
    let reports = read_text(&POSTFIX.replace(boundary, &format!("{second}{boundary}")));
    let kinds = reports.iter();
    let kinds = kinds.map(|report| (report.kind, report.dead_address.is_some()));
    let expected = [(ReceiptKind::Bounced, true), (ReceiptKind::Sent, false)];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
    assert_ne!(reports[0].event_id, reports[1].event_id);
}

#[test]
fn only_a_type_is_cut_off_a_diagnostic() {
    let typed = "smtp; 451 4.7.1 Greylisting in action, please come back later";
    let report = only(&EXIM.replace(typed, "550 5.1.1 no such user; try another"));
    assert!(report.dead_address.is_some(), "{report:?}");
}

#[test]
fn future_time_is_clamped_to_now() {
    let report = only(&DELAYED.replace("20 Nov 2025 00:51:05", "20 Nov 2035 00:51:05"));
    assert_eq!(report.at, NOW);
}

#[test]
fn other_messages_contain_no_report() {
    let vacation = "From: ada@example.com\nTo: bounces@example.org\nSubject: Out of office\n\
                    In-Reply-To: <{id}@example.org>\nAuto-Submitted: auto-replied\n\nBack on Monday.\n";
    // A forwarded report concerns another sender's message.
    let forwarded = format!(
        "From: eve@example.net\nContent-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: message/rfc822\n\n{POSTFIX}\n--x--\n"
    );
    let plain = POSTFIX.replace("message/delivery-status", "text/plain");
    for mail in ["", "\n", "--", vacation, &forwarded, &plain] {
        assert!(read_text(mail).is_empty(), "{mail}");
    }
}

proptest! {
    #[test]
    fn arbitrary_input_does_not_panic(cut in 0..4000_usize, at in 0..4000_usize, noise in any::<[u8; 6]>()) {
        for mail in [POSTFIX, EXCHANGE, EXIM] {
            let mut bytes = mail.as_bytes()[..mail.len().min(cut)].to_vec();
            let at = at.min(bytes.len());
            bytes.splice(at..at, noise);
            let _ = read(&bytes, NOW);
        }
    }
}
