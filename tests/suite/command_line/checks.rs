//! `check`, without the environment of the process.

use std::path::Path;

use postern_tests::config_file::conf;
use serde_json::Value;

use super::run;

fn write(folder: &Path, name: &str, text: &str) {
    let file = folder.join(name);
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("the folder can be written");
    std::fs::write(file, text).expect("the folder can be written");
}

/// Returns the results of `check --json`.
fn results(text: &str) -> Vec<Value> {
    let results = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    results.collect()
}

/// Asserts that a faulty file is reported with these beginnings, as text and as JSON.
async fn assert_rejected(program: &str, folder: &Path, places: &[&str]) {
    let base = ["check", "--config", "faulty.toml"];
    let offline: &[&str] = match program {
        "postern-auth" | "postern-notify" => &["--offline"],
        _ => &[],
    };
    let arguments = [&base, offline].concat();
    let text = run(program, folder, &arguments).await;
    let lines = text.expect(64, places.len());
    let json = run(program, folder, &[&arguments[..], &["--json"]].concat()).await;
    let found = results(&json.stdout);
    assert_eq!(
        (json.status, found.len()),
        (Some(64), places.len()),
        "{found:?}"
    );
    for ((line, result), place) in lines.iter().zip(&found).zip(places) {
        assert!(line.starts_with(place), "{place}: {line}");
        assert_eq!(result["check"], "configuration");
        assert_eq!(result["status"], "fault");
        assert_eq!(result["detail"], *line);
    }
}

#[tokio::test]
async fn notify_check_reads_templates_and_key_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let provider = "[[provider]]\nname = \"push\"\nchannel = \"push\"\nkind = \"fcm\"\naccount_file = \"key.json\"\n";
    write(folder, "key.json", "{}");
    write(folder, "bad/hello/template.toml", "version = 1\n");
    write(folder, "bad/hello/sms.en.txt", "{{ name");
    write(
        folder,
        "faulty.toml",
        &format!("[templates]\nfolder = \"bad\"\n{provider}"),
    );
    let places = ["faulty.toml:7: provider.0.account_file: key.json is not the JSON file"];
    assert_rejected("postern-notify", folder, &places).await;
    write(folder, "faulty.toml", "[templates]\nfolder = \"bad\"\n");
    let places = ["faulty.toml:2: templates.folder: bad/hello/sms.en.txt:1: "];
    assert_rejected("postern-notify", folder, &places).await;
    let unknown = "[templates]\nfolder = \"none\"\n[log]\nlevel = \"info\"\n";
    write(folder, "faulty.toml", unknown);
    let places = ["faulty.toml:4: log.level: is not a known field"];
    assert_rejected("postern-notify", folder, &places).await;
    write(folder, "faulty.toml", "[templates]\nfolder = \"none\"\n");
    let places = ["faulty.toml:2: templates.folder: none: there is no such folder"];
    assert_rejected("postern-notify", folder, &places).await;
}

#[tokio::test]
async fn notify_check_needs_neither_variables_nor_database() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let templates = conf().join("templates").display().to_string();
    let text = format!(
        "database = \"sqlite://no/such/folder/n.db\"\n[templates]\nfolder = \"{templates}\"\n\
         [[provider]]\nname = \"mail\"\nchannel = \"email\"\nkind = \"null\"\n"
    );
    write(folder, "notify.toml", &text);
    let check = async |more: &[&str]| {
        let arguments = [&["check", "notify.toml", "--json"], more].concat();
        let ended = run("postern-notify", folder, &arguments).await;
        (ended.status, results(&ended.stdout), ended.stderr)
    };
    let (status, found, _) = check(&["--offline"]).await;
    assert_eq!(status, Some(0), "{found:?}");
    let of = |subject: &str| {
        let mut found = found.iter();
        let result = found.find(|result| result["check"] == subject);
        result
            .unwrap_or_else(|| panic!("{subject} is missing"))
            .clone()
    };
    assert_eq!(
        of("configuration")["detail"],
        "notify.toml: good: 1 providers"
    );
    assert_eq!(of("templates")["status"], "ok");
    assert_eq!(of("identity")["status"], "unknown");
    let missing = of("identity")["detail"].to_string();
    assert!(missing.contains("IDP_SERVICE_POOL_ID"), "{missing}");
    for channel in ["channel sms", "channel push"] {
        assert_eq!(of(channel)["status"], "warning", "{channel}");
    }
    let (status, _, stderr) = check(&["--offline", "--strict"]).await;
    assert!(status == Some(1) && stderr.contains("warnings"), "{stderr}");
}

#[tokio::test]
async fn notify_check_tries_cache_and_providers() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let templates = conf().join("templates").display().to_string();
    let text = format!(
        "database = \"sqlite://n.db\"\ncache = \"redis://127.0.0.1:1\"\n[templates]\nfolder = \"{templates}\"\n\
         [[provider]]\nname = \"mail\"\nchannel = \"email\"\nkind = \"smtp\"\nhost = \"127.0.0.1\"\nport = 1\n\
         tls = \"none\"\nfrom = \"a@example.com\"\n"
    );
    write(folder, "notify.toml", &text);
    let ended = run(
        "postern-notify",
        folder,
        &["check", "notify.toml", "--json"],
    )
    .await;
    assert_eq!(ended.status, Some(69), "{}{}", ended.stdout, ended.stderr);
    for (subject, reason) in [
        ("cache", "redis://127.0.0.1:1"),
        ("provider mail", "refused"),
    ] {
        let mut found = results(&ended.stdout).into_iter();
        let result = found.find(|result| result["check"] == subject);
        let result = result.unwrap_or_else(|| panic!("{subject} is missing"));
        let detail = result["detail"].to_string();
        assert!(
            result["status"] == "fault" && detail.contains(reason),
            "{result}"
        );
    }
}

#[tokio::test]
async fn auth_check_offline_needs_no_identity_variables() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    write(folder, "auth.toml", "database = \"sqlite://auth.db\"\n");
    let offline = ["check", "auth.toml", "--offline", "--json"];
    let ended = run("postern-auth", folder, &offline).await;
    let found = results(&ended.stdout);
    assert_eq!(ended.status, Some(0), "{found:?}{}", ended.stderr);
    assert_eq!(found[0]["detail"], "auth.toml: good");
    let identity = found.iter().find(|result| result["check"] == "identity");
    let identity = identity.expect("the missing variables").to_string();
    assert!(identity.contains("IDP_ACTOR_CLIENT_ID"), "{identity}");
    assert!(!folder.join("auth.db").exists(), "no store is opened");
    let online = run("postern-auth", folder, &["check", "auth.toml"]).await;
    assert_eq!(online.status, Some(64), "{}", online.stdout);
    assert!(
        online.stderr.contains("IDP_ACTOR_CLIENT_ID"),
        "{}",
        online.stderr
    );
    write(
        folder,
        "faulty.toml",
        "cache = \"memory:\"\n[log]\nfilter = 1\n[abuse]\nx = 1\n",
    );
    let places = ["faulty.toml:3: log.filter: ", "faulty.toml:5: abuse.x: "];
    assert_rejected("postern-auth", folder, &places).await;
}

#[tokio::test]
async fn console_check_names_file_line_and_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    write(folder, "faulty.toml", "[log]\nformat = \"xml\"\n");
    let ended = run("postern-console", folder, &["check", "faulty.toml"]).await;
    assert_eq!(ended.status, Some(64), "{}", ended.stdout);
    let place = "faulty.toml:2: log.format: ";
    assert!(
        ended.stderr.lines().any(|line| line.starts_with(place)),
        "{}",
        ended.stderr
    );
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

#[tokio::test]
async fn gateway_check_reads_tls_files_and_failing_tests() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let tls = "[listen.tls]\ncertificate = \"no.pem\"\nkey = \"no.key\"\n[upstream.one]";
    write(
        folder,
        "faulty.toml",
        &GATEWAY.replace("[upstream.one]", tls),
    );
    let places = [
        "faulty.toml:5: listen.0.tls.certificate: no.pem: ",
        "faulty.toml:6: listen.0.tls.key: no.key: ",
    ];
    assert_rejected("postern-proxy", folder, &places).await;
    write(
        folder,
        "faulty.toml",
        &GATEWAY.replace("\"allow\"", "\"not_found\""),
    );
    let places =
        ["faulty.toml:20: test.0: test \"GET /v1/things\": is decided allow, not not_found"];
    assert_rejected("postern-proxy", folder, &places).await;
}

#[tokio::test]
async fn gateway_check_fails_where_the_gateway_does_not_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let (without, _) = GATEWAY
        .split_once("[[identity.issuer]]")
        .expect("an issuer");
    write(folder, "faulty.toml", without);
    let place =
        "faulty.toml:13: route.0.policy: nothing that is configured identifies such a caller";
    assert_rejected("postern-proxy", folder, &[place]).await;
    let started = ["run", "--config", "faulty.toml"];
    let ended = run("postern-proxy", folder, &started).await;
    let lines = ended.expect(64, 1);
    assert!(lines[0].starts_with(place), "{lines:?}");
    // Commands that start nothing need no issuer.
    let explain = [
        "explain",
        "GET",
        "/v1/a",
        "--config",
        "faulty.toml",
        "--token",
        "user",
    ];
    for arguments in [&explain[..], &["diff", "faulty.toml", "faulty.toml"]] {
        let ended = run("postern-proxy", folder, arguments).await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn gateway_check_warns_with_file_and_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    write(folder, "proxy.toml", GATEWAY);
    let expected = [
        "proxy.toml:6: upstream.spare: no route uses it",
        "proxy.toml:14: route open: no [[test]] selects it",
        "proxy.toml:14: route open: is public, and takes requests that the protected route protected would take; if this is meant, add a [[test]] of it without a token",
    ];
    let ended = run("postern-proxy", folder, &["check", "proxy.toml"]).await;
    let lines = ended.expect(0, expected.len());
    let texts = lines.iter().map(|line| line.replacen(" warning:", "", 1));
    assert_eq!(texts.collect::<Vec<_>>(), expected);
    let json = ["check", "proxy.toml", "--json", "--strict"];
    let ended = run("postern-proxy", folder, &json).await;
    let found = results(&ended.stdout);
    assert_eq!(ended.status, Some(1), "{found:?}");
    let warnings = found.iter().filter(|result| result["status"] == "warning");
    let details: Vec<&Value> = warnings.map(|result| &result["detail"]).collect();
    assert_eq!(details, expected);
}
