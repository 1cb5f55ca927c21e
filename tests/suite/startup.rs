//! Startup and exit of the programs: configuration mistakes are listed completely, unavailable
//! dependencies in one line.

use postern_core::testing::required;
use postern_harness::paths::conf;
use postern_harness::process::Program;
use postern_harness::wait::{answer, until};
use postern_harness::{Answer, Client, ports};
use postern_store::database::{testing::Relay, testing::postgres};
use tempfile::TempDir;
use tokio::net::TcpListener;

/// Identity variables that satisfy every program.
const IDENTITY: [(&str, &str); 6] = [
    ("IDP_ACTOR_POOL_ID", "us-west-2_actor"),
    ("IDP_ACTOR_CLIENT_ID", "actor"),
    ("IDP_SERVICE_POOL_ID", "us-west-2_service"),
    ("IDP_SERVICE_CLIENT_ID", "service"),
    ("IDP_SERVICE_ACCOUNT_USERNAME", "test"),
    ("IDP_SERVICE_ACCOUNT_PASSWORD", "test"),
];
const SERVICES: [&str; 2] = ["postern-auth", "postern-notify"];
const PROGRAMS: [&str; 3] = ["postern-auth", "postern-notify", "postern-proxy"];

/// Listeners of a service on free ports.
const LISTEN: &str =
    "listen = [{ address = '127.0.0.1:0' }]\nadmin = { address = '127.0.0.1:0' }\n";

/// Configurations with mistakes, and the beginnings of their lines in order.
const MISTAKES: [(&str, &str, &[&str]); 3] = [
    (
        "postern-auth",
        "listen = [{ address = \"127.0.0.1:99999\" }]\ndatabas = \"sqlite://x\"\ncache = 7\n\n[audit]\nretention = \"soon\"\n",
        &[
            "1: listen.0.address: ",
            "2: databas: ",
            "3: cache: ",
            "6: audit.retention: ",
        ],
    ),
    (
        "postern-notify",
        "listen = [{ address = \"here\" }]\ndatabas = \"sqlite://x\"\ncache = 7\n",
        &["1: listen.0.address: ", "2: databas: ", "3: cache: "],
    ),
    (
        "postern-proxy",
        "workers = 0\nadmin = \"here\"\nlistne = 1\n\n[upstream.a]\naddresses = [\"nowhere\"]\n\n\
         [[route]]\nname = \"open\"\npath = \"x\"\nupstream = \"b\"\n",
        &[
            "1: at least one [[listen]]",
            "1: workers: ",
            "2: admin: ",
            "3: listne: ",
            "6: upstream.a.addresses.0: ",
            "8: route.0.methods: ",
            "8: route.0.policy: ",
            "10: route.0.path: ",
            "11: route.0.upstream: ",
        ],
    ),
];

/// A folder with `conf`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let linked = std::os::unix::fs::symlink(conf(), folder.path().join("conf"));
    linked.expect("the folder can be written");
    folder
}

/// Returns a program with a configuration, and variables that satisfy it.
fn program(name: &str, folder: &TempDir, config: &str) -> Program {
    let program = Program::of_workspace(name, folder.path()).envs(IDENTITY);
    program.config("test.toml", config)
}

/// Asserts that a program ends at once with one line, which contains a text or its alternative.
async fn assert_ends(name: &str, program: &Program, status: i32, part: &str) {
    let ended = program.run().await;
    let lines = ended.expect(status, 1);
    let mut parts = part.split(" or ");
    let is_told = parts.any(|it| lines[0].contains(it));
    assert!(is_told, "{name}: {part}: {lines:?}");
    assert!(!lines[0].contains("sesame"), "{name}: {lines:?}");
}

#[tokio::test]
async fn every_configuration_mistake_is_listed() {
    for (name, config, mistakes) in MISTAKES {
        let ended = program(name, &folder(), config).run().await;
        let mut lines = ended.expect(64, mistakes.len());
        lines.sort_by_key(|line| line.split(':').nth(1).and_then(|it| it.parse::<u32>().ok()));
        for (line, mistake) in lines.iter().zip(mistakes) {
            let is_listed = line.starts_with(&format!("test.toml:{mistake}"));
            assert!(is_listed, "{name}: {line} is not {mistake:?}");
        }
    }
}

#[tokio::test]
async fn impossible_start_is_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let taken = taken.local_addr().expect("an address").to_string();
    let mut url = url::Url::parse(&required("POSTERN_TEST_POSTGRES")).expect("a URL");
    url.set_path("nowhere");
    url.set_password(Some("sesame")).expect("it has a host");
    for name in PROGRAMS {
        let folder = folder();
        let missing = Program::of_workspace(name, folder.path());
        let missing = missing.args(["--config", "none.toml"]);
        assert_ends(name, &missing, 64, "none.toml: ").await;
        let invalid = program(name, &folder, "# fine\nlisten = \n");
        assert_ends(name, &invalid, 64, "test.toml:2: ").await;
        let listen = match name {
            "postern-proxy" => "[admin]\naddress = '127.0.0.1:0'\n[[listen]]\naddress = 'TAKEN'\n",
            _ => "listen = [{ address = 'TAKEN' }]\nadmin = { address = '127.0.0.1:0' }\n",
        };
        let in_use = program(name, &folder, &listen.replace("TAKEN", &taken));
        assert_ends(name, &in_use, 69, &taken).await;
    }
    for name in SERVICES {
        let folder = folder();
        let rejecting = program(name, &folder, &format!("{LISTEN}database = '{url}'\n"));
        assert_ends(name, &rejecting, 69, "\"nowhere\" does not exist").await;
        // A file in place of the folder, which fails for root as well.
        std::fs::write(folder.path().join("file"), "").expect("the folder can be written");
        let unwritable = format!("{LISTEN}database = 'sqlite://file/below.db'\n");
        let unwritable = program(name, &folder, &unwritable);
        assert_ends(name, &unwritable, 69, "file/below.db or file:").await;
    }
    let folder = folder();
    std::fs::write(folder.path().join("file"), "").expect("the folder can be written");
    let postern = Program::of_workspace("postern", folder.path());
    let postern = postern.args(["--port", "0", "--data-dir", "file/below"]);
    assert_ends("postern", &postern, 69, "file/below").await;
}

#[tokio::test]
async fn unavailable_database_is_waited_for() {
    let database = postgres().await;
    let (relay, url) = Relay::start(&database.url).await;
    for name in SERVICES {
        relay.stop_forwarding();
        let (folder, public, admin) = (folder(), ports::free(1), ports::free(1));
        let url = url.replace("postern@", "postern:sesame@");
        let templates = match name {
            "postern-notify" => "[templates]\nfolder = \"conf/templates\"\n",
            _ => "",
        };
        let config = listening(public, admin, &format!("database = \"{url}\"\n{templates}"));
        let running = program(name, &folder, &config).start();
        // The servers listen only after the first connection attempt.
        let answer = until_answered(&format!("http://127.0.0.1:{admin}/readyz")).await;
        let reason = answer.expect(503).text();
        let is_told = reason.contains("is not available: no answer within");
        assert!(is_told, "{name}: {reason}");
        let url = format!("http://127.0.0.1:{public}/notifications");
        let answer = until_answered(&url).await.expect(503);
        assert!(answer.headers.contains_key("retry-after"), "{name}");
        relay.recover();
        let served = async || until_answered(&url).await.status != 503;
        until(&format!("{name} begins"), served).await;
        assert!(!running.log().contains("sesame"), "{}", running.log());
        assert_eq!(running.stop("TERM").await.status, Some(0), "{name}");
    }
}

#[tokio::test]
async fn stop_ends_the_wait_for_a_database() {
    for name in SERVICES {
        let admin = ports::free(1);
        let stores = "database = \"postgres://ada:sesame@127.0.0.1:1/postern\"\n";
        let (folder, config) = (folder(), listening(0, admin, stores));
        let running = program(name, &folder, &config).start();
        let _ready = until_answered(&format!("http://127.0.0.1:{admin}/readyz")).await;
        let ended = running.stop("TERM").await;
        assert_eq!(ended.status, Some(0), "{name}: {}", ended.stderr);
        let said = &ended.stderr;
        assert!(said.contains("127.0.0.1:1"), "{said}");
        assert!(!said.contains("sesame"), "{said}");
    }
}

/// Returns a configuration with listeners at these ports.
fn listening(public: u16, admin: u16, more: &str) -> String {
    let address = |port| format!("{{ address = \"127.0.0.1:{port}\" }}");
    let (public, admin) = (address(public), address(admin));
    format!("listen = [{public}]\nadmin = {admin}\n{more}")
}

/// Returns the first response of a server that may not listen yet.
async fn until_answered(url: &str) -> Answer {
    let client = Client::new(url);
    answer(async || {
        let answer = client.get(url).try_send().await;
        answer.ok_or_else(|| format!("no answer from {url}"))
    })
    .await
}

#[tokio::test]
async fn unknown_flag_is_exit_status_64() {
    for name in PROGRAMS.into_iter().chain(["postern"]) {
        let folder = folder();
        let ended = Program::of_workspace(name, folder.path());
        let ended = ended.arg("--surprise").run().await;
        let said = &ended.stderr;
        assert_eq!(ended.status, Some(64), "{name}: {said}");
        assert!(said.contains("--surprise"), "{name}: {said}");
    }
}

/// SNS topics need an HTTPS client while the configuration is read, so that its failure is a
/// configuration error; other clients are built afterwards.
#[tokio::test]
async fn missing_ca_certificates_are_reported() {
    let upstream = format!("{LISTEN}database = 'sqlite://start.db'\n");
    let templates = "[templates]\nfolder = 'conf/templates'\n";
    let topics = "[webhooks.sns]\ntopics = ['arn:aws:sns:us-west-2:123456789012:mail-events']\n";
    for (name, settings, arguments, status) in [
        ("postern-auth", String::new(), &[][..], 69),
        ("postern-auth", String::new(), &["check"], 69),
        ("postern-notify", templates.to_owned(), &[], 69),
        ("postern-notify", format!("{templates}{topics}"), &[], 64),
    ] {
        let folder = folder();
        let started = program(name, &folder, &format!("{upstream}{settings}"));
        let started = started.env("SSL_CERT_FILE", "/dev/null");
        let started = started.env("SSL_CERT_DIR", "/dev/null");
        let ended = started.args(arguments.iter().copied()).run().await;
        let said = &ended.stderr;
        assert_eq!(ended.status, Some(status), "{name}: {said}");
        for part in ["No CA certificates", "SSL_CERT_FILE"] {
            assert!(said.contains(part), "{name}: {said}");
        }
        assert!(!said.contains("panicked"), "{name}: {said}");
    }
}
