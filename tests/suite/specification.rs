//! `docs/specification.md`, and sentences of the specification that no other test shows.

use postern_harness::public_api::welcome;
use postern_harness::{Client, Contract, Person, Standalone, json, paths};
use serde_json::Value;

/// Whether a source file has a test of this name.
fn has_test(file: &str, name: &str) -> bool {
    let text = paths::read(file);
    let Some((before, _)) = text.split_once(&format!("fn {name}(")) else {
        return false;
    };
    let attributes = before.rsplit("\n\n").next().unwrap_or_default();
    attributes.contains("#[test]") || attributes.contains("#[tokio::test")
}

#[test]
fn each_sentence_names_existing_tests() {
    let document = paths::read("docs/specification.md");
    let mut rows = 0;
    for row in document.lines().filter(|line| line.starts_with("| ")) {
        let (_, shown) = row.trim_end_matches(" |").rsplit_once(" | ").expect(row);
        if shown == "shown by" {
            continue;
        }
        rows += 1;
        for named in shown.split(", ") {
            let (file, name) = named.trim_matches('`').split_once("::").expect(row);
            assert!(has_test(file, name), "{named} is no test");
        }
    }
    assert!(rows > 100, "only {rows} rows");
    assert!(!has_test("tests/suite/specification.rs", "has_test"));
}

#[test]
fn gateway_is_the_backend_actor_at_port_8500() {
    let gateway: toml::Table = paths::read("conf/proxy.toml").parse().expect("TOML");
    let address = gateway["listen"][0]["address"].as_str().expect("text");
    assert!(address.ends_with(":8500"), "{address}");
    let compose = paths::read("compose.yaml");
    for part in ["aliases: [backend-actor]", "127.0.0.1:8500:8500"] {
        assert!(compose.contains(part), "{part}");
    }
    let cluster = paths::read("conf/deploy/kubernetes/base/proxy.yaml");
    let mut objects = cluster.split("---");
    let is_service = |part: &str| part.contains("name: backend-actor") && part.contains("8500");
    assert!(objects.any(is_service), "{cluster}");
}

#[test]
fn documented_paths_follow_the_rest_conventions() {
    let contract = Contract::shared();
    // The specification names these itself.
    let exceptions = ["/api/session", "/actor", "/admin/features/{featureName}"];
    for operation in &contract.operations {
        let path = operation.path.as_str();
        let first = path.split('/').nth(1).expect("a path");
        let is_plural = first.ends_with('s') || exceptions.contains(&path);
        let is_plural = is_plural || ["auth", ".well-known"].contains(&first);
        assert!(is_plural, "{path}");
        assert!(!path.to_lowercase().contains("email"), "{path}");
        let method = operation.method.as_str().to_lowercase();
        let described = &contract.document["paths"][path][method];
        for parameter in described["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().expect("a name").to_lowercase();
            let mut secrets = ["token", "secret", "password"].iter();
            let is_secret = secrets.any(|it| name.contains(it));
            // Mail clients call /unsubscriptions with the link of the mail (RFC 8058).
            let is_in_url = parameter["in"] == "query" || parameter["in"] == "path";
            let is_wrong = is_secret && is_in_url && path != "/unsubscriptions";
            assert!(!is_wrong, "{path} {name}");
        }
        let is_stream = described.to_string().contains("text/event-stream");
        assert!(!is_stream, "{path}");
    }
}

#[tokio::test]
async fn services_trust_no_network_location_and_stream_no_status() {
    let postern = Standalone::start().await;
    let surface = postern.surface();
    let bodies = json!({ "actorId": "a", "email": "a@b.test" });
    for (variable, method, path) in [
        ("POSTERN_AUTH_URL", "GET", "/auth/me"),
        ("POSTERN_NOTIFY_URL", "GET", "/notifications"),
        ("POSTERN_ACTOR_URL", "POST", "/actors/register"),
        ("POSTERN_DOCUMENT_URL", "GET", "/resumes/1"),
    ] {
        let service = Client::new(surface.env(variable));
        let request = service.request(method.parse().expect("a method"), path);
        let request = request.header("X-Postern-Kind", "service");
        let request = request.header("X-Postern-Service", "auth");
        let answer = match method {
            "POST" => request.json(&bodies).send().await,
            _ => request.send().await,
        };
        assert_eq!(answer.status.as_u16(), 401, "{path}: {}", answer.text());
    }
    status_is_polled(&surface.register().await).await;
    postern.stop().await;
}

async fn status_is_polled(ada: &Person) {
    let message = welcome(&ada.id);
    let created = ada.client.posted("/notifications", &message, 201).await;
    let location = created.header("location");
    let request = || ada.client.get(&location);
    let streamed = request().header("accept", "text/event-stream").send().await;
    let record: Value = streamed.expect(200).json();
    assert_eq!(record["channel"], "email");
    let upgrade = request().header("connection", "upgrade");
    let upgrade = upgrade.header("upgrade", "websocket").send().await;
    assert_ne!(upgrade.status.as_u16(), 101);
}
