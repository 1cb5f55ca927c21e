mod console_link;

use serde_json::{Value, json};
use std::time::Duration;

use super::*;
use crate::greeting;

const PASSWORD: &str = "Correct horse battery 9";

fn options(folder: &tempfile::TempDir) -> Options {
    let hashing = HashingSettings {
        memory_kib: 1 << 10,
        passes: 1,
    };
    Options {
        hashing,
        ..Options::ephemeral(folder.path().join("var"), Clock::system())
    }
}

async fn post(running: &Running, path: &str, body: &Value) -> (u16, Value) {
    let url = format!(
        "{}{path}",
        running.variable("POSTERN_URL").expect("a gateway")
    );
    let answer = reqwest::Client::new()
        .post(url)
        .json(body)
        .send()
        .await
        .expect("answer");
    (
        answer.status().as_u16(),
        answer.json().await.unwrap_or_default(),
    )
}

#[tokio::test]
async fn non_loopback_address_is_rejected_with_advice() {
    let folder = tempfile::tempdir().expect("folder");
    let listen = Some(SocketAddr::from(([0, 0, 0, 0], 0)));
    let exit = start(Options {
        listen,
        ..options(&folder)
    })
    .await
    .expect_err("rejected");
    assert_eq!((exit.status(), exit.message().lines().count()), (64, 1));
    assert!(
        exit.message()
            .contains("postern --config conf --listen 0.0.0.0:0"),
        "{exit}"
    );
    assert!(!folder.path().join("var").exists());
}

#[tokio::test]
async fn configuration_files_are_read_before_startup() {
    let folder = tempfile::tempdir().expect("folder");
    std::fs::write(folder.path().join("auth.toml"), "listen = 1\n").expect("written");
    let env = postern_core::config::Env::default();
    let started = Box::pin(crate::start_configured(
        folder.path(),
        None,
        &env,
        Clock::system(),
    ))
    .await;
    let exit = started.expect_err("mistakes");
    assert_eq!(exit.status(), 64);
    for part in [
        "proxy.toml: cannot read",
        "auth.toml:1: listen: must be an array",
        "notify.toml: cannot read",
    ] {
        assert!(
            exit.message().contains(part),
            "{part} is missing in\n{exit}"
        );
    }
}

async fn preflight(running: &Running, path: &str, origin: &str) -> (u16, Option<String>) {
    let url = format!(
        "{}{path}",
        running.variable("POSTERN_URL").expect("a gateway")
    );
    let asked = reqwest::Client::new()
        .request(reqwest::Method::OPTIONS, url)
        .header("Origin", origin);
    let answer = asked
        .header("Access-Control-Request-Method", "POST")
        .send()
        .await
        .expect("answer");
    let allowed = answer.headers().get("access-control-allow-origin");
    (
        answer.status().as_u16(),
        allowed.map(|origin| origin.to_str().expect("text").to_owned()),
    )
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
    let exit = start(options()).await.expect_err("an empty folder");
    assert!(
        exit.status() == 64 && exit.message().contains("contains no proxy.toml"),
        "{exit}"
    );
    let route = |more: &str| {
        format!(
            "[upstream.actor]\nretries = 0\n[[route]]\nname = \"login\"\npath = \"/v2/login\"\n\
             rewrite = {{ strip = \"/v2\", add = \"/auth\" }}\n{more}"
        )
    };
    let file = own.join("proxy.toml");
    std::fs::write(&file, route("cookie = true\n")).expect("written");
    let exit = start(options()).await.expect_err("an unknown key");
    let place = format!("{}:7: route.0.cookie: is not a known field", file.display());
    assert!(
        exit.status() == 64 && exit.message().starts_with(&place),
        "{exit}"
    );
    std::fs::write(&file, route("")).expect("written");
    let running = start(options()).await.expect("started");
    for origin in [
        "http://localhost:5173",
        "http://127.0.0.1:3000",
        "http://[::1]:1",
        "https://localhost",
    ] {
        for path in ["/v2/login", "/auth/register", "/notifications", "/nowhere"] {
            let allowed = preflight(&running, path, origin).await;
            assert_eq!(allowed, (204, Some(origin.to_owned())), "{path}");
        }
    }
    for origin in [
        "https://example.com",
        "http://localhost.example.com",
        "null",
    ] {
        assert_eq!(
            preflight(&running, "/auth/register", origin).await,
            (204, None),
            "{origin}"
        );
    }
    let login = json!({"email": "ada@example.com", "password": PASSWORD});
    let (status, refused) = post(&running, "/v2/login", &login).await;
    assert_eq!(
        (status, &refused["code"]),
        (401, &"invalid_credentials".into()),
        "{refused}"
    );
    assert_eq!(
        post(&running, "/auth/login", &login).await.0,
        401,
        "the built-in path is removed"
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn greeting_commands_succeed_in_shell() {
    let folder = tempfile::tempdir().expect("folder");
    let running = start(options(&folder)).await.expect("started");
    let greeting = greeting(&running, "true", Duration::from_millis(1));
    let (_, rest) = greeting
        .split_once("Try this in another shell:\n\n")
        .expect("commands");
    let (commands, _) = rest.split_once("\nSign in with").expect("an end");
    let commands = commands.replace(
        "/tmp/resume.pdf",
        &folder.path().join("resume.pdf").display().to_string(),
    );
    let pasted = tokio::process::Command::new("sh")
        .args(["-euc", &commands])
        .output()
        .await
        .expect("sh");
    let said = String::from_utf8_lossy(&pasted.stdout);
    assert!(
        pasted.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&pasted.stderr)
    );
    let lines: Vec<&str> = said.lines().collect();
    let expected = [
        "accessToken",
        "userId",
        "firstName",
        "\"size\":5000000",
        "QUEUED",
        "Welcome",
    ];
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
    let status = async |method: &str, part: &str, path: &str, host: Option<&str>| {
        let url = format!("{}{path}", running.variable(part).expect("a part"));
        let request = client.request(method.parse().expect("a method"), url);
        let request = host
            .into_iter()
            .fold(request, |request, host| request.header("Host", host));
        request.send().await.expect("answer").status().as_u16()
    };
    let evil = Some("evil.example:8500");
    for (part, path) in [
        ("POSTERN_PROXY_ADMIN_URL", "/metrics"),
        ("POSTERN_AUTH_ADMIN_URL", "/metrics"),
        ("POSTERN_NOTIFY_ADMIN_URL", "/metrics"),
        ("POSTERN_MAIL_URL", "/messages"),
        ("POSTERN_SOCIAL_URL", "/jwks"),
    ] {
        assert_eq!(status("GET", part, path, None).await, 200, "{part}");
        assert_eq!(status("GET", part, path, evil).await, 400, "{part}");
    }
    let pool = "POSTERN_IDENTITY_POOL_URL";
    assert_eq!(
        status("GET", pool, "/.well-known/jwks.json", evil).await,
        200,
        "public, and forwarded by the gateway"
    );
    let refused = client
        .post(running.variable(pool).expect("a pool"))
        .header("Host", "evil.example");
    let refused: Value = refused
        .send()
        .await
        .expect("answer")
        .json()
        .await
        .expect("JSON");
    assert_eq!(refused["code"], "invalid_header", "{refused}");
    running.stop().await;
}
