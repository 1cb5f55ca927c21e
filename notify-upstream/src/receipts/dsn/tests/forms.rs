//! The forms of bounces and complaints that mail servers write, and nested messages.

use super::*;

/// The fields of a failure, with those of the message unless `message` is empty.
fn dsn(message: &str, fields: &str) -> String {
    format!(
        "From: <>\nTo: bounces+{{token}}@example.org\n\
         Content-Type: multipart/report; report-type=delivery-status; boundary=b\n\n--b\n\
         Content-Type: text/plain\n\nIt failed.\n\n--b\nContent-Type: message/delivery-status\n\n\
         {message}{fields}\n--b--\n"
    )
}

const FAILED: &str = "Final-Recipient: rfc822; ada@example.com\nAction: failed\n";

#[test]
fn all_fields_of_a_bounce_are_judged_together() {
    // The cases are those of sisimai's issues and of RFC 3463; the enhanced code counts before the
    // reply code, and only an unknown recipient is suppressed.
    for row in [
        // sisimai/p5-sisimai#312: Exim says 5.0.0, and the server more.
        "5.0.0 | smtp; 550 5.1.1 <ada@example.com>: User unknown | mailbox_unknown",
        "5.0.0 | smtp; 550-5.1.1 The account does\n 550 5.1.1 not exist | mailbox_unknown",
        "5.0.0 | smtp; 450 TEMPERROR: retry timeout exceeded | provider_busy",
        " | smtp; 550 5.1.1 User unknown | mailbox_unknown",
        "5.1.1 | smtp; 553 5.1.1 unknown | mailbox_unknown",
        "5.1.1 | smtp; 551 5.1.1 unknown | mailbox_unknown",
        "5.1.1 | X-Postfix; host mx said: 554 5.1.1 no such user | mailbox_unknown",
        "5.1.1 (bad destination mailbox address) |  | mailbox_unknown",
        "5.2.2 | smtp; 552 5.2.2 mailbox full | mailbox_full",
        // sisimai/p5-sisimai#189
        "5.2.2 | smtp; 554 5.2.2 mailbox full | mailbox_full",
        "5.7.1 | smtp; 550 5.7.1 looks like spam | message_refused_by_policy",
        "5.1.1 | smtp; 554 5.7.1 refused by policy | message_refused_by_policy",
        "4.4.7 | smtp; 450 4.2.0 greylisted | provider_busy",
    ] {
        let [status, diagnostic, code] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let status = format!("Status: {status}\nDiagnostic-Code: {diagnostic}\n");
        let fields = format!("{FAILED}{status}");
        let report = only(&dsn("Reporting-MTA: dns; x\n\n", &fields));
        let expected = match code {
            "mailbox_full" | "provider_busy" => ReceiptKind::Failed,
            _ => ReceiptKind::Bounced,
        };
        let found = (report.kind, report.code.as_deref());
        assert_eq!(found, (expected, Some(code)), "{status}");
        let dead = (code == "mailbox_unknown").then_some("ada@example.com");
        assert_eq!(report.dead_address.as_deref(), dead, "{status}");
    }
}

#[test]
fn report_is_read_in_each_of_its_forms() {
    let fields = format!("{FAILED}Status: 5.1.1\n");
    let action = fields.replace("failed", "Failed (permanently)");
    let ada = Some("ada@example.com");
    let upper = fields
        .to_uppercase()
        .replace("ADA@EXAMPLE.COM", "ada@example.com");
    for (message, fields) in [
        ("Reporting-MTA: dns; x\n", &fields),
        ("", &fields),
        ("Reporting-MTA: dns; x\n \n", &fields),
        ("Reporting-MTA: dns; x\n\t\n", &upper),
        ("Reporting-MTA: dns; x\n\n", &action),
        ("Reporting-MTA: dns; x\n\n", &fields.replace(": ", ":\n ")),
    ] {
        let report = only(&dsn(message, fields));
        let found = (report.kind, report.dead_address.as_deref());
        assert_eq!(found, (ReceiptKind::Bounced, ada), "{message:?} {fields:?}");
    }
    let two = format!("{fields}Original-Recipient: rfc822; bob@example.com\n{fields}");
    let reports = read_text(&dsn("Reporting-MTA: dns; x\n", &two));
    assert_eq!(reports.len(), 2, "{reports:?}");
    let forwarded = reports[1].dead_address.as_ref();
    assert_eq!(forwarded, None, "forwarded to a dead address");
}

const QMAIL: &str = "From: MAILER-DAEMON@mx.example.com\nTo: bounces+{token}@example.org\n\
    Subject: failure notice\n\nHi. This is the qmail-send program at mx.example.com.\n\
    I'm afraid I wasn't able to deliver your message to the following addresses.\n\
    This is a permanent error; I've given up. Sorry it didn't work out.\n\n\
    <ada@example.com>:\nSorry, no mailbox here by that name. (#5.1.1)\n\n\
    --- Below this line is a copy of the message.\n\nReturn-Path: <x>\n";
const EXIM_PLAIN: &str = "X-Failed-Recipients: ada@example.com\nTo: bounces+{token}@example.org\n\
    Subject: Mail delivery failed\n\nThis message was created automatically.\n\n\
    \x20 ada@example.com\n    host mx.example.com [192.0.2.1]\n\
    \x20   SMTP error from remote mail server after RCPT TO:<ada@example.com>:\n\
    \x20   550 5.1.1 <ada@example.com>: Recipient address rejected\n\n------ This is a copy\n";

#[test]
fn plain_bounces_of_qmail_and_exim_need_our_token() {
    for (mail, unknown) in [(QMAIL, "(#5.1.1)"), (EXIM_PLAIN, "550 5.1.1")] {
        let report = only(mail);
        let found = (report.kind, report.code.as_deref());
        assert_eq!(found, (ReceiptKind::Bounced, Some("mailbox_unknown")));
        assert_eq!(report.dead_address.as_deref(), Some("ada@example.com"));
        assert!(!report.detail.expect("a detail").contains("ada@"));
        assert!(read_with(&mail.replace("{token}", &token(ID, "eve@example.com")), &[]).is_empty());
        let vague = only(&mail.replace(unknown, ""));
        assert!(vague.dead_address.is_none(), "{vague:?}");
        assert_eq!(vague.kind, ReceiptKind::Failed, "{vague:?}");
        let full = unknown.replace("5.1.1", "5.2.2").replace("550", "552");
        let full = only(&mail.replace(unknown, &full));
        assert_eq!(full.code.as_deref(), Some("mailbox_full"));
    }
}

#[test]
fn complaint_of_the_recipient_is_an_objection() {
    let complaint = |kind: &str| {
        format!(
            "From: <fbl@example.net>\nTo: <abuse@example.org>\n\
             Content-Type: multipart/report; report-type=feedback-report; boundary=b\n\n--b\n\
             Content-Type: text/plain\n\nAn abuse report.\n\n--b\nContent-Type: message/feedback-report\n\n\
             Feedback-Type: {kind}\nVersion: 1\nUser-Agent: FBL/1\nOriginal-Mail-From: <bounces+{{token}}@example.org>\n\
             Arrival-Date: Thu, 20 Nov 2025 00:45:00 +0000\n\n--b\nContent-Type: message/rfc822\n\n\
             Return-Path: <bounces+{{token}}@example.org>\n\nHello\n--b--\n"
        )
    };
    for (kind, objects) in [
        ("abuse", true),
        ("Fraud", true),
        ("opt-out", true),
        ("other", true),
        ("not-spam", false),
        ("auth-failure", false),
        ("virus", false),
    ] {
        let mail = complaint(kind).replace("{token}", &token(ID, "ada@example.com"));
        let reports = read_with(&mail, &[hash("ada@example.com")]);
        let objectors: Vec<_> = reports.iter().map(|report| report.objector).collect();
        let is_ada = objectors == [Some(hash("ada@example.com"))];
        assert_eq!(is_ada, objects, "{kind}: {reports:?}");
        for report in &reports {
            let found = (report.kind, report.code.as_deref());
            assert_eq!(found, (ReceiptKind::Delivered, Some("complained")));
        }
        let foreign = read_with(&mail, &[hash("bob@example.com")]);
        assert!(foreign.is_empty(), "another address");
    }
}

#[test]
fn nested_messages_are_not_parsed() {
    let nested = "Content-Type: message/rfc822\n\n".repeat(40_000);
    let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &nested);
    let head = "From: <eve@example.net>\nTo: <bounces+x@example.org>\n";
    let multipart =
        |part: &str| format!("{head}Content-Type: multipart/report; boundary=b\n\n--b\n{part}");
    let deep: String = (0..9_000)
        .map(|n| format!("Content-Type: multipart/mixed; boundary={n}\n\n--{n}\n"))
        .collect();
    let encoded =
        format!("Content-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\n{encoded}");
    for mail in [
        format!("{head}{encoded}"),
        format!("{head}{nested}"),
        multipart(&encoded),
        multipart(&nested),
        multipart(&nested.replace("message/rfc822", "Message/Global")),
        format!("{head}{deep}"),
    ] {
        assert!(read(mail.as_bytes(), NOW).is_none_or(|report| report.recipients.is_empty()));
    }
}
