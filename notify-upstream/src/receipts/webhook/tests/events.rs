//! What each event and reason of a provider's list means, for the notification and for the address.

use serde_json::json;

use super::*;
use crate::address::hash;

const ADA: &str = "ada@example.com";

/// What is done with the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    None,
    Suppressed,
    Unsubscribed,
}

type Expected = Option<(ReceiptKind, Effect)>;

use Effect::{None as Kept, Suppressed, Unsubscribed};
use ReceiptKind::{Bounced, Deferred, Delivered, Failed, Sent};

#[track_caller]
fn check(
    report: impl Fn(&WebhookRequest<'_>, &Value) -> Option<ProviderReport>,
    event: &Value,
    expected: Expected,
) {
    let headers = HeaderMap::new();
    let request = WebhookRequest {
        headers: &headers,
        query: None,
        body: b"",
        source: None,
        now: NOW,
    };
    let found = report(&request, event).map(|report| {
        assert_eq!(report.id.map(|id| id.to_string()).as_deref(), Some(ID));
        let effect = match (&report.dead_address, report.objector) {
            (Some(_), None) => Suppressed,
            (None, Some(objector)) if objector == hash(ADA) => Unsubscribed,
            (None, None) => Kept,
            other => panic!("{other:?}"),
        };
        (report.kind, effect)
    });
    assert_eq!(found, expected, "{event}");
}

/// twilio.com/docs/sendgrid/for-developers/tracking-events/event
#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn events_of_sendgrid_are_understood() {
    for (members, expected) in [
        (json!({"event": "processed"}), Some((Sent, Kept))),
        (
            json!({"event": "deferred", "response": "400 try again later"}),
            Some((Deferred, Kept)),
        ),
        (
            json!({"event": "delivered", "response": "250 OK"}),
            Some((Delivered, Kept)),
        ),
        (
            json!({"event": "bounce", "type": "bounce", "status": "5.1.1", "reason": "550 5.1.1 unknown"}),
            Some((Bounced, Suppressed)),
        ),
        (
            json!({"event": "bounce", "type": "bounce", "status": "5.0.0", "reason": "550 5.1.1 unknown"}),
            Some((Bounced, Suppressed)),
        ),
        (
            json!({"event": "bounce", "type": "bounce", "status": "5.2.2", "reason": "552 5.2.2 mailbox full"}),
            Some((Failed, Kept)),
        ),
        (
            json!({"event": "bounce", "type": "bounce", "reason": "554 5.7.1 spam"}),
            Some((Bounced, Kept)),
        ),
        (
            json!({"event": "bounce", "type": "bounce"}),
            Some((Bounced, Kept)),
        ),
        (
            json!({"event": "bounce", "type": "blocked", "status": "5.1.1"}),
            Some((Failed, Kept)),
        ),
        (
            json!({"event": "bounce", "type": "blocked", "reason": "unable to get mx info"}),
            Some((Failed, Kept)),
        ),
        (
            json!({"event": "dropped", "reason": "Bounced Address"}),
            Some((Failed, Kept)),
        ),
        (
            json!({"event": "dropped", "reason": "Invalid"}),
            Some((Failed, Kept)),
        ),
        (
            json!({"event": "dropped", "reason": "Unsubscribed Address"}),
            Some((Failed, Unsubscribed)),
        ),
        (
            json!({"event": "dropped", "reason": "Spam Reporting Address"}),
            Some((Failed, Unsubscribed)),
        ),
        (
            json!({"event": "spamreport"}),
            Some((Delivered, Unsubscribed)),
        ),
        (
            json!({"event": "unsubscribe"}),
            Some((Delivered, Unsubscribed)),
        ),
        (
            json!({"event": "group_unsubscribe"}),
            Some((Delivered, Unsubscribed)),
        ),
        (json!({"event": "group_resubscribe"}), None),
        (json!({"event": "open"}), None),
        (json!({"event": "click"}), None),
    ] {
        let mut event =
            json!({"email": ADA, "sg_event_id": "e", "smtp-id": format!("<{ID}@example.org>")});
        event
            .as_object_mut()
            .expect("an object")
            .extend(members.as_object().expect("members").clone());
        check(sendgrid::report, &event, expected);
    }
}

/// documentation.mailgun.com, "Events" and "Tracking failures"
#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn events_of_mailgun_are_understood() {
    let failed = |severity: &str, reason: &str, code: u16, message: &str| {
        json!({"event": "failed", "severity": severity, "reason": reason,
               "delivery-status": {"code": code, "message": message}})
    };
    for (members, expected) in [
        (json!({"event": "accepted"}), Some((Sent, Kept))),
        (json!({"event": "delivered"}), Some((Delivered, Kept))),
        (json!({"event": "rejected"}), Some((Failed, Kept))),
        (
            failed("permanent", "bounce", 550, "5.1.1 unknown"),
            Some((Bounced, Suppressed)),
        ),
        (
            failed("permanent", "bounce", 550, "550 5.1.1 unknown"),
            Some((Bounced, Suppressed)),
        ),
        (
            failed("permanent", "bounce", 552, "5.2.2 mailbox full"),
            Some((Failed, Kept)),
        ),
        (
            failed("permanent", "bounce", 554, "5.7.1 refused as spam"),
            Some((Bounced, Kept)),
        ),
        (
            failed("permanent", "old", 498, "No MX for example.com"),
            Some((Failed, Kept)),
        ),
        (
            failed(
                "permanent",
                "suppress-bounce",
                605,
                "Not delivering to previously bounced address",
            ),
            Some((Bounced, Kept)),
        ),
        (
            failed("permanent", "suppress-complaint", 607, "Not delivering"),
            Some((Failed, Unsubscribed)),
        ),
        (
            failed("permanent", "suppress-unsubscribe", 606, "Not delivering"),
            Some((Failed, Unsubscribed)),
        ),
        (
            failed("temporary", "generic", 450, "4.2.0 later"),
            Some((Deferred, Kept)),
        ),
        (
            failed("temporary", "generic", 550, "5.1.1 unknown"),
            Some((Deferred, Kept)),
        ),
        (
            json!({"event": "complained"}),
            Some((Delivered, Unsubscribed)),
        ),
        (
            json!({"event": "unsubscribed"}),
            Some((Delivered, Unsubscribed)),
        ),
        (json!({"event": "opened"}), None),
        (json!({"event": "clicked"}), None),
        (json!({"event": "stored"}), None),
    ] {
        let mut event = json!({"id": "e", "recipient": ADA, "message": {"headers": {"message-id": format!("{ID}@example.org")}}});
        event
            .as_object_mut()
            .expect("an object")
            .extend(members.as_object().expect("members").clone());
        check(mailgun::report, &event, expected);
    }
}

/// docs.aws.amazon.com/ses, "Contents of event notifications"; feedback types: RFC 5965, RFC 6430
#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn events_of_ses_are_understood() {
    let bounce = |kind: &str, subtype: &str, status: &str, words: &str| {
        json!({"eventType": "Bounce", "bounce": {"bounceType": kind, "bounceSubType": subtype,
            "bouncedRecipients": [{"emailAddress": ADA, "action": "failed", "status": status, "diagnosticCode": words}]}})
    };
    let complaint = |members: Value| json!({"eventType": "Complaint", "complaint": members});
    for (members, expected) in [
        (json!({"eventType": "Send"}), Some((Sent, Kept))),
        (
            json!({"eventType": "DeliveryDelay"}),
            Some((Deferred, Kept)),
        ),
        (json!({"eventType": "Delivery"}), Some((Delivered, Kept))),
        (json!({"eventType": "Reject"}), Some((Failed, Kept))),
        (
            json!({"eventType": "Rendering Failure"}),
            Some((Failed, Kept)),
        ),
        (
            bounce(
                "Permanent",
                "General",
                "5.1.1",
                "smtp; 550 5.1.1 user unknown",
            ),
            Some((Bounced, Suppressed)),
        ),
        (
            bounce(
                "Permanent",
                "NoEmail",
                "5.1.1",
                "smtp; 553 5.1.1 no such user",
            ),
            Some((Bounced, Suppressed)),
        ),
        (
            bounce(
                "Permanent",
                "General",
                "5.2.2",
                "smtp; 554 5.2.2 mailbox full",
            ),
            Some((Failed, Kept)),
        ),
        (
            bounce("Permanent", "General", "5.7.1", "smtp; 550 5.7.1 refused"),
            Some((Bounced, Kept)),
        ),
        (
            bounce(
                "Permanent",
                "OnAccountSuppressionList",
                "5.1.1",
                "on the suppression list",
            ),
            Some((Bounced, Kept)),
        ),
        (
            bounce("Transient", "MailboxFull", "5.2.2", "smtp; 552 5.2.2 full"),
            Some((Failed, Kept)),
        ),
        (
            bounce("Transient", "General", "5.1.1", "smtp; 550 5.1.1"),
            Some((Failed, Kept)),
        ),
        (
            complaint(json!({"complaintFeedbackType": "abuse"})),
            Some((Delivered, Unsubscribed)),
        ),
        (complaint(json!({})), Some((Delivered, Unsubscribed))),
        (
            complaint(json!({"complaintFeedbackType": "not-spam"})),
            None,
        ),
        (
            complaint(json!({"complaintFeedbackType": "auth-failure"})),
            None,
        ),
        (
            complaint(json!({"complaintSubType": "OnAccountSuppressionList"})),
            Some((Failed, Unsubscribed)),
        ),
        (
            json!({"eventType": "Subscription", "subscription": {"newTopicPreferences": {"unsubscribeAll": true}}}),
            Some((Delivered, Unsubscribed)),
        ),
        (
            json!({"eventType": "Subscription", "subscription": {"newTopicPreferences": {"unsubscribeAll": false}}}),
            None,
        ),
        (json!({"eventType": "Open"}), None),
        (json!({"eventType": "Click"}), None),
    ] {
        let mut event = json!({"mail": {"destination": [ADA], "headers": [{"name": "Message-ID", "value": format!("<{ID}@example.org>")}]}});
        event
            .as_object_mut()
            .expect("an object")
            .extend(members.as_object().expect("members").clone());
        check(
            |request, event| sns::report(request, "m", event),
            &event,
            expected,
        );
    }
}
