mod console_link;

use serde_json::{Value, json};
use std::time::Duration;

use super::*;
use crate::greeting;

fn options(folder: &tempfile::TempDir) -> Options {
    Options::ephemeral(folder.path().join("var"), Clock::system())
}

fn url(running: &Running, part: &str, path: &str) -> String {
    format!("{}{path}", running.variable(part).expect("a part"))
}

async fn answer(request: reqwest::RequestBuilder) -> reqwest::Response {
    request.send().await.expect("answer")
}

async fn login(running: &Running, path: &str) -> (u16, Value) {
    let body = json!({"email": "ada@example.com", "password": "Correct horse battery 9"});
    let request = reqwest::Client::new().post(url(running, "POSTERN_URL", path));
    let answer = answer(request.json(&body)).await;
    let status = answer.status().as_u16();
    (status, answer.json().await.unwrap_or_default())
}

#[tokio::test]
async fn non_loopback_address_is_rejected_with_advice() {
    let folder = tempfile::tempdir().expect("folder");
    let mut options = options(&folder);
    options.listen = Some(SocketAddr::from(([0, 0, 0, 0], 0)));
    let exit = start(options).await.expect_err("rejected");
    let message = exit.message();
    assert_eq!((exit.status(), message.lines().count()), (64, 1));
    let advice = "postern --config conf --listen 0.0.0.0:0";
    assert!(message.contains(advice), "{exit}");
    assert!(!folder.path().join("var").exists());
}

#[tokio::test]
async fn configuration_files_are_read_before_startup() {
    let folder = tempfile::tempdir().expect("folder");
    std::fs::write(folder.path().join("auth.toml"), "listen = 1\n").expect("written");
    let env = postern_core::config::Env::default();
    let starting = crate::start_configured(folder.path(), None, &env, Clock::system());
    let exit = Box::pin(starting).await.expect_err("mistakes");
    assert_eq!(exit.status(), 64);
    for part in [
        "proxy.toml: cannot read",
        "auth.toml:1: listen: must be an array",
        "notify.toml: cannot read",
    ] {
        assert!(exit.message().contains(part), "{part}: {exit}");
    }
}

async fn preflight(running: &Running, path: &str, origin: &str) -> (u16, Option<String>) {
    let url = url(running, "POSTERN_URL", path);
    let asked = reqwest::Client::new().request(reqwest::Method::OPTIONS, url);
    let asked = asked.header("Access-Control-Request-Method", "POST");
    let answer = answer(asked.header("Origin", origin)).await;
    let allowed = answer.headers().get("access-control-allow-origin");
    let allowed = allowed.map(|origin| origin.to_str().expect("text").to_owned());
    (answer.status().as_u16(), allowed)
}

#[tokio::test(flavor = "multi_thread")]
async fn override_files_change_built_in_settings() {
    let folder = tempfile::tempdir().expect("folder");
    let own = folder.path().join("own");
    std::fs::create_dir(&own).expect("a folder");
    let options = || Options {
        overrides: Some(own.clone()),
        ..options(&folder)
    };
    let refused = async |reason: &str| {
        let exit = start(options()).await.expect_err(reason);
        assert!(exit.message().contains(reason), "{exit}");
        assert_eq!(exit.status(), 64);
    };
    refused("contains no proxy.toml").await;
    let route = |more: &str| {
        format!(
            "[upstream.actor]\nretries = 0\n[[route]]\nname = \"login\"\npath = \"/v2/login\"\n\
             rewrite = {{ strip = \"/auth/v2\", add = \"/auth\" }}\n{more}"
        )
    };
    let file = own.join("proxy.toml");
    std::fs::write(&file, route("cookie = true\n")).expect("written");
    refused(&format!(
        "{}:7: group.0.route.0.cookie: is not a known field",
        file.display()
    ))
    .await;
    std::fs::write(&file, route("")).expect("written");
    let running = start(options()).await.expect("started");
    for origin in [
        "http://localhost:5173",
        "http://127.0.0.1:3000",
        "http://[::1]:1",
        "https://localhost",
    ] {
        for path in [
            "/auth/v2/login",
            "/auth/register",
            "/notifications",
            "/nowhere",
        ] {
            let allowed = preflight(&running, path, origin).await;
            assert_eq!(allowed, (204, Some(origin.to_owned())), "{path}");
        }
    }
    for origin in [
        "https://example.com",
        "http://localhost.example.com",
        "null",
    ] {
        let allowed = preflight(&running, "/auth/register", origin).await;
        assert_eq!(allowed, (204, None), "{origin}");
    }
    let (status, refused) = login(&running, "/auth/v2/login").await;
    assert_eq!(
        (status, &refused["code"]),
        (401, &"invalid_credentials".into())
    );
    let (status, _) = login(&running, "/auth/login").await;
    assert_eq!(status, 401, "the built-in path is removed");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn greeting_commands_succeed_in_shell() {
    let folder = tempfile::tempdir().expect("folder");
    let running = start(options(&folder)).await.expect("started");
    let greeting = greeting(&running, "true", Duration::from_millis(1));
    let rest = greeting.split_once("Try this in another shell:\n\n");
    let (_, rest) = rest.expect("commands");
    let (commands, _) = rest.split_once("\nSign in with").expect("an end");
    let folder = folder.path().display().to_string();
    let commands = commands.replace("/tmp/resume.pdf", &format!("{folder}/resume.pdf"));
    let mut shell = tokio::process::Command::new("sh");
    let pasted = shell.args(["-euc", &commands]).output().await.expect("sh");
    assert!(pasted.status.success(), "{pasted:?}");
    let said = String::from_utf8_lossy(&pasted.stdout);
    let lines: Vec<&str> = said.lines().collect();
    let expected = "accessToken userId firstName \"size\":5000000 QUEUED Welcome";
    let expected: Vec<&str> = expected.split(' ').collect();
    assert_eq!(lines.len(), expected.len(), "{said}");
    for (line, part) in lines.iter().zip(expected) {
        assert!(line.contains(part), "{part} is missing in {line}");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_host_headers_are_rejected_by_all_parts() {
    let folder = tempfile::tempdir().expect("folder");
    let running = start(options(&folder)).await.expect("started");
    let client = reqwest::Client::new();
    let status = async |part: &str, path: &str, host: Option<&str>| {
        let request = client.get(url(&running, part, path));
        let hosts = host.into_iter();
        let request = hosts.fold(request, |request, host| request.header("Host", host));
        answer(request).await.status().as_u16()
    };
    let evil = Some("evil.example:8500");
    for (part, path) in [
        ("POSTERN_PROXY_ADMIN_URL", "/metrics"),
        ("POSTERN_AUTH_ADMIN_URL", "/metrics"),
        ("POSTERN_NOTIFY_ADMIN_URL", "/metrics"),
        ("POSTERN_MAIL_URL", "/messages"),
        ("POSTERN_SOCIAL_URL", "/jwks"),
    ] {
        assert_eq!(status(part, path, None).await, 200, "{part}");
        assert_eq!(status(part, path, evil).await, 400, "{part}");
    }
    let pool = "POSTERN_IDENTITY_POOL_URL";
    let public = status(pool, "/.well-known/jwks.json", evil).await;
    assert_eq!(public, 200, "public, and forwarded by the gateway");
    let refused = client.post(url(&running, pool, ""));
    let refused = answer(refused.header("Host", "evil.example")).await;
    let refused: Value = refused.json().await.expect("JSON");
    assert_eq!(refused["code"], "invalid_header", "{refused}");
    running.stop().await;
}
