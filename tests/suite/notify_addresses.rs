//! Delivery reports piped by a mail server, and removal of addresses from the suppression list,
//! with the real program.

use postern_store::database::testing::both;
use postern_tests::mail_token::DELIVERY_REPORT;

use crate::notify_cluster::NotifyCluster;

/// A mail provider that accepts everything and sends nothing.
const MAIL: &str = "[[provider]]\nname = 'mail'\nchannel = 'email'\nkind = 'null'";
const NOTHING: &str = "no report of a notification: message discarded\n";
const ADA: &str = "ada@example.com";
const UNKNOWN: &str =
    include_str!("../../notify-upstream/src/receipts/dsn/samples/exchange-failed.eml");

/// Finds the suppressed address with each filter of the list, and removes it.
async fn list_and_remove_ada(cluster: &NotifyCluster) {
    let listed = cluster
        .tool(&["suppression", "list", "--address", " Ada@Example.com"])
        .await;
    let [at, list, channel, "-", reason, hash] =
        listed.stdout.split_whitespace().collect::<Vec<_>>()[..]
    else {
        panic!("{}{}", listed.stdout, listed.stderr)
    };
    assert_eq!(
        (list, channel, reason, hash.len()),
        ("suppressed", "email", "mailbox_unknown", 64)
    );
    for nothing in [
        &["--address", "bob@example.com"][..],
        &["--list", "unsubscribed"],
        &["--until", at],
    ] {
        let other = cluster
            .tool(&[&["suppression", "list"], nothing].concat())
            .await;
        assert_eq!(
            (other.status, other.stdout.as_str()),
            (Some(0), ""),
            "{nothing:?}: {}",
            other.stderr
        );
    }
    let other = cluster
        .tool(&[
            "suppression",
            "remove",
            "--list",
            "unsubscribed",
            "--hash",
            hash,
        ])
        .await;
    assert_eq!(other.stdout, "0 removed\n", "{}", other.stderr);
    let removed = cluster
        .tool(&[
            "suppression",
            "remove",
            "--list",
            "suppressed",
            "--address",
            ADA,
        ])
        .await;
    assert_eq!(removed.stdout, "1 removed\n", "{}", removed.stderr);
}

#[tokio::test]
async fn bounce_suppresses_its_address_until_removed() {
    for database in both().await {
        let cluster = NotifyCluster::over(&database.url, MAIL).await;
        let replica = cluster.replica().await;
        let id = cluster.post_mail(&replica, ADA).await;
        cluster.settled(&replica, &id, "SENT").await;
        let report = UNKNOWN.replace("{id}", &id);
        let forged = cluster
            .pipe(&["dsn"], &report.replace("{token}", &id))
            .await;
        assert_eq!(forged.stdout, NOTHING, "{}", forged.stderr);
        let report = report.replace("{token}", &cluster.mail_token(DELIVERY_REPORT, &id, ADA));
        for said in ["1 stored, 0 duplicate\n", "0 stored, 1 duplicate\n"] {
            let ended = cluster.pipe(&["dsn"], &report).await;
            assert_eq!(
                (ended.status, ended.stdout.as_str()),
                (Some(0), said),
                "{}",
                ended.stderr
            );
        }
        cluster.settled(&replica, &id, "FAILED").await;
        let view = cluster.status(&replica.url, &id).await;
        assert_eq!(view["reason"], "BOUNCED", "{view}");
        cluster
            .wait_for_mail_outcome(&replica, ADA, Some("ADDRESS_SUPPRESSED"))
            .await;

        list_and_remove_ada(&cluster).await;
        cluster.wait_for_mail_outcome(&replica, ADA, None).await;
        assert_eq!(replica.running.stop("TERM").await.status, Some(0));
    }
}

#[tokio::test]
async fn unsubscribed_address_can_be_removed_from_the_list() {
    for database in both().await {
        let cluster = NotifyCluster::over(&database.url, MAIL).await;
        let replica = cluster.replica().await;
        let id = cluster.post_mail(&replica, ADA).await;
        cluster.unsubscribe(&replica, &id, ADA).await;
        let listed = cluster
            .tool(&["suppression", "list", "--channel", "email"])
            .await;
        let [_, "unsubscribed", "email", "welcome", "unsubscribed", hash] =
            listed.stdout.split_whitespace().collect::<Vec<_>>()[..]
        else {
            panic!("{}{}", listed.stdout, listed.stderr)
        };
        for wrong in [
            &["--list", "unsubscribed"][..],
            &["--list", "blocked", "--hash", hash],
            &["--hash", hash],
            &["--list", "unsubscribed", "--hash", "abc"],
            &["--list", "unsubscribed", "--hash", hash, "--limit", "50001"],
            &[
                "--list",
                "unsubscribed",
                "--reason",
                "unsubscribed",
                "--channel",
                "fax",
            ],
            &["--list", "unsubscribed", "--since", "yesterday"],
        ] {
            let ended = cluster
                .tool(&[&["suppression", "remove"], wrong].concat())
                .await;
            assert_eq!(
                (ended.status, ended.stdout.as_str()),
                (Some(64), ""),
                "{wrong:?}: {}",
                ended.stderr
            );
        }
        let removed = cluster
            .tool(&[
                "suppression",
                "remove",
                "--list",
                "unsubscribed",
                "--hash",
                hash,
            ])
            .await;
        assert_eq!(removed.stdout, "1 removed\n", "{}", removed.stderr);
        assert_eq!(cluster.tool(&["suppression", "list"]).await.stdout, "");
        assert_eq!(replica.running.stop("TERM").await.status, Some(0));
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
    cluster
        .wait_for_mail_outcome(&replica, ADA, Some("RECIPIENT_UNSUBSCRIBED"))
        .await;
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
}

#[tokio::test]
async fn unstorable_report_is_deferred_and_other_mail_discarded() {
    let [database, _] = both().await;
    let cluster = NotifyCluster::over(&database.url, MAIL).await;
    let vacation = "From: ada@example.com\nSubject: Out of office\nAuto-Submitted: auto-replied\n\nBack on Monday.\n";
    for other in [vacation, "", &"no mail at all ".repeat(200_000)] {
        let ended = cluster.pipe(&["dsn"], other).await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        assert_eq!(ended.stdout, NOTHING);
    }
    let id = "0190a5d0-0000-7000-8000-000000000001";
    let report = UNKNOWN.replace("{token}", &cluster.mail_token(DELIVERY_REPORT, id, ADA));
    let away = NotifyCluster::over("postgres://nobody@127.0.0.1:1/nowhere", MAIL).await;
    let ended = away.pipe(&["dsn"], &report).await;
    assert!(
        ended.status == Some(75) && ended.stderr.contains("is not available"),
        "{}",
        ended.stderr
    );
    let wrong = NotifyCluster::over(&database.url, "no_such_key = 1").await;
    let ended = wrong.pipe(&["dsn"], &report).await;
    assert!(
        ended.status == Some(75) && ended.stderr.contains("no_such_key"),
        "{}",
        ended.stderr
    );
}
