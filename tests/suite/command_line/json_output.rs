//! The output of `--json` of every command, compared with the table of `docs/manual/operate.md`.

use std::collections::BTreeSet;
use std::path::Path;

use postern_store::database::testing::sqlite;
use postern_tests::config_file::conf;
use postern_tests::mail_token::DELIVERY_REPORT;
use postern_tests::program::{Ended, Program};
use postern_tests::{Pools, Postern};
use serde_json::Value;

use super::{code_spans, run, table};
use crate::notify_cluster::{NotifyCluster, Replica};

/// The commands that these tests run.
const TESTED: [&str; 13] = [
    "postern token",
    "postern user list",
    "postern timeline",
    "postern-auth audit list",
    "postern-auth check",
    "postern-console check",
    "postern-notify check",
    "postern-notify dsn",
    "postern-notify show",
    "postern-proxy api-key create",
    "postern-proxy check",
    "postern-proxy diff",
    "postern-proxy explain",
];

/// A mail provider that accepts everything and sends nothing.
const MAIL: &str = "[[provider]]\nname = 'mail'\nchannel = 'email'\nkind = 'null'";
const ADA: &str = "ada@example.com";
const BOUNCE: &str =
    include_str!("../../../notify-upstream/src/receipts/dsn/samples/exchange-failed.eml");

/// Asserts the members of objects that a command has printed: all that are always present, and no
/// other than those of its row. Returns the objects.
fn assert_members(command: &str, objects: Vec<Value>) -> Vec<Value> {
    let rows = table("| command | prints | members |");
    let row = rows
        .iter()
        .find(|row| code_spans(row[0]).contains(&command));
    let row = row.unwrap_or_else(|| panic!("{command} has no row"));
    let (always, sometimes) = match row[2].split_once("if known") {
        Some((always, sometimes)) => (code_spans(always), code_spans(sometimes)),
        None => (code_spans(row[2]), Vec::new()),
    };
    assert!(!objects.is_empty(), "{command} prints something");
    for object in &objects {
        let members = object.as_object().expect("an object");
        for name in &always {
            assert!(
                members.contains_key(*name),
                "{command}: {name} is missing: {object}"
            );
        }
        let unknown: Vec<_> = members
            .keys()
            .filter(|name| !always.contains(&name.as_str()) && !sometimes.contains(&name.as_str()))
            .collect();
        let is_open = row[2].contains("and those of");
        assert!(
            is_open || unknown.is_empty(),
            "{command}: {unknown:?} in {object}"
        );
    }
    objects
}

/// Asserts the status of a command and the members of the objects that it has printed, one per line.
#[track_caller]
fn printed(command: &str, ended: &Ended, status: i32) -> Vec<Value> {
    assert_eq!(
        ended.status,
        Some(status),
        "{command}: {}{}",
        ended.stdout,
        ended.stderr
    );
    let objects = ended.stdout.lines().map(|line| {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{command}: {error}: {line}"))
    });
    assert_members(command, objects.collect())
}

/// Runs a command of notifications and returns the objects that it has printed.
async fn notify(cluster: &NotifyCluster, command: &str, arguments: &[&str]) -> Vec<Value> {
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let ended = cluster
        .tool(&[&words, arguments, &["--json"]].concat())
        .await;
    printed(command, &ended, 0)
}

#[test]
fn every_documented_command_is_tested() {
    let rows = table("| command | prints | members |");
    let documented: BTreeSet<&str> = rows.iter().flat_map(|row| code_spans(row[0])).collect();
    assert_eq!(documented, TESTED.into_iter().collect());
}

#[tokio::test]
async fn gateway_prints_documented_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let file = conf().join("proxy.toml").display().to_string();
    let mut program = Program::of_workspace("postern-proxy", folder).arg("check");
    for name in [
        "IDP_ACTOR_POOL_ID",
        "IDP_ACTOR_CLIENT_ID",
        "IDP_SERVICE_POOL_ID",
        "IDP_SERVICE_CLIENT_ID",
    ] {
        program = program.env(name, name);
    }
    let checked = program.arg(&file).arg("--json").run().await;
    let results = printed("postern-proxy check", &checked, 0);
    assert_eq!(results[0]["status"], "ok");
    let explain = [
        "explain",
        "GET",
        "/actors/42",
        "--token",
        "user:42",
        "--json",
        "--config",
        &file,
    ];
    let explained = run("postern-proxy", folder, &explain).await;
    let explained = printed("postern-proxy explain", &explained, 0);
    assert_eq!(explained[0]["decision"], "allow");
    let text = std::fs::read_to_string(&file).expect("the configuration");
    let changed = text.replace("path = \"/actors/{id}\"", "path = \"/actor/{id}\"");
    let changed = changed.split("[[test]]").next().unwrap_or_default();
    std::fs::write(folder.join("new.toml"), changed).expect("writes");
    let differs = ["diff", &file, "new.toml", "--json", "--fail-on", "any"];
    let differs = run("postern-proxy", folder, &differs).await;
    let changes = printed("postern-proxy diff", &differs, 1);
    assert!(
        changes.iter().any(|change| change["widened"] == false),
        "{changes:?}"
    );
    let create = ["api-key", "create", "--name", "partner", "--json"];
    let created = run("postern-proxy", folder, &create).await;
    let created = printed("postern-proxy api-key create", &created, 0);
    let (key, entry) = (&created[0]["key"], &created[0]["entry"]);
    assert!(
        key.as_str().is_some_and(|key| key.starts_with("pk_")),
        "a key"
    );
    assert!(
        entry
            .as_str()
            .is_some_and(|entry| entry.starts_with("[[key]]")),
        "{entry}"
    );
}

fn auth(folder: &Path, pools: &Pools, arguments: &[&str]) -> Program {
    let program = Program::of_workspace("postern-auth", folder);
    let variables = pools.variables().iter();
    let program = variables.fold(program, |program, (name, value)| program.env(name, value));
    let arguments = arguments.iter().chain(&["--json", "--config", "auth.toml"]);
    arguments.fold(program, |program, argument| program.arg(*argument))
}

#[tokio::test]
async fn authentication_prints_documented_json() {
    let (folder, pools) = (tempfile::tempdir().expect("a folder"), Pools::start().await);
    let folder = folder.path();
    let text = "database = \"sqlite://auth.db\"\n";
    std::fs::write(folder.join("auth.toml"), text).expect("writes");
    let checked = auth(folder, &pools, &["check"]).run().await;
    let results = printed("postern-auth check", &checked, 0);
    let database = results.iter().find(|result| result["check"] == "database");
    assert_eq!(database.expect("a check of the database")["status"], "ok");
    let listed = auth(folder, &pools, &["audit", "list", "--since", "1h"])
        .run()
        .await;
    assert_eq!(listed.status, Some(0), "{}", listed.stderr);
    let timeline = serde_json::from_str(&listed.stdout).expect("one object");
    let timeline = assert_members("postern-auth audit list", vec![timeline]);
    assert_eq!(timeline[0]["entries"], serde_json::json!([]));
}

#[tokio::test]
async fn console_prints_documented_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = conf().join("console.toml").display().to_string();
    let program = Program::of_workspace("postern-console", folder.path());
    let program = program.arg("check").arg(file).arg("--json");
    let names = [
        "GATEWAY_ADMIN_TOKEN",
        "AUTH_ADMIN_TOKEN",
        "NOTIFY_ADMIN_TOKEN",
    ];
    let secret = "an-admin-token-of-the-tests-only-for-consoles";
    let program = names
        .into_iter()
        .fold(program, |program, name| program.env(name, secret));
    let results = printed("postern-console check", &program.run().await, 0);
    assert_eq!(
        (results.len(), &results[0]["status"]),
        (1, &Value::from("ok"))
    );
}

#[tokio::test]
async fn standalone_prints_documented_json() {
    let postern = Postern::start().await;
    let data = postern.folder().display().to_string();
    let token = [
        "token",
        "--service",
        "notify",
        "--json",
        "--data-dir",
        &data,
    ];
    let token = run("postern", postern.folder(), &token).await;
    let token = printed("postern token", &token, 0);
    assert!(
        token[0]["token"]
            .as_str()
            .is_some_and(|token| token.starts_with("ey")),
        "a token"
    );
    postern.surface().register().await;
    let users = ["user", "list", "--json", "--data-dir", &data];
    let users = run("postern", postern.folder(), &users).await;
    printed("postern user list", &users, 0);
    let timeline = ["timeline", "--email", ADA, "--json", "--data-dir", &data];
    let timeline = run("postern", postern.folder(), &timeline).await;
    assert_eq!(timeline.status, Some(0), "{}", timeline.stderr);
    let timeline = serde_json::from_str(&timeline.stdout).expect("one object");
    assert_members("postern timeline", vec![timeline]);
    postern.stop().await;
}

/// Prints the results of the checks.
async fn settings_are_printed(cluster: &NotifyCluster) {
    let results = notify(cluster, "postern-notify check", &[]).await;
    assert!(
        results.iter().any(|result| result["check"] == "database"),
        "{results:?}"
    );
}

/// Stores a delivery report of a mail.
async fn report_is_printed(cluster: &NotifyCluster, replica: &Replica) {
    let id = cluster.post_mail(replica, ADA).await;
    cluster.settled(replica, &id, "SENT").await;
    let token = cluster.mail_token(DELIVERY_REPORT, &id, ADA);
    let report = BOUNCE.replace("{id}", &id).replace("{token}", &token);
    let ended = cluster.pipe(&["dsn", "--json"], &report).await;
    let stored = printed("postern-notify dsn", &ended, 0);
    let numbers = (&stored[0]["stored"], &stored[0]["discarded"]);
    assert_eq!(numbers, (&Value::from(1), &Value::from(false)));
}

#[tokio::test]
async fn notifications_print_documented_json() {
    let database = sqlite().await;
    let cluster = NotifyCluster::over(&database.url, MAIL).await;
    let replica = cluster.replica().await;
    settings_are_printed(&cluster).await;
    report_is_printed(&cluster, &replica).await;
    cluster.provider.respond_with(Some(422));
    let id = cluster.try_post(&replica.url, "a", "Ada", "NORMAL").await;
    let id = id.expect("accepted");
    cluster.settled(&replica, &id, "FAILED").await;
    let shown = notify(&cluster, "postern-notify show", &[&id]).await;
    let events: Vec<&Value> = shown.iter().map(|entry| &entry["event"]).collect();
    assert_eq!(events, ["QUEUED", "ATTEMPTED", "FAILED"]);
    assert_eq!(replica.running.stop("TERM").await.status, Some(0));
}
