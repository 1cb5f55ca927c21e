//! The command line tools of the notification upstream, with the real program.

use std::time::Duration;

use postern_store::database::testing::sqlite;
use postern_tests::config_file::conf;
use postern_tests::program::Program;

use crate::notify_cluster::NotifyCluster;

fn tool(arguments: &[&str]) -> (Program, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = Program::of_workspace("postern-notify", folder.path());
    (
        arguments
            .iter()
            .fold(program, |program, argument| program.arg(*argument)),
        folder,
    )
}

#[tokio::test]
async fn template_check_lists_every_mistake() {
    let shipped = conf().join("templates").display().to_string();
    let (check, _folder) = tool(&["templates", "check", "--folder", &shipped]);
    let ended = check.run().await;
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    for line in [
        "welcome email de",
        "welcome push en",
        "welcome sms en",
        "template(s) valid",
    ] {
        assert!(ended.stdout.contains(line), "{line} in {}", ended.stdout);
    }
    let (check, folder) = tool(&["templates", "check", "--folder", "bad"]);
    let bad = folder.path().join("bad/hello");
    std::fs::create_dir_all(&bad).expect("the folder can be written");
    for (name, text) in [
        ("template.toml", "version = 'one'\n"),
        ("sms.en.txt", "{{ name"),
        ("sms.de.txt", "{{ 'x'|no_such_filter }}"),
    ] {
        std::fs::write(bad.join(name), text).expect("the folder can be written");
    }
    let ended = check.run().await;
    assert_eq!(ended.status, Some(64), "{}", ended.stdout);
    for part in ["template.toml", "sms.en.txt", "sms.de.txt"] {
        assert!(ended.stderr.contains(part), "{part} in {}", ended.stderr);
    }
}

#[tokio::test]
async fn template_preview_shows_the_message() {
    let shipped = conf().join("templates").display().to_string();
    let preview = |arguments: &[&str]| {
        let all = [
            &[
                "templates",
                "preview",
                "welcome",
                "--folder",
                shipped.as_str(),
            ],
            arguments,
        ]
        .concat();
        tool(&all)
    };
    let (program, _folder) = preview(&["--variables", r#"{"name": "Ada <b>"}"#]);
    let ended = program.run().await;
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    assert!(
        ended
            .stdout
            .starts_with("version 1, language en\nSubject: "),
        "{}",
        ended.stdout
    );
    assert!(
        ended.stdout.contains("Ada <b>") && ended.stdout.contains("Ada &lt;b&gt;"),
        "{}",
        ended.stdout
    );
    let (program, _folder) = preview(&[
        "--channel",
        "sms",
        "--locale",
        "de-AT",
        "--variables",
        r#"{"name": "Ada"}"#,
    ]);
    let ended = program.run().await;
    assert!(
        ended.stdout.starts_with("version 1, language de\n"),
        "{}{}",
        ended.stdout,
        ended.stderr
    );
    for (arguments, lines, word) in [
        (&["--variables", "{}"][..], 1, "missing variables: name"),
        (&["--channel", "fax"], 3, "--channel"),
        (&["--variables", "[]"], 3, "--variables"),
    ] {
        let (program, _folder) = preview(arguments);
        let ended = program.run().await;
        assert!(ended.expect(64, lines)[0].contains(word), "{word}");
    }
}

/// Lists and shows notifications that failed.
async fn failed_are_looked_up(cluster: &NotifyCluster, ids: &[String]) {
    let listed = cluster
        .tool(&["list", "--status", "FAILED", "--json"])
        .await;
    let count = listed.stdout.lines().count();
    assert_eq!(count, ids.len(), "{}", listed.stderr);
    let shown = cluster.tool(&["show", &ids[0]]).await;
    assert!(shown.stdout.contains(" FAILED "), "{}", shown.stdout);
}

/// Drops the two dead letters that are left, which needs a confirmation.
async fn two_are_dropped(cluster: &NotifyCluster) {
    let unconfirmed = cluster.tool(&["dead", "drop", "--all"]).await;
    assert!(unconfirmed.expect(64, 1)[0].contains("--yes"));
    let listed = cluster.tool(&["dead", "drop", "--all", "--dry-run"]).await;
    assert!(
        listed.stdout.ends_with("2 would be dropped\n"),
        "{}",
        listed.stdout
    );
    let dropped = cluster
        .tool(&["dead", "drop", "--yes", "--until", "2020-01-01T00:00:00Z"])
        .await;
    assert_eq!(dropped.stdout, "0 dropped\n", "{}", dropped.stderr);
    let dropped = cluster.tool(&["dead", "drop", "--all", "--yes"]).await;
    assert_eq!(dropped.stdout, "2 dropped\n", "{}", dropped.stderr);
}

#[tokio::test]
async fn dead_letters_are_listed_replayed_and_dropped() {
    let database = sqlite().await;
    let cluster = NotifyCluster::over(&database.url, "").await;
    let replica = cluster.replica().await;
    cluster.provider.respond_with(Some(422));
    let mut ids = Vec::new();
    for key in ["a", "b", "c"] {
        let id = cluster
            .try_post(&replica.url, key, "Ada", "NORMAL")
            .await
            .expect("accepted");
        cluster.settled(&replica, &id, "FAILED").await;
        ids.push(id);
    }
    let listed = cluster.tool(&["dead", "list"]).await;
    assert_eq!(listed.status, Some(0), "{}", listed.stderr);
    let lines: Vec<&str> = listed.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for (line, id) in lines.iter().zip(&ids) {
        assert!(
            line.starts_with(id.as_str()) && line.contains(" sms NORMAL 1 "),
            "{line}"
        );
    }
    let mut words = lines[0].split(' ').skip(5);
    let code = words.next().expect("a code").to_owned();
    assert_eq!(words.next(), Some("phone"), "{lines:?}");
    failed_are_looked_up(&cluster, &ids).await;
    let other = cluster
        .tool(&["dead", "list", "--code", "no_such_code"])
        .await;
    assert_eq!((other.status, other.stdout.as_str()), (Some(0), ""));
    cluster.provider.respond_with(None);
    let replayed = cluster
        .tool(&["dead", "replay", "--id", &ids[1], "--code", &code])
        .await;
    assert_eq!(replayed.stdout, "1 queued again\n", "{}", replayed.stderr);
    cluster.settled(&replica, &ids[1], "SENT").await;
    let sent = cluster
        .provider
        .until(Duration::from_secs(60), |calls| calls.len() == 4)
        .await;
    assert_eq!(sent[3].id, ids[1], "under the same id as before");
    for everything in [
        &["dead", "drop"][..],
        &["dead", "replay"],
        &["dead", "drop", "--limit", "10"],
    ] {
        let refused = cluster.tool(everything).await;
        assert!(refused.expect(64, 1)[0].contains("--all"), "{everything:?}");
    }
    two_are_dropped(&cluster).await;
    assert_eq!(cluster.tool(&["dead", "list"]).await.stdout, "");
    assert_eq!(
        cluster.status(&replica.url, &ids[0]).await["status"],
        "FAILED",
        "its history stays"
    );
    let wrong = cluster
        .tool(&["dead", "replay", "--since", "yesterday"])
        .await;
    assert!(wrong.expect(64, 3)[0].contains("--since"));
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
}
