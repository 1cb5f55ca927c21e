//! The output of `--json` of every command, compared with the table of `docs/manual/operate.md`.

use std::collections::BTreeSet;

use postern_harness::console::SECRETS;
use postern_harness::mail_token::DELIVERY_REPORT;
use postern_harness::paths::conf;
use postern_harness::process::{Ended, Program};
use postern_harness::{Pools, Standalone};
use postern_store::database::testing::sqlite;
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

/// Asserts the status of a command and the members of the objects that it has printed: all that are
/// always present, and no other than those of its row. Returns the objects.
#[track_caller]
fn printed(command: &str, ended: &Ended, status: i32) -> Vec<Value> {
    assert_eq!(ended.status, Some(status), "{command}: {ended:?}");
    let objects = serde_json::Deserializer::from_str(&ended.stdout).into_iter::<Value>();
    let objects: Result<Vec<Value>, _> = objects.collect();
    let objects = objects.unwrap_or_else(|error| panic!("{command}: {error}: {ended:?}"));
    let rows = table("| command | prints | members |");
    let mut found = rows.iter();
    let row = found.find(|row| code_spans(row[0]).contains(&command));
    let row = row.unwrap_or_else(|| panic!("{command} has no row"));
    let (always, sometimes) = match row[2].split_once("if known") {
        Some((always, sometimes)) => (code_spans(always), code_spans(sometimes)),
        None => (code_spans(row[2]), Vec::new()),
    };
    assert!(!objects.is_empty(), "{command} prints something");
    for object in &objects {
        let members = object.as_object().expect("an object");
        let missing = always.iter().find(|name| !members.contains_key(**name));
        assert_eq!(missing, None, "{command}: {object}");
        let mut names = members.keys().map(String::as_str);
        let unknown = names.find(|name| !always.contains(name) && !sometimes.contains(name));
        let is_known = unknown.is_none() || row[2].contains("and those of");
        assert!(is_known, "{command}: {unknown:?} in {object}");
    }
    objects
}

#[test]
fn every_documented_command_is_tested() {
    let rows = table("| command | prints | members |");
    let documented: BTreeSet<&str> = rows.iter().flat_map(|row| code_spans(row[0])).collect();
    assert_eq!(documented, TESTED.into_iter().collect());
}

#[tokio::test]
async fn gateway_and_console_print_documented_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let file = conf().join("proxy.toml").display().to_string();
    let identity = [
        "IDP_ACTOR_POOL_ID",
        "IDP_ACTOR_CLIENT_ID",
        "IDP_SERVICE_POOL_ID",
        "IDP_SERVICE_CLIENT_ID",
    ];
    let program = Program::of_workspace("postern-proxy", folder);
    let program = program.envs(identity.map(|name| (name, name)));
    let checked = program.args(["check", &file, "--json"]).run().await;
    let results = printed("postern-proxy check", &checked, 0);
    assert_eq!(results[0]["status"], "ok");
    let explain = format!("explain GET /actors/42 --token user:42 --json --config {file}");
    let explain: Vec<&str> = explain.split(' ').collect();
    let explained = run("postern-proxy", folder, &explain).await;
    let explained = printed("postern-proxy explain", &explained, 0);
    assert_eq!(explained[0]["decision"], "allow");
    let text = std::fs::read_to_string(&file).expect("the configuration");
    let changed = text.replace("path = \"/actors/{id}\"", "path = \"/actor/{id}\"");
    let untested = |line: &&str| !line.contains("{ request = ");
    let changed: Vec<&str> = changed.lines().filter(untested).collect();
    std::fs::write(folder.join("new.toml"), changed.join("\n")).expect("writes");
    let differs = ["diff", &file, "new.toml", "--json", "--fail-on", "any"];
    let differs = run("postern-proxy", folder, &differs).await;
    let changes = printed("postern-proxy diff", &differs, 1);
    let mut widened = changes.iter().map(|change| &change["widened"]);
    assert!(widened.any(|it| *it == false), "{changes:?}");
    let create = ["api-key", "create", "--name", "partner", "--json"];
    let created = run("postern-proxy", folder, &create).await;
    let created = printed("postern-proxy api-key create", &created, 0);
    for (member, beginning) in [("key", "pk_"), ("entry", "[[key]]")] {
        let text = created[0][member].as_str().expect("a text");
        assert!(text.starts_with(beginning), "{member}");
    }
    let file = conf().join("console.toml").display().to_string();
    let secret = "an-admin-token-of-the-tests-only-for-consoles";
    let program = Program::of_workspace("postern-console", folder);
    let program = program.envs(SECRETS.map(|name| (name, secret)));
    let checked = program.args(["check", &file, "--json"]).run().await;
    let results = printed("postern-console check", &checked, 0);
    let statuses: Vec<&Value> = results.iter().map(|result| &result["status"]).collect();
    assert_eq!(statuses, ["ok"]);
}

#[tokio::test]
async fn authentication_prints_documented_json() {
    let (folder, pools) = (tempfile::tempdir().expect("a folder"), Pools::start().await);
    let auth = Program::of_workspace("postern-auth", folder.path()).envs(pools.variables());
    let auth = auth.config("auth.toml", "database = \"sqlite://auth.db\"\n");
    let checked = auth.clone().args(["check", "--json"]).run().await;
    let results = printed("postern-auth check", &checked, 0);
    let database = results.iter().find(|result| result["check"] == "database");
    assert_eq!(database.expect("a check of the database")["status"], "ok");
    let list = ["audit", "list", "--since", "1h", "--json"];
    let listed = auth.args(list).run().await;
    let timeline = printed("postern-auth audit list", &listed, 0);
    assert_eq!(timeline[0]["entries"], serde_json::json!([]));
}

#[tokio::test]
async fn standalone_prints_documented_json() {
    let postern = Standalone::start().await;
    postern.surface().register().await;
    for (command, options) in [
        ("postern token", &["--service", "notify"][..]),
        ("postern user list", &[]),
        ("postern timeline", &["--email", ADA]),
    ] {
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let arguments = [&words, options, &["--json"]].concat();
        let ended = postern.command(&arguments).run().await;
        let objects = printed(command, &ended, 0);
        if let Some(token) = objects[0].get("token") {
            let is_token = token.as_str().is_some_and(|token| token.starts_with("ey"));
            assert!(is_token, "a token");
        }
    }
    postern.stop().await;
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
    let checked = cluster.tool(&["check", "--json"]).await;
    let results = printed("postern-notify check", &checked, 0);
    let mut checks = results.iter().map(|result| &result["check"]);
    assert!(checks.any(|check| check == "database"), "{results:?}");
    report_is_printed(&cluster, &replica).await;
    cluster.provider.respond_with(Some(422));
    let id = cluster.accept(&replica, "a", "NORMAL").await;
    cluster.settled(&replica, &id, "FAILED").await;
    let shown = cluster.tool(&["show", &id, "--json"]).await;
    let shown = printed("postern-notify show", &shown, 0);
    let events: Vec<&Value> = shown.iter().map(|entry| &entry["event"]).collect();
    assert_eq!(events, ["QUEUED", "ATTEMPTED", "FAILED"]);
    replica.stop().await;
}
