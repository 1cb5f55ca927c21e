//! Reports as mail servers write them, and what passes for one.

use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp(1_763_600_000_000);
const ID: &str = "0190a5d0-0000-7000-8000-000000000001";

const POSTFIX: &str = include_str!("samples/postfix-failed.eml");
const DELAYED: &str = include_str!("samples/postfix-delayed.eml");
const EXCHANGE: &str = include_str!("samples/exchange-failed.eml");
const EXIM: &str = include_str!("samples/exim-expired.eml");

fn read_text(mail: &str) -> Vec<Report> {
    read(mail.replace("{id}", ID).as_bytes(), &Codes::shipped(), NOW)
}

#[track_caller]
fn only(mail: &str) -> Report {
    let [report] = &read_text(mail)[..] else { panic!("one recipient: {:?}", read_text(mail)) };
    report.clone()
}

fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).expect("an instant")
}

#[test]
fn what_mail_servers_write_is_understood() {
    let cases = [
        (POSTFIX, ReceiptKind::Bounced, Some("mailbox_unknown"), true, NOW),
        (DELAYED, ReceiptKind::Deferred, None, false, at("2025-11-20T00:51:05Z")),
        (EXCHANGE, ReceiptKind::Bounced, Some("mailbox_unknown"), true, NOW),
        (EXIM, ReceiptKind::Failed, Some("provider_busy"), false, NOW),
    ];
    for (mail, kind, code, is_dead, at) in cases {
        for mail in [mail.to_owned(), mail.replace('\n', "\r\n")] {
            let report = only(&mail);
            assert_eq!((report.kind, report.code.as_deref(), report.at), (kind, code, at), "{report:?}");
            assert_eq!(report.id, NotificationId::parse(ID), "{report:?}");
            let dead = is_dead.then_some("ada@example.com");
            assert_eq!(report.dead_address.as_deref(), dead, "{report:?}");
            assert!(!report.detail.as_ref().expect("words").contains("ada@"), "{report:?}");
        }
    }
    assert_eq!(
        only(POSTFIX).detail.as_deref(),
        Some(
            "5.1.1 550 5.1.1 <<recipient>>: Recipient address rejected: User unknown in virtual mailbox table"
        )
    );
}

#[test]
fn the_notification_is_told_by_the_envelope_id_or_by_the_mail_that_is_returned() {
    let without_envelope = POSTFIX.replace("Original-Envelope-Id: {id}\n", "");
    assert_eq!(only(&without_envelope).id, NotificationId::parse(ID));
    let foreign = without_envelope.replace("Message-ID: <{id}@", "Message-ID: <someone-elses@");
    assert_eq!(only(&foreign).id, None, "a mail of ours has our id");
    // What the mail itself says it answers is no proof: a vacation notice says so, too.
    let answered = EXCHANGE.replace("Message-ID: <{id}@example.org>", "Message-ID: <other@example.org>");
    assert_eq!(only(&answered).id, None);
}

#[test]
fn a_report_that_is_read_twice_is_one_event_and_two_reports_are_two() {
    assert_eq!(
        only(POSTFIX).event_id,
        only(&POSTFIX.replace("Return-Path: <>", "Return-Path: <>\nX-Hop: 2")).event_id
    );
    assert_ne!(only(POSTFIX).event_id, only(DELAYED).event_id);
    let twice =
        |id: &str| read(EXCHANGE.replace("{id}", id).as_bytes(), &Codes::shipped(), NOW)[0].event_id.clone();
    assert_ne!(twice(ID), twice("0190a5d0-0000-7000-8000-000000000002"), "its words name no notification");
}

#[test]
fn each_recipient_has_an_entry_of_its_own() {
    let second = "Final-Recipient: rfc822; bob@example.com\nAction: relayed\nStatus: 2.0.0\n\n";
    let boundary = "--4dB0xj6Lq1z3m.1763599802/mail.example.org\nContent-Description: Undelivered";
    let reports = read_text(&POSTFIX.replace(boundary, &format!("{second}{boundary}")));
    let kinds: Vec<_> = reports.iter().map(|report| (report.kind, report.dead_address.is_some())).collect();
    assert_eq!(kinds, [(ReceiptKind::Bounced, true), (ReceiptKind::Sent, false)]);
    assert_ne!(reports[0].event_id, reports[1].event_id);
}

#[test]
fn an_address_is_dead_only_where_the_mailbox_is_unknown() {
    for (status, words, kind, is_dead) in [
        ("5.2.2", "552 5.2.2 mailbox full", ReceiptKind::Bounced, false),
        ("5.7.1", "550 5.7.1 looks like spam", ReceiptKind::Bounced, false),
        ("5.4.4", "", ReceiptKind::Bounced, false),
        ("5.1.1", "", ReceiptKind::Bounced, true),
        ("4.2.2", "452 4.2.2 mailbox full", ReceiptKind::Failed, false),
    ] {
        let mail = EXIM.replace("Status: 4.4.7", &format!("Status: {status}"));
        let mail = mail.replace("451 4.7.1 Greylisting in action, please come back later", words);
        let report = only(&mail);
        assert_eq!(
            (report.kind, report.dead_address.is_some()),
            (kind, is_dead),
            "{status} {words}: {report:?}"
        );
    }
}

#[test]
fn an_instant_to_come_is_now() {
    let report = only(&DELAYED.replace("20 Nov 2025 00:51:05", "20 Nov 2035 00:51:05"));
    assert_eq!(report.at, NOW);
}

#[test]
fn what_is_no_report_reports_nothing() {
    let vacation = "From: ada@example.com\nTo: bounces@example.org\nSubject: Out of office\n\
                    In-Reply-To: <{id}@example.org>\nAuto-Submitted: auto-replied\n\nBack on Monday.\n";
    // A report that somebody forwards speaks of somebody's mail, not of ours.
    let forwarded = format!(
        "From: eve@example.net\nContent-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: message/rfc822\n\n{POSTFIX}\n--x--\n"
    );
    for mail in
        ["", "\n", "--", vacation, &forwarded, &POSTFIX.replace("message/delivery-status", "text/plain")]
    {
        assert!(read_text(mail).is_empty(), "{mail}");
    }
}

proptest! {
    #[test]
    fn no_mail_breaks_it(cut in 0..4000_usize, at in 0..4000_usize, noise in any::<[u8; 6]>()) {
        for mail in [POSTFIX, EXCHANGE, EXIM] {
            let mut bytes = mail.as_bytes()[..mail.len().min(cut)].to_vec();
            let at = at.min(bytes.len());
            bytes.splice(at..at, noise);
            let _ = read(&bytes, &Codes::shipped(), NOW);
        }
    }
}
