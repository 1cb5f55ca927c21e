//! The container image, built from the Dockerfile, and compose.yaml.

use std::path::Path;

use postern_harness::paths::read;
use postern_harness::podman::{Container, Options, Podman};
use postern_harness::process::{Program, Running};
use postern_harness::skipped;
use postern_harness::systems::{Network, obstacle};
use serde_json::Value;

use crate::observability::yaml;

const PROCESSES: [&str; 4] = ["proxy", "auth", "notify", "console"];

/// Returns the URL of readiness, with an address that only listeners on all addresses receive.
fn readiness(process: &str) -> &'static str {
    match process {
        "proxy" => "http://127.0.0.2:8509/readyz",
        "auth" => "http://127.0.0.2:8510/readyz",
        "notify" => "http://127.0.0.2:8511/readyz",
        _ => "http://127.0.0.2:8512/livez",
    }
}

#[tokio::test]
async fn image_runs_every_process_with_its_defaults() {
    const NAME: &str = "image_runs_every_process_with_its_defaults";
    if let Some(obstacle) = obstacle() {
        return skipped(NAME, &obstacle);
    }
    let podman = Podman::build(None);
    let network = Network::create();
    let development = network.start_development().await;
    let names = ["proxy", "auth", "notify"].into_iter();
    let hosts: Vec<String> = names
        .flat_map(|name| [format!("postern-{name}"), format!("postern-{name}-admin")])
        .collect();
    let containers = PROCESSES.map(|process| {
        let config = format!("/etc/postern/{process}.toml");
        let command = vec![format!("postern-{process}"), "--config".to_owned(), config];
        let options = Options {
            // The gateway is the default.
            command: match process {
                "proxy" => Vec::new(),
                _ => command,
            },
            environment: network.environment(process),
            volumes: vec!["/var/lib/postern".to_owned()],
            hosts: hosts.clone(),
        };
        podman.start(&options, &network)
    });
    for (process, container) in PROCESSES.iter().zip(&containers) {
        network.wait_for(readiness(process));
        assert!(container.is_healthy(), "{process}");
        assert_eq!(container.inspect(".Config.User"), "10001:10001");
        let may_write = container.succeeds(&["touch", "/etc/postern/changed"]);
        assert!(!may_write, "{process}");
    }
    network.sign_in_and_notify();
    for (process, container) in PROCESSES.iter().zip(&containers) {
        assert_eq!(container.stop(), "0", "{process}");
        assert!(!container.is_healthy(), "{process} has been stopped");
    }
    assert_eq!(development.stop("TERM").await.status, Some(0));
}

/// Returns the services of compose.yaml.
fn services() -> Value {
    yaml(&read("compose.yaml"))["services"].take()
}

fn strings(list: &Value) -> Vec<String> {
    let strings = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    strings.iter().map(text).collect()
}

/// Starts a service of the file as compose does: `$$` is a dollar sign. The names of the stores are
/// this network's.
fn start_service<'a>(podman: &'a Podman, service: &Value, network: &Network) -> Container<'a> {
    let environment = service["environment"].as_object().into_iter().flatten();
    let options = Options {
        command: strings(&service["command"])
            .iter()
            .map(|word| word.replace("$$", "$"))
            .collect(),
        environment: environment
            .map(|(name, value)| (name.clone(), value.as_str().expect("a string").to_owned()))
            .collect(),
        volumes: strings(&service["volumes"]),
        hosts: vec!["postgres".to_owned(), "redis".to_owned()],
    };
    podman.start(&options, network)
}

/// Starts Redis with the arguments of the file, in the network.
fn start_redis(service: &Value, network: &Network, folder: &Path) -> Running {
    let program = Program::at("/usr/sbin/ip".into(), folder);
    let words = ["netns", "exec", network.name()].map(str::to_owned);
    let words = words.into_iter().chain(strings(&service["command"]));
    program.args(words).start()
}

#[tokio::test]
async fn compose_file_runs_gateway_services_and_console() {
    const NAME: &str = "compose_file_runs_gateway_services_and_console";
    if let Some(obstacle) = obstacle() {
        return skipped(NAME, &obstacle);
    }
    let services = services();
    let podman = Podman::build(Some("development"));
    let network = Network::create();
    let folder = tempfile::tempdir().expect("a folder");
    let redis = start_redis(&services["redis"], &network, folder.path());
    let user = services["postgres"]["environment"]["POSTGRES_USER"].as_str();
    let postgres = network.start_postgres(folder.path(), user.expect("a name"));
    let development = start_service(&podman, &services["development"], &network);
    network.wait_for("http://127.0.0.1:8609/readyz");
    assert!(development.is_healthy());
    let containers = PROCESSES.map(|process| start_service(&podman, &services[process], &network));
    for port in ["8509/readyz", "8510/readyz", "8511/readyz", "8512/livez"] {
        network.wait_for(&format!("http://127.0.0.1:{port}"));
    }
    let person = serde_json::json!({
        "email": "ada@example.com", "password": postern_harness::public_api::PASSWORD,
        "profile": { "firstName": "Ada" },
    });
    let register = "http://127.0.0.2:8500/auth/register";
    let (status, answer) = network.call(register, None, Some(&person));
    assert_eq!(status, 201, "{answer}");
    // The published ports are those on which all addresses are served.
    let published = strings(&services["development"]["ports"]);
    assert_eq!(published, ["127.0.0.1:8500:8500", "127.0.0.1:8512:8512"]);
    let (status, _page) = network.call("http://127.0.0.2:8512/livez", None, None);
    assert_eq!(status, 200);
    for (process, container) in PROCESSES.iter().zip(&containers) {
        assert_eq!(container.stop(), "0", "{process}");
    }
    assert_eq!(development.stop(), "0");
    drop(postgres);
    let _ended = redis.stop("TERM").await;
}
