//! Startup and exit of the programs: configuration mistakes are listed completely, unavailable
//! dependencies in one line.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use postern_core::testing::required;
use postern_store::database::{testing::Relay, testing::postgres};
use postern_tests::config_file::{ConfigFile, conf};
use postern_tests::program::{Ended, Program};
use postern_tests::{Split, ports};
use tempfile::TempDir;
use tokio::net::TcpListener;

const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// A program with a configuration file, and variables that satisfy it.
struct Case {
    folder: TempDir,
    program: &'static str,
}

impl Case {
    fn of(program: &'static str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::os::unix::fs::symlink(conf(), folder.path().join("conf"))
            .expect("the folder can be written");
        Self { folder, program }
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("test.toml")
    }

    async fn run(&self, config: &str) -> Ended {
        self.program(config).run().await
    }

    fn program(&self, config: &str) -> Program {
        std::fs::write(self.config(), config).expect("the folder can be written");
        let program = Program::of_workspace(self.program, self.folder.path());
        let identity = [
            ("IDP_ACTOR_POOL_ID", "us-west-2_actor"),
            ("IDP_ACTOR_CLIENT_ID", "actor"),
            ("IDP_SERVICE_POOL_ID", "us-west-2_service"),
            ("IDP_SERVICE_CLIENT_ID", "service"),
            ("IDP_SERVICE_ACCOUNT_USERNAME", "test"),
            ("IDP_SERVICE_ACCOUNT_PASSWORD", "test"),
        ];
        let program = identity
            .into_iter()
            .fold(program, |program, (name, value)| program.env(name, value));
        program.arg("--config").arg("test.toml")
    }

    /// Asserts that the configuration is rejected with exactly these mistakes: line and key.
    #[track_caller]
    fn assert_mistakes(&self, ended: &Ended, expected: &[(usize, &str)]) {
        let lines = ended.expect(64, expected.len());
        for (line, key) in expected {
            let beginning = format!("test.toml:{line}: {key}: ");
            assert!(
                lines.iter().any(|line| line.starts_with(&beginning)),
                "no {beginning:?} in {lines:#?}"
            );
        }
    }
}

#[tokio::test]
async fn auth_lists_every_configuration_mistake() {
    let case = Case::of("postern-auth");
    let config = "listen = [{ address = \"127.0.0.1:99999\" }]\ndatabas = \"sqlite://x\"\ncache = 7\n\n[audit]\nretention = \"soon\"\n";
    let ended = case.run(config).await;
    case.assert_mistakes(
        &ended,
        &[
            (1, "listen.0.address"),
            (2, "databas"),
            (3, "cache"),
            (6, "audit.retention"),
        ],
    );
}

#[tokio::test]
async fn notify_lists_every_configuration_mistake() {
    let case = Case::of("postern-notify");
    let ended = case
        .run("listen = [{ address = \"here\" }]\ndatabas = \"sqlite://x\"\ncache = 7\n")
        .await;
    case.assert_mistakes(
        &ended,
        &[(1, "listen.0.address"), (2, "databas"), (3, "cache")],
    );
}

#[tokio::test]
async fn gateway_lists_every_configuration_mistake() {
    let case = Case::of("postern-proxy");
    let upstream = "[upstream.a]\naddresses = [\"nowhere\"]\n\n";
    let route = "[[route]]\nname = \"open\"\npath = \"x\"\nupstream = \"b\"\n";
    let ended = case
        .run(&format!(
            "workers = 0\nadmin = \"here\"\nlistne = 1\n\n{upstream}{route}"
        ))
        .await;
    let mistakes = [
        "1: at least one [[listen]]",
        "1: workers: ",
        "2: admin: ",
        "3: listne: ",
        "6: upstream.a.addresses.0: ",
        "8: route.0.methods: ",
        "8: route.0.policy: ",
        "10: route.0.path: ",
        "11: route.0.upstream: ",
    ];
    for (line, mistake) in ended.expect(64, mistakes.len()).iter().zip(mistakes) {
        assert!(
            line.starts_with(&format!("test.toml:{mistake}")),
            "{line} is not {mistake:?}"
        );
    }
}

#[tokio::test]
async fn invalid_toml_is_reported_with_its_line() {
    for program in ["postern-auth", "postern-notify", "postern-proxy"] {
        let case = Case::of(program);
        let ended = case.run("# fine\nlisten = \n").await;
        let lines = ended.expect(64, 1);
        assert!(
            lines[0].starts_with("test.toml:2: "),
            "{program}: {lines:?}"
        );
    }
}

#[tokio::test]
async fn missing_configuration_file_is_one_line() {
    for program in ["postern-auth", "postern-notify", "postern-proxy"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ended = Program::of_workspace(program, folder.path())
            .arg("--config")
            .arg("none.toml")
            .run()
            .await;
        let lines = ended.expect(64, 1);
        assert!(lines[0].starts_with("none.toml: "), "{program}: {lines:?}");
    }
}

#[tokio::test]
async fn port_in_use_is_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("the loopback has a free port");
    let address = taken.local_addr().expect("a bound socket has an address");
    let upstream = format!(
        "listen = [{{ address = \"{address}\" }}]\nadmin = {{ address = \"127.0.0.1:0\" }}\n"
    );
    let gateway =
        format!("[admin]\naddress = \"127.0.0.1:0\"\n[[listen]]\naddress = \"{address}\"\n");
    for (program, config) in [
        ("postern-auth", &upstream),
        ("postern-notify", &upstream),
        ("postern-proxy", &gateway),
    ] {
        let lines = Case::of(program).run(config).await;
        let lines = lines.expect(69, 1);
        assert!(
            lines[0].contains(&address.to_string()),
            "{program}: {lines:?}"
        );
    }
}

#[tokio::test]
async fn rejecting_database_is_one_line_without_its_password() {
    let mut url = url::Url::parse(&required("POSTERN_TEST_POSTGRES")).expect("a URL");
    url.set_path("nowhere");
    url.set_password(Some("sesame")).expect("it has a host");
    for program in ["postern-auth", "postern-notify"] {
        let stores = format!("database = \"{url}\"\n");
        let ended = Case::of(program)
            .run(&format!(
                "listen = [{{ address = \"127.0.0.1:0\" }}]\nadmin = {{ address = \"127.0.0.1:0\" }}\n{stores}"
            ))
            .await;
        let lines = ended.expect(69, 1);
        assert!(
            lines[0].contains("\"nowhere\" does not exist"),
            "{program}: {lines:?}"
        );
        assert!(!lines[0].contains("sesame"), "{program}: {lines:?}");
    }
}

#[tokio::test]
async fn unavailable_database_is_waited_for() {
    let database = postgres().await;
    let (relay, url) = Relay::start(&database.url).await;
    for program in ["postern-auth", "postern-notify"] {
        relay.stop_forwarding();
        let (case, public, admin) = (Case::of(program), ports::free(1), ports::free(1));
        let url = url.replace("postern@", "postern:sesame@");
        let templates = if program == "postern-notify" {
            "[templates]\nfolder = \"conf/templates\"\n"
        } else {
            ""
        };
        let config = format!(
            "listen = [{{ address = \"127.0.0.1:{public}\" }}]\nadmin = {{ address = \"127.0.0.1:{admin}\" }}\ndatabase = \"{url}\"\n{templates}"
        );
        let running = case.program(&config).start();
        // The servers listen only after the first connection attempt.
        let answer = until_answered(&format!("http://127.0.0.1:{admin}/readyz")).await;
        assert_eq!(answer.status(), 503, "{program}");
        let reason = answer.text().await.expect("the body is UTF-8");
        assert!(
            reason.contains("is not available: no answer within"),
            "{program}: {reason}"
        );
        let answer = until_answered(&format!("http://127.0.0.1:{public}/notifications")).await;
        assert_eq!(answer.status(), 503, "{program}");
        assert!(
            answer.headers().contains_key("retry-after"),
            "{program}: {:?}",
            answer.headers()
        );
        relay.recover();
        let served = tokio::time::timeout(STEP_TIMEOUT, async {
            while until_answered(&format!("http://127.0.0.1:{public}/notifications/x"))
                .await
                .status()
                == 503
            {
                tokio::task::yield_now().await;
            }
        });
        served
            .await
            .unwrap_or_else(|_| panic!("{program} does not begin: {}", running.log()));
        assert!(!running.log().contains("sesame"), "{}", running.log());
        assert_eq!(running.stop("TERM").await.status, Some(0), "{program}");
    }
}

#[tokio::test]
async fn stop_ends_the_wait_for_a_database() {
    for program in ["postern-auth", "postern-notify"] {
        let admin = ports::free(1);
        let stores = "database = \"postgres://ada:sesame@127.0.0.1:1/postern\"\n";
        let case = Case::of(program);
        let config = format!(
            "listen = [{{ address = \"127.0.0.1:0\" }}]\nadmin = {{ address = \"127.0.0.1:{admin}\" }}\n{stores}"
        );
        let running = case.program(&config).start();
        until_answered(&format!("http://127.0.0.1:{admin}/readyz")).await;
        let ended = running.stop("TERM").await;
        assert_eq!(ended.status, Some(0), "{program}: {}", ended.stderr);
        assert!(
            ended.stderr.contains("127.0.0.1:1") && !ended.stderr.contains("sesame"),
            "{}",
            ended.stderr
        );
    }
}

/// Returns the first response of a server that may not listen yet.
async fn until_answered(url: &str) -> reqwest::Response {
    let mut again = tokio::time::interval(Duration::from_millis(20));
    let asked = tokio::time::timeout(STEP_TIMEOUT, async {
        loop {
            again.tick().await;
            if let Ok(answer) = reqwest::get(url).await {
                return answer;
            }
        }
    });
    asked
        .await
        .unwrap_or_else(|_| panic!("no answer from {url}"))
}

#[tokio::test]
async fn unwritable_folder_is_one_line() {
    for program in ["postern-auth", "postern-notify"] {
        let case = Case::of(program);
        // A file in place of the folder, which fails for root as well.
        std::fs::write(case.folder.path().join("file"), "").expect("the folder can be written");
        let stores = "database = \"sqlite://file/below.db\"\n";
        let ended = case
            .run(&format!(
                "listen = [{{ address = \"127.0.0.1:0\" }}]\nadmin = {{ address = \"127.0.0.1:0\" }}\n{stores}"
            ))
            .await;
        let lines = ended.expect(69, 1);
        assert!(
            lines[0].contains("file/below.db") || lines[0].contains("file:"),
            "{program}: {lines:?}"
        );
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("file"), "").expect("the folder can be written");
    let postern = Program::of_workspace("postern", folder.path())
        .arg("--port")
        .arg("0");
    let ended = postern.arg("--data-dir").arg("file/below").run().await;
    assert!(ended.expect(69, 1)[0].contains("file/below"));
}

#[tokio::test]
async fn unknown_flag_is_exit_status_64() {
    for program in ["postern-auth", "postern-notify", "postern-proxy", "postern"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let ended = Program::of_workspace(program, folder.path())
            .arg("--surprise")
            .run()
            .await;
        assert_eq!(ended.status, Some(64), "{program}: {}", ended.stderr);
        assert!(
            ended.stderr.contains("--surprise"),
            "{program}: {}",
            ended.stderr
        );
    }
}

/// SNS topics need an HTTPS client while the configuration is read, so that its failure is a
/// configuration error; other clients are built afterwards.
#[tokio::test]
async fn missing_ca_certificates_are_reported() {
    let upstream = "listen = [{ address = '127.0.0.1:0' }]\nadmin = { address = '127.0.0.1:0' }\n\
                    database = 'sqlite://start.db'\n";
    let templates = "[templates]\nfolder = 'conf/templates'\n";
    let topics = "[webhooks.sns]\ntopics = ['arn:aws:sns:us-west-2:123456789012:mail-events']\n";
    for (program, settings, arguments, status) in [
        ("postern-auth", String::new(), &[][..], 69),
        ("postern-auth", String::new(), &["check"], 69),
        ("postern-notify", templates.to_owned(), &[], 69),
        ("postern-notify", format!("{templates}{topics}"), &[], 64),
    ] {
        let case = Case::of(program);
        let started = case.program(&format!("{upstream}{settings}"));
        let started = started.env("SSL_CERT_FILE", "/dev/null");
        let started = started.env("SSL_CERT_DIR", "/dev/null");
        let started = arguments.iter().fold(started, |all, it| all.arg(*it));
        let ended = started.run().await;
        let said = &ended.stderr;
        assert_eq!(ended.status, Some(status), "{program}: {said}");
        assert!(
            said.contains("No CA certificates") && said.contains("SSL_CERT_FILE"),
            "{program}: {said}"
        );
        assert!(!said.contains("panicked"), "{program}: {said}");
    }
}

/// The shipped configuration and all dependencies: standalone, and the four programs as processes.
#[tokio::test]
async fn normal_start_logs_no_warning() {
    let changes = postern_tests::console::changes();
    let token = changes.admin_token.clone().expect("a secret");
    let split = Split::start_with(changes).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let standalone = Program::of_workspace("postern", folder.path());
    let standalone = standalone
        .arg("--port")
        .arg("0")
        .arg("--data-dir")
        .arg("data");
    let mut standalone = standalone.start();
    let _address = standalone.wait_for_line("Postern is ready").await;
    let [(_, auth), (_, notify), (_, gateway)] = split.admin_ports();
    let port = ports::free(1);
    let console = ConfigFile::of_repository("console.toml")
        .replace_port(8512, port)
        .replace_port(8509, gateway)
        .replace_port(8510, auth)
        .replace_port(8511, notify);
    std::fs::write(folder.path().join("console.toml"), console.text()).expect("written");
    let console = Program::of_workspace("postern-console", folder.path());
    let console = console.arg("--config").arg("console.toml");
    let names = [
        "GATEWAY_ADMIN_TOKEN",
        "AUTH_ADMIN_TOKEN",
        "NOTIFY_ADMIN_TOKEN",
    ];
    let console = names
        .iter()
        .fold(console, |console, name| console.env(*name, &token));
    let console = console.start();
    // Probes and the first samples, which have an interval of 2 and 5 s.
    let probed = Instant::now() + Duration::from_secs(6);
    while Instant::now() < probed {
        let ready = reqwest::get(format!("http://127.0.0.1:{gateway}/readyz")).await;
        assert_eq!(ready.expect("an answer").status(), 200);
    }
    let log = [split.log(), standalone.log(), console.log()].concat();
    assert!(log.contains("\"postern-console\""), "{log}");
    let is_warning = |line: &&str| line.contains("WARN") || line.contains("ERROR");
    let warnings: Vec<&str> = log.lines().filter(is_warning).collect();
    assert!(warnings.is_empty(), "{warnings:#?}");
    for process in [standalone, console] {
        assert_eq!(process.stop("TERM").await.status, Some(0));
    }
    split.stop().await;
}
