//! Delivery reports piped by a mail server, and removal of addresses from the suppression list,
//! with the real program.

use postern_harness::mail_token::DELIVERY_REPORT;
use postern_store::database::testing::both;

use serde_json::{Value, json};

use crate::notify_cluster::{NotifyCluster, Replica};

/// A mail provider that accepts everything and sends nothing.
const MAIL: &str = "[[provider]]\nname = 'mail'\nchannel = 'email'\nkind = 'null'";
const NOTHING: &str = "no report of a notification: message discarded\n";
const ADA: &str = "ada@example.com";
const UNKNOWN: &str =
    include_str!("../../notify-upstream/src/receipts/dsn/samples/exchange-failed.eml");

/// Returns the only entry of the suppression lists.
async fn only_entry(cluster: &NotifyCluster, replica: &Replica) -> Value {
    let answer = cluster.read(replica, "suppression").await;
    let entries = answer["entries"].as_array().expect("entries");
    assert_eq!(entries.len(), 1, "{answer}");
    entries[0].clone()
}

/// Removes an entry of the suppression lists.
async fn remove(cluster: &NotifyCluster, replica: &Replica, entry: &Value) {
    let body = json!({ "id": entry["id"] });
    let removed = cluster.change(replica, "suppression/remove", &body).await;
    assert_eq!(removed["removed"], 1, "{removed}");
}

#[tokio::test]
async fn bounce_suppresses_its_address_until_removed() {
    for database in both().await {
        let mut cluster = NotifyCluster::over(&database.url, MAIL).await;
        cluster.has_admin_routes = true;
        let replica = cluster.replica().await;
        let id = cluster.post_mail(&replica, ADA).await;
        cluster.settled(&replica, &id, "SENT").await;
        let report = UNKNOWN.replace("{id}", &id);
        let forged = report.replace("{token}", &id);
        let forged = cluster.pipe(&["dsn"], &forged).await;
        assert_eq!(forged.stdout, NOTHING, "{}", forged.stderr);
        let report = report.replace("{token}", &cluster.mail_token(DELIVERY_REPORT, &id, ADA));
        for said in ["1 stored, 0 duplicate\n", "0 stored, 1 duplicate\n"] {
            let ended = cluster.pipe(&["dsn"], &report).await;
            ended.expect(0, 0);
            assert_eq!(ended.stdout, said);
        }
        cluster.settled(&replica, &id, "FAILED").await;
        let view = cluster.status(&replica, &id).await;
        assert_eq!(view["reason"], "BOUNCED", "{view}");
        let suppressed = Some("ADDRESS_SUPPRESSED");
        cluster
            .wait_for_mail_outcome(&replica, ADA, suppressed)
            .await;
        let entry = only_entry(&cluster, &replica).await;
        let found = ["list", "channel", "reason"].map(|name| &entry[name]);
        assert_eq!(found, ["suppressed", "email", "mailbox_unknown"]);
        remove(&cluster, &replica, &entry).await;
        cluster.wait_for_mail_outcome(&replica, ADA, None).await;
        // So is an address that has unsubscribed.
        let id = cluster.post_mail(&replica, ADA).await;
        cluster.unsubscribe(&replica, &id, ADA).await;
        let entry = only_entry(&cluster, &replica).await;
        let found = [&entry["list"], &entry["category"]];
        assert_eq!(found, ["unsubscribed", "welcome"]);
        remove(&cluster, &replica, &entry).await;
        cluster.wait_for_mail_outcome(&replica, ADA, None).await;
        replica.stop().await;
    }
}

#[tokio::test]
async fn complaint_by_mail_unsubscribes_from_its_category() {
    let [database, _] = both().await;
    let cluster = NotifyCluster::over(&database.url, MAIL).await;
    let replica = cluster.replica().await;
    let id = cluster.post_mail(&replica, ADA).await;
    cluster.settled(&replica, &id, "SENT").await;
    let token = cluster.mail_token(DELIVERY_REPORT, &id, ADA);
    // RFC 5965 section 4.1
    let complaint = format!(
        "From: <fbl@example.com>\nTo: <bounces@example.org>\nMIME-Version: 1.0\n\
         Content-Type: multipart/report; report-type=feedback-report; boundary=b\n\n\
         --b\nContent-Type: message/feedback-report\n\nFeedback-Type: abuse\nUser-Agent: FBL/1\nVersion: 1\n\
         Original-Mail-From: <bounces+{token}@example.org>\n\n\
         --b\nContent-Type: message/rfc822\n\nSubject: Welcome\n\nHello\n--b--\n"
    );
    let ended = cluster.pipe(&["dsn"], &complaint).await;
    assert_eq!(ended.stdout, "1 stored, 0 duplicate\n", "{}", ended.stderr);
    let unsubscribed = Some("RECIPIENT_UNSUBSCRIBED");
    cluster
        .wait_for_mail_outcome(&replica, ADA, unsubscribed)
        .await;
    replica.stop().await;
    other_mail_is_discarded(&cluster, &database.url).await;
}

/// Other mail is discarded, and a report that cannot be stored is deferred.
async fn other_mail_is_discarded(cluster: &NotifyCluster, database: &str) {
    let vacation = "From: ada@example.com\nSubject: Out of office\nAuto-Submitted: auto-replied\n\nBack on Monday.\n";
    for other in [vacation, "", &"no mail at all ".repeat(200_000)] {
        let ended = cluster.pipe(&["dsn"], other).await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        assert_eq!(ended.stdout, NOTHING);
    }
    let id = "0190a5d0-0000-7000-8000-000000000001";
    let report = UNKNOWN.replace("{token}", &cluster.mail_token(DELIVERY_REPORT, id, ADA));
    let nowhere = "postgres://nobody@127.0.0.1:1/nowhere";
    for (database, settings, reason) in [
        (nowhere, MAIL, "is not available"),
        (database, "no_such_key = 1", "no_such_key"),
    ] {
        let deferring = NotifyCluster::over(database, settings).await;
        let ended = deferring.pipe(&["dsn"], &report).await;
        let said = &ended.stderr;
        assert!(ended.status == Some(75) && said.contains(reason), "{said}");
    }
}
