//! What each event and reason of a provider's list means, for the notification and for the address.

use serde_json::json;

use super::*;
use crate::address::hash;

const ADA: &str = "ada@example.com";

/// Checks the rows of a table: the members of an event in JSON, and the kind of the report with what
/// is done with the address, or `-` if the event is none of ours. `base` are the common members.
#[track_caller]
fn check(
    report: impl Fn(&WebhookRequest<'_>, &Value) -> Option<ProviderReport>,
    base: &Value,
    rows: &str,
) {
    for row in rows.lines().filter(|row| !row.trim().is_empty()) {
        let (members, expected) = row.rsplit_once(" | ").expect("two columns");
        let members: Value = serde_json::from_str(members).expect("JSON");
        let mut event = base.clone();
        let all = event.as_object_mut().expect("an object");
        all.extend(members.as_object().expect("members").clone());
        let (headers, body) = (HeaderMap::new(), event.to_string());
        let request = WebhookRequest {
            headers: &headers,
            query: None,
            body: body.as_bytes(),
            source: None,
            now: NOW,
        };
        let found = report(&request, &event).map(|report| {
            assert_eq!(report.id.map(|id| id.to_string()).as_deref(), Some(ID));
            let effect = match (&report.dead_address, report.objector) {
                (Some(_), None) => "suppressed",
                (None, Some(objector)) if objector == hash(ADA) => "unsubscribed",
                (None, None) => "kept",
                other => panic!("{other:?}"),
            };
            format!("{:?} {effect}", report.kind)
        });
        assert_eq!(found.as_deref().unwrap_or("-"), expected, "{event}");
    }
}

/// twilio.com/docs/sendgrid/for-developers/tracking-events/event
#[test]
fn events_of_sendgrid_are_understood() {
    let base = json!({"email": ADA, "sg_event_id": "e", "smtp-id": format!("<{ID}@example.org>")});
    let rows = r#"
        {"event": "processed"} | Sent kept
        {"event": "deferred", "response": "400 try again later"} | Deferred kept
        {"event": "delivered", "response": "250 OK"} | Delivered kept
        {"event": "bounce", "type": "bounce", "status": "5.1.1", "reason": "550 5.1.1 unknown"} | Bounced suppressed
        {"event": "bounce", "type": "bounce", "status": "5.0.0", "reason": "550 5.1.1 unknown"} | Bounced suppressed
        {"event": "bounce", "type": "bounce", "status": "5.2.2", "reason": "552 5.2.2 mailbox full"} | Failed kept
        {"event": "bounce", "type": "bounce", "reason": "554 5.7.1 spam"} | Bounced kept
        {"event": "bounce", "type": "bounce"} | Bounced kept
        {"event": "bounce", "type": "blocked", "status": "5.1.1"} | Failed kept
        {"event": "bounce", "type": "blocked", "reason": "unable to get mx info"} | Failed kept
        {"event": "dropped", "reason": "Bounced Address"} | Failed kept
        {"event": "dropped", "reason": "Invalid"} | Failed kept
        {"event": "dropped", "reason": "Unsubscribed Address"} | Failed unsubscribed
        {"event": "dropped", "reason": "Spam Reporting Address"} | Failed unsubscribed
        {"event": "spamreport"} | Delivered unsubscribed
        {"event": "unsubscribe"} | Delivered unsubscribed
        {"event": "group_unsubscribe"} | Delivered unsubscribed
        {"event": "group_resubscribe"} | -
        {"event": "open"} | -
        {"event": "click"} | -
    "#;
    check(sendgrid::report, &base, rows);
}

/// documentation.mailgun.com, "Events" and "Tracking failures"
#[test]
fn events_of_mailgun_are_understood() {
    let message = json!({"headers": {"message-id": format!("{ID}@example.org")}});
    let base = json!({"id": "e", "recipient": ADA, "message": message});
    let rows = r#"
        {"event": "failed", "severity": "permanent", "reason": "bounce", "delivery-status": {"code": 550, "message": "5.1.1 unknown"}} | Bounced suppressed
        {"event": "failed", "severity": "permanent", "reason": "bounce", "delivery-status": {"code": 550, "message": "550 5.1.1 unknown"}} | Bounced suppressed
        {"event": "failed", "severity": "permanent", "reason": "bounce", "delivery-status": {"code": 552, "message": "5.2.2 mailbox full"}} | Failed kept
        {"event": "failed", "severity": "permanent", "reason": "bounce", "delivery-status": {"code": 554, "message": "5.7.1 refused as spam"}} | Bounced kept
        {"event": "failed", "severity": "permanent", "reason": "old", "delivery-status": {"code": 498, "message": "No MX for example.com"}} | Failed kept
        {"event": "failed", "severity": "permanent", "reason": "suppress-bounce", "delivery-status": {"code": 605, "message": "Not delivering to previously bounced"}} | Bounced kept
        {"event": "failed", "severity": "permanent", "reason": "suppress-complaint", "delivery-status": {"code": 607, "message": "Not delivering"}} | Failed unsubscribed
        {"event": "failed", "severity": "permanent", "reason": "suppress-unsubscribe", "delivery-status": {"code": 606, "message": "Not delivering"}} | Failed unsubscribed
        {"event": "failed", "severity": "temporary", "reason": "generic", "delivery-status": {"code": 450, "message": "4.2.0 later"}} | Deferred kept
        {"event": "failed", "severity": "temporary", "reason": "generic", "delivery-status": {"code": 550, "message": "5.1.1 unknown"}} | Deferred kept
        {"event": "accepted"} | Sent kept
        {"event": "delivered"} | Delivered kept
        {"event": "rejected"} | Failed kept
        {"event": "complained"} | Delivered unsubscribed
        {"event": "unsubscribed"} | Delivered unsubscribed
        {"event": "opened"} | -
        {"event": "clicked"} | -
        {"event": "stored"} | -
    "#;
    check(mailgun::report, &base, rows);
}

/// docs.aws.amazon.com/ses, "Contents of event notifications"; feedback types: RFC 5965, RFC 6430
#[test]
fn events_of_ses_are_understood() {
    let header = json!({"name": "Message-ID", "value": format!("<{ID}@example.org>")});
    let base = json!({"mail": {"destination": [ADA], "headers": [header]}});
    let report = |request: &WebhookRequest<'_>, event: &Value| sns::report(request, "m", event);
    for row in [
        "Permanent, General, 5.1.1, smtp; 550 5.1.1 user unknown | Bounced suppressed",
        "Permanent, NoEmail, 5.1.1, smtp; 553 5.1.1 no such user | Bounced suppressed",
        "Permanent, General, 5.2.2, smtp; 554 5.2.2 mailbox full | Failed kept",
        "Permanent, General, 5.7.1, smtp; 550 5.7.1 refused | Bounced kept",
        "Permanent, OnAccountSuppressionList, 5.1.1, on the suppression list | Bounced kept",
        "Transient, MailboxFull, 5.2.2, smtp; 552 5.2.2 full | Failed kept",
        "Transient, General, 5.1.1, smtp; 550 5.1.1 | Failed kept",
    ] {
        let (bounce, expected) = row.split_once(" | ").expect("two columns");
        let [kind, subtype, status, words] = bounce.splitn(4, ", ").collect::<Vec<_>>()[..] else {
            panic!("{bounce}")
        };
        let recipient = json!({"emailAddress": ADA, "action": "failed", "status": status, "diagnosticCode": words});
        let bounce =
            json!({"bounceType": kind, "bounceSubType": subtype, "bouncedRecipients": [recipient]});
        let event = json!({"eventType": "Bounce", "bounce": bounce});
        check(report, &base, &format!("{event} | {expected}"));
    }
    let rows = r#"
        {"eventType": "Send"} | Sent kept
        {"eventType": "DeliveryDelay"} | Deferred kept
        {"eventType": "Delivery"} | Delivered kept
        {"eventType": "Reject"} | Failed kept
        {"eventType": "Rendering Failure"} | Failed kept
        {"eventType": "Complaint", "complaint": {"complaintFeedbackType": "abuse"}} | Delivered unsubscribed
        {"eventType": "Complaint", "complaint": {}} | Delivered unsubscribed
        {"eventType": "Complaint", "complaint": {"complaintFeedbackType": "not-spam"}} | -
        {"eventType": "Complaint", "complaint": {"complaintFeedbackType": "auth-failure"}} | -
        {"eventType": "Complaint", "complaint": {"complaintSubType": "OnAccountSuppressionList"}} | Failed unsubscribed
        {"eventType": "Subscription", "subscription": {"newTopicPreferences": {"unsubscribeAll": true}}} | Delivered unsubscribed
        {"eventType": "Subscription", "subscription": {"newTopicPreferences": {"unsubscribeAll": false}}} | -
        {"eventType": "Open"} | -
        {"eventType": "Click"} | -
    "#;
    check(report, &base, rows);
}

/// The types that the manual names; an objection requires the recipient.
#[test]
fn events_of_standard_webhooks_are_understood() {
    let data = json!({"notificationId": ID, "recipient": ADA});
    let rows = r#"
        {"type": "notification.sent"} | Sent kept
        {"type": "notification.deferred"} | Deferred kept
        {"type": "notification.delivered"} | Delivered kept
        {"type": "notification.failed"} | Failed kept
        {"type": "notification.bounced"} | Bounced kept
        {"type": "notification.complained"} | Delivered unsubscribed
        {"type": "notification.unsubscribed"} | Delivered unsubscribed
        {"type": "notification.opened"} | -
    "#;
    let report = |request: &WebhookRequest<'_>, _: &Value| standard::report(request, "m").ok();
    check(report, &json!({"data": data}), rows);
    let without_recipient = json!({"data": {"notificationId": ID}});
    let rows = r#"{"type": "notification.complained"} | -"#;
    check(report, &without_recipient, rows);
}
