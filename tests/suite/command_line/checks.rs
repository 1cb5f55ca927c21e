//! `check`, without the environment of the process.

use std::path::Path;

use postern_harness::paths::conf;
use postern_harness::process::Ended;
use serde_json::Value;
use tempfile::TempDir;

use super::run;

fn write(folder: &Path, name: &str, text: &str) {
    let file = folder.join(name);
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("the folder can be written");
    std::fs::write(file, text).expect("the folder can be written");
}

/// Runs `check --json` over `test.toml` and returns its results.
async fn check(program: &str, folder: &Path, options: &[&str]) -> (Ended, Vec<Value>) {
    let arguments = [&["check", "test.toml", "--json"], options].concat();
    let ended = run(program, folder, &arguments).await;
    let results = ended.stdout.lines();
    let results = results.map(|line| serde_json::from_str(line).expect("JSON"));
    let results = results.collect();
    (ended, results)
}

/// Returns the result of a check.
fn result<'r>(results: &'r [Value], subject: &str) -> &'r Value {
    let found = results.iter().find(|result| result["check"] == subject);
    found.unwrap_or_else(|| panic!("{subject} is missing in {results:?}"))
}

const GATEWAY: &str = r#"
[[listen]]
address = "127.0.0.1:0"
[upstream.one]
addresses = ["127.0.0.1:1"]
[upstream.spare]
addresses = ["127.0.0.1:2"]
[[route]]
name = "protected"
path = "/v1/*"
methods = ["GET"]
upstream = "one"
policy = { users = "any" }
[[route]]
name = "open"
path = "/v1/news"
methods = ["GET"]
upstream = "one"
policy = "public"
[[test]]
request = "GET /v1/things"
token = "user"
decision = "allow"
[[identity.issuer]]
kind = "user"
issuer = "https://login.example"
clients = ["web"]
"#;
const FCM: &str = "[templates]\nfolder = \"bad\"\n[[provider]]\nname = \"push\"\nchannel = \"push\"\n\
    kind = \"fcm\"\naccount_file = \"key.json\"\n";
const UNIDENTIFIED: &str =
    "13: route.0.policy: nothing that is configured identifies such a caller";

/// Returns faulty configurations, and the beginnings of their mistakes.
fn faulty() -> [(&'static str, String, &'static [&'static str]); 9] {
    let tls = "[listen.tls]\ncertificate = \"no.pem\"\nkey = \"no.key\"\n[upstream.one]";
    let (without_issuer, _) = GATEWAY
        .split_once("[[identity.issuer]]")
        .expect("an issuer");
    [
        (
            "postern-notify",
            FCM.to_owned(),
            &["7: provider.0.account_file: key.json is not the JSON file"],
        ),
        (
            "postern-notify",
            "[templates]\nfolder = \"bad\"\n".to_owned(),
            &["2: templates.folder: bad/hello/sms.en.txt:1: "],
        ),
        (
            "postern-notify",
            "[templates]\nfolder = \"none\"\n[log]\nlevel = \"info\"\n".to_owned(),
            &["4: log.level: is not a known field"],
        ),
        (
            "postern-notify",
            "[templates]\nfolder = \"none\"\n".to_owned(),
            &["2: templates.folder: none: there is no such folder"],
        ),
        (
            "postern-auth",
            "cache = \"memory:\"\n[log]\nfilter = 1\n[abuse]\nx = 1\n".to_owned(),
            &["3: log.filter: ", "5: abuse.x: "],
        ),
        (
            "postern-console",
            "[log]\nformat = \"xml\"\n".to_owned(),
            &["2: log.format: "],
        ),
        (
            "postern-proxy",
            GATEWAY.replace("[upstream.one]", tls),
            &[
                "5: listen.0.tls.certificate: no.pem: ",
                "6: listen.0.tls.key: no.key: ",
            ],
        ),
        (
            "postern-proxy",
            GATEWAY.replace("\"allow\"", "\"not_found\""),
            &["20: test.0: test \"GET /v1/things\": is decided allow, not not_found"],
        ),
        ("postern-proxy", without_issuer.to_owned(), &[UNIDENTIFIED]),
    ]
}

/// A folder with a template and a key file that are wrong.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "key.json", "{}");
    write(folder.path(), "bad/hello/template.toml", "version = 1\n");
    write(folder.path(), "bad/hello/sms.en.txt", "{{ name");
    folder
}

/// Every mistake is reported with its file and line, as text and as JSON.
#[tokio::test]
async fn check_names_file_line_and_key_of_each_mistake() {
    for (program, text, mistakes) in faulty() {
        let folder = folder();
        let folder = folder.path();
        write(folder, "test.toml", &text);
        let offline: &[&str] = match program {
            "postern-auth" | "postern-notify" => &["--offline"],
            _ => &[],
        };
        let ended = run(
            program,
            folder,
            &[&["check", "test.toml"], offline].concat(),
        )
        .await;
        assert_eq!(ended.status, Some(64), "{text}{}", ended.stderr);
        let line = |mistake: &&str| {
            let beginning = format!("test.toml:{mistake}");
            let line = ended
                .stderr
                .lines()
                .find(|line| line.starts_with(&beginning));
            line.unwrap_or_else(|| panic!("no {beginning}: {}", ended.stderr))
        };
        let lines: Vec<&str> = mistakes.iter().map(line).collect();
        if program == "postern-console" {
            continue;
        }
        ended.expect(64, mistakes.len());
        let (json, results) = check(program, folder, offline).await;
        assert_eq!(
            (json.status, results.len()),
            (Some(64), lines.len()),
            "{results:?}"
        );
        for (result, line) in results.iter().zip(lines) {
            let found = ["check", "status", "detail"].map(|name| &result[name]);
            assert_eq!(found, ["configuration", "fault", line]);
        }
    }
}

#[tokio::test]
async fn notify_check_needs_neither_variables_nor_database() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let templates = conf().join("templates").display().to_string();
    let templates = format!("[templates]\nfolder = \"{templates}\"\n");
    let provider = "[[provider]]\nname = \"mail\"\nchannel = \"email\"\n";
    let text = format!(
        "database = \"sqlite://no/such/folder/n.db\"\n{templates}{provider}kind = \"null\"\n"
    );
    write(folder, "test.toml", &text);
    let (ended, results) = check("postern-notify", folder, &["--offline"]).await;
    assert_eq!(ended.status, Some(0), "{results:?}");
    let detail = &result(&results, "configuration")["detail"];
    assert_eq!(detail, "test.toml: good: 1 providers");
    assert_eq!(result(&results, "templates")["status"], "ok");
    let identity = result(&results, "identity");
    assert_eq!(identity["status"], "unknown");
    assert!(
        identity.to_string().contains("IDP_SERVICE_POOL_ID"),
        "{identity}"
    );
    for channel in ["channel sms", "channel push"] {
        assert_eq!(result(&results, channel)["status"], "warning", "{channel}");
    }
    let (ended, _) = check("postern-notify", folder, &["--offline", "--strict"]).await;
    assert!(
        ended.status == Some(1) && ended.stderr.contains("warnings"),
        "{ended:?}"
    );
    // Online, cache and providers are tried.
    let smtp = "kind = \"smtp\"\nhost = \"127.0.0.1\"\nport = 1\ntls = \"none\"\nfrom = \"a@example.com\"\n";
    let stores = "database = \"sqlite://n.db\"\ncache = \"redis://127.0.0.1:1\"\n";
    write(
        folder,
        "test.toml",
        &format!("{stores}{templates}{provider}{smtp}"),
    );
    let (ended, results) = check("postern-notify", folder, &[]).await;
    assert_eq!(ended.status, Some(69), "{ended:?}");
    for (subject, reason) in [
        ("cache", "redis://127.0.0.1:1"),
        ("provider mail", "refused"),
    ] {
        let result = result(&results, subject);
        assert_eq!(result["status"], "fault", "{result}");
        assert!(result["detail"].to_string().contains(reason), "{result}");
    }
}

#[tokio::test]
async fn auth_check_offline_needs_no_identity_variables() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    write(folder, "test.toml", "database = \"sqlite://auth.db\"\n");
    let (ended, results) = check("postern-auth", folder, &["--offline"]).await;
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(results[0]["detail"], "test.toml: good");
    let identity = result(&results, "identity").to_string();
    assert!(identity.contains("IDP_ACTOR_CLIENT_ID"), "{identity}");
    assert!(!folder.join("auth.db").exists(), "no store is opened");
    let online = run("postern-auth", folder, &["check", "test.toml"]).await;
    let said = &online.stderr;
    assert_eq!(online.status, Some(64), "{said}");
    assert!(said.contains("IDP_ACTOR_CLIENT_ID"), "{said}");
}

/// Where `check` fails, the gateway does not start; commands that start nothing need no issuer.
#[tokio::test]
async fn gateway_without_an_issuer_does_not_start() {
    let folder = folder();
    let (_, text, _) = faulty().into_iter().next_back().expect("a case");
    write(folder.path(), "test.toml", &text);
    let started = ["run", "--config", "test.toml"];
    let ended = run("postern-proxy", folder.path(), &started).await;
    let beginning = format!("test.toml:{UNIDENTIFIED}");
    let lines = ended.expect(64, 1);
    assert!(lines[0].starts_with(&beginning), "{lines:?}");
    let explain = "explain GET /v1/a --config test.toml --token user";
    for arguments in [explain, "diff test.toml test.toml"] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let ended = run("postern-proxy", folder.path(), &arguments).await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn gateway_check_warns_with_file_and_line() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "test.toml", GATEWAY);
    let expected = [
        "test.toml:6: upstream.spare: no route uses it",
        "test.toml:14: route open: no [[test]] selects it",
        "test.toml:14: route open: is public, and takes requests that the protected route protected would take; if this is meant, add a [[test]] of it without a token",
    ];
    let ended = run("postern-proxy", folder.path(), &["check", "test.toml"]).await;
    let lines = ended.expect(0, expected.len());
    let texts = lines.iter().map(|line| line.replacen(" warning:", "", 1));
    assert_eq!(texts.collect::<Vec<_>>(), expected);
    let (ended, results) = check("postern-proxy", folder.path(), &["--strict"]).await;
    assert_eq!(ended.status, Some(1), "{results:?}");
    let warnings = results
        .iter()
        .filter(|result| result["status"] == "warning");
    let details: Vec<&Value> = warnings.map(|result| &result["detail"]).collect();
    assert_eq!(details, expected);
}
