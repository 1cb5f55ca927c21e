//! `[defaults]`, and files that the configuration includes.

use std::time::Duration;

use postern_core::config::{Env, parse};

use super::harness::TestGateway;
use super::origin::{OriginBehavior, TestOrigin};
use crate::{Config, config_files};

/// Returns a public route whose path is its name.
fn route(name: &str, more: &str) -> String {
    format!(
        "[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nmethods = [\"GET\", \"POST\"]\nupstream = \"origin\"\n\
         policy = \"public\"\n{more}\n"
    )
}

/// Returns a configuration file with these tables.
fn text(tables: &str) -> String {
    format!(
        "[[listen]]\naddress = \"127.0.0.1:1\"\n[upstream.origin]\naddresses = [\"127.0.0.1:2\"]\n{tables}"
    )
}

fn read(tables: &str) -> Result<Config, String> {
    let env = Env::default();
    parse("p.toml", &text(tables), |root| Config::read(root, &env))
        .map_err(|exit| exit.message().to_owned())
}

async fn gateway(tables: &str) -> TestGateway {
    let origin = TestOrigin::start(OriginBehavior::Answer).await;
    let upstream = format!("addresses = [\"{}\"]", origin.address);
    TestGateway::before(origin, &upstream, "", tables).await
}

#[test]
fn route_replaces_each_default_as_a_whole() {
    let defaults = "[defaults]\nbody_bytes = 7\ndeadline = \"3s\"\nread_timeout = \"2s\"\nretries = 0\n\
                    websocket = true\noutlives_token = true\ncookies = true\n\
                    limits = [{ by = \"address\", requests = 5 }, { by = \"principal\", requests = 6 }]\n\
                    response_headers = { set = { X-A = \"1\", X-B = \"2\" } }\n\
                    cors = { origins = [\"https://a\"], max_age = \"1s\" }\n";
    let own = "body_bytes = 8\ndeadline = \"4s\"\nread_timeout = \"5s\"\nretries = 2\nwebsocket = false\n\
               outlives_token = false\ncookies = false\nlimits = []\nresponse_headers = { set = { X-C = \"3\" } }\n\
               cors = { origins = [] }\n";
    let config = read(&format!("{defaults}{}{}", route("a", ""), route("b", own))).expect("reads");
    let [a, b] = [&config.routes[0].settings, &config.routes[1].settings];
    assert_eq!((a.body_bytes, b.body_bytes), (7, 8));
    assert_eq!((a.deadline.as_secs(), b.deadline.as_secs()), (3, 4));
    let timeouts = [a.read_timeout, b.read_timeout].map(|timeout| timeout.expect("set").as_secs());
    assert_eq!(timeouts, [2, 5]);
    assert_eq!((a.retries, b.retries), (Some(0), Some(2)));
    assert!(a.websocket && a.outlives_token && a.cookies);
    assert!(!b.websocket && !b.outlives_token && !b.cookies);
    // A public route has no principal.
    assert_eq!((a.limits.len(), b.limits.len()), (1, 0));
    let set = [a, b].map(|settings| settings.response_headers.as_ref().expect("set").set.len());
    assert_eq!(set, [2, 1]);
    let [a, b] = [a, b].map(|settings| settings.cors.as_ref().expect("a policy"));
    assert_eq!((a.origins.len(), b.origins.len()), (1, 0));
    assert_eq!(
        (a.max_age.as_secs(), b.max_age.as_secs()),
        (1, 600),
        "the table is replaced, not merged"
    );
    assert_eq!(config.limits.http.deadline, Duration::from_secs(3));
    assert_eq!(config.cors.expect("a fallback").origins.len(), 1);
}

#[test]
fn settings_without_a_default_are_rejected() {
    let said = read("[defaults]\npolicy = \"public\"\n").expect_err("no default");
    assert_eq!(said, "p.toml:6: defaults.policy: is not a known field");
    let limits = "limits = [{ by = \"principal\", requests = 6 }]";
    let said = read(&route("a", limits)).expect_err("no principal");
    assert!(said.contains("a public route has no principal"), "{said}");
}

#[tokio::test]
async fn defaults_apply_to_requests() {
    let defaults = "[defaults]\nbody_bytes = 3\nresponse_headers = { set = { X-Frame-Options = \"DENY\" } }\n\
                    limits = [{ by = \"route\", requests = 1000 }]\n";
    let own = "body_bytes = 4\nresponse_headers = { set = { X-Own = \"1\" } }\nlimits = []\n";
    let gateway = gateway(&format!("{defaults}{}{}", route("a", ""), route("b", own))).await;
    let post = async |target: &str| {
        let head = format!("POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody");
        gateway.send(&head).await.status
    };
    assert_eq!((post("/a").await, post("/b").await), (413, 200));
    let answer = gateway.get("/a", "").await;
    assert_eq!(answer.header("x-frame-options"), Some("DENY"));
    assert!(answer.header("ratelimit").is_some());
    let answer = gateway.get("/b", "").await;
    assert_eq!(answer.header("x-own"), Some("1"));
    assert_eq!(answer.header("x-frame-options"), None);
    assert_eq!(answer.header("ratelimit"), None);
}

#[tokio::test]
async fn default_deadline_ends_a_request_to_a_silent_upstream() {
    let origin = TestOrigin::start(OriginBehavior::Hang).await;
    let upstream = format!("addresses = [\"{}\"]", origin.address);
    let tables = format!(
        "[defaults]\ndeadline = \"30s\"\nread_timeout = \"100ms\"\n{}",
        route("a", "")
    );
    let gateway = TestGateway::before(origin, &upstream, "", &tables).await;
    let answer = gateway.get("/a", "").await;
    assert_eq!(answer.code(), "upstream_timeout");
}

#[tokio::test]
async fn included_file_is_followed_by_reloads() {
    let gateway = gateway(&route("main", "")).await;
    let folder = gateway.log.path().join("conf.d");
    let file = folder.join("b.toml");
    std::fs::create_dir(&folder).expect("creates");
    std::fs::write(&file, route("one", "")).expect("writes");
    gateway.edit(|text| format!("include = [\"conf.d/*.toml\"]\n{text}"));
    let version = async |version: u64| {
        gateway
            .wait_for_config_status(|status| status["version"] == version)
            .await
    };
    let status = version(2).await;
    let shown = status["includedFiles"][0].as_str().expect("a name");
    assert!(shown.ends_with("conf.d/b.toml"), "{status}");
    assert_eq!(gateway.get("/one", "").await.status, 200);

    // A modified file, and a new one.
    std::fs::write(&file, route("two", "")).expect("writes");
    let changed = version(3).await;
    assert_ne!(changed["hash"], status["hash"]);
    assert_eq!(gateway.get("/one", "").await.status, 401);
    assert_eq!(gateway.get("/two", "").await.status, 200);
    std::fs::write(folder.join("a.toml"), route("three", "")).expect("writes");
    version(4).await;
    assert_eq!(gateway.get("/three", "").await.status, 200);

    // A mistake changes nothing, and is reported with its place.
    std::fs::write(folder.join("c.toml"), route("two", "")).expect("writes");
    let status = gateway
        .wait_for_config_status(|status| !status["lastError"].is_null())
        .await;
    let said = status["lastError"].as_str().expect("a string");
    for part in [
        "conf.d/c.toml:1: route.0: a route is already called two (",
        "conf.d/b.toml:1)",
        "conf.d/c.toml:1: route.0: can never be taken: two takes all its requests (",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(gateway.get("/two", "").await.status, 200);
    std::fs::remove_file(folder.join("c.toml")).expect("removes");
    gateway
        .wait_for_config_status(|status| status["lastError"].is_null())
        .await;
    std::fs::remove_file(&file).expect("removes");
    gateway
        .wait_for_config_status(|status| {
            status["includedFiles"].as_array().map(Vec::len) == Some(1)
        })
        .await;
    assert_eq!(gateway.get("/two", "").await.status, 401);
    assert_eq!(gateway.get("/main", "").await.status, 200);
}

#[test]
fn failing_test_of_included_file_has_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let main = folder.path().join("main.toml");
    let test =
        |decision: &str| format!("[[test]]\nrequest = \"GET /a\"\ndecision = \"{decision}\"\n");
    let tables = format!("{}{}", route("b", ""), test("authentication_required"));
    std::fs::write(&main, format!("include = [\"a.toml\"]\n{}", text(&tables))).expect("writes");
    let load = |included: &str| {
        std::fs::write(folder.path().join("a.toml"), included).expect("writes");
        let env = Env::default();
        let files = config_files(&main).expect("reads");
        files
            .decode(|root| Config::read(root, &env))
            .map_err(|exit| {
                exit.message()
                    .replace(&format!("{}/", folder.path().display()), "")
            })
    };
    load("").expect("valid");
    let said = load(&format!("{}{}", route("a", ""), test("not_found"))).expect_err("wrong");
    assert_eq!(
        said,
        "main.toml:13: test.0: test \"GET /a\": is decided allow, not authentication_required\n\
         a.toml:8: test.0: test \"GET /a\": is decided allow, not not_found"
    );
}
