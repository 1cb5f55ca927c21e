//! The gateway as a process under load during reloads, hot restarts and restarts: no request fails,
//! whether its client opens a connection per request, keeps one, or uses HTTP/2.
//! `POSTERN_TEST_RELOADS` (default 100), `POSTERN_TEST_TAKEOVERS` and `POSTERN_TEST_RESTARTS` (8
//! each) set the repetitions; long runs use the same tests.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use postern_core::config::Env;
use postern_harness::Origin;
use postern_harness::load::{Kind, Load, Target};
use postern_harness::process::{Program, Running};
use postern_harness::wait::{text_with, until};
use postern_harness::{Client, Pools, RawClient, ports};
use rustls::RootCertStore;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Timeout of each step, after which the test fails.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

const OPEN: &[u8] = b"GET /open HTTP/1.1\r\nHost: gate\r\n\r\n";
const READY: &[u8] = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Configuration and environment of a gateway.
struct Site {
    folder: TempDir,
    plain: SocketAddr,
    encrypted: SocketAddr,
    authority: RootCertStore,
    admin: Client,
    pools: Pools,
    _upstream: Origin,
    text: String,
}

/// Returns the number of repetitions, which a variable may override.
fn times(variable: &str, default: u32) -> u32 {
    let env = Env::of_process();
    let times = env
        .get(variable)
        .map(|times| times.parse().expect("a number"));
    times.unwrap_or(default)
}

impl Site {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let upstream = Origin::start().await;
        let ports = ports::free(3);
        let [plain, encrypted, admin] =
            [0, 1, 2].map(|number| SocketAddr::from(([127, 0, 0, 1], ports + number)));
        let text = format!(
            "[[listen]]\naddress = \"{plain}\"\n\
             [[listen]]\naddress = \"{encrypted}\"\n\
             [listen.tls]\ncertificate = \"{0}/server.pem\"\nkey = \"{0}/server.key\"\n\
             [admin]\naddress = \"{admin}\"\n\
             [access_log]\nto = \"off\"\n[handover]\nsocket = \"{0}/run/proxy.sock\"\n\
             [upstream.origin]\naddresses = [\"{1}\"]\n\
             [[route]]\npath = \"/open\"\nmethods = [\"GET\"]\nupstream = \"origin\"\npolicy = \"public\"\n\
             [[route]]\npath = \"/closed\"\nmethods = [\"GET\"]\nupstream = \"origin\"\npolicy = {{ users = \"any\" }}\n",
            folder.path().display(),
            upstream.address(),
        );
        let site = Self {
            authority: certify(&folder),
            folder,
            plain,
            encrypted,
            admin: Client::new(&format!("http://{admin}")),
            pools: Pools::start().await,
            _upstream: upstream,
            text,
        };
        site.write(&site.text);
        site
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("proxy.toml")
    }

    /// Replaces a file atomically.
    fn write(&self, text: &str) {
        let beside = self.folder.path().join("proxy.toml.new");
        std::fs::write(&beside, text).expect("the test's folder can be written");
        std::fs::rename(beside, self.file()).expect("the test's folder can be written");
    }

    fn program(&self) -> Program {
        let program = Program::of_workspace("postern-proxy", self.folder.path());
        let file = self.file().display().to_string();
        let program = program.args(["--config", &file, "run"]);
        program.envs(self.pools.variables())
    }

    /// Opens the two listening sockets, as a service manager does.
    fn sockets(&self) -> [Arc<TcpListener>; 2] {
        [self.encrypted, self.plain]
            .map(|address| Arc::new(TcpListener::bind(address).expect("a free port")))
    }

    async fn load(&self) -> Load {
        let (_, token) = self.pools.user(&[]).await;
        let authorization = ("authorization", format!("Bearer {token}"));
        Load::start(Target {
            plain: self.plain,
            tls: (self.encrypted, self.authority.clone()),
            requests: vec![("/open", Vec::new()), ("/closed", vec![authorization])],
        })
    }

    async fn config_status(&self) -> Value {
        self.admin.read("/config/status").await
    }

    /// Polls `/config/status` until the condition holds.
    async fn configured(&self, is: impl Fn(&Value) -> bool) {
        let configured = async || is(&self.config_status().await);
        until("the configuration is judged", configured).await;
    }
}

/// Creates a certificate for `localhost` and returns the trust store.
fn certify(folder: &TempDir) -> RootCertStore {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    for (name, text) in [
        ("server.pem", made.cert.pem()),
        ("server.key", made.signing_key.serialize_pem()),
    ] {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    let mut authority = RootCertStore::empty();
    let added = authority.add(made.cert.der().clone());
    added.expect("an authority");
    authority
}

/// Starts a program and waits until it is ready.
async fn ready(program: &Program) -> Running {
    let mut running = program.start();
    running.until_ready().await;
    running
}

/// Ends the load and reports it. Fails if the server asked clients with kept connections to
/// close them fewer than `min_close_requests` times, or at all for `None`.
async fn finish(load: Load, done: &str, min_close_requests: Option<u32>) {
    let counts = load.finish().await;
    postern_harness::note(&format!(
        "gateway: {done} under load, no request failed; requests and close requests: {counts:?}"
    ));
    for (kind, _, count) in counts {
        let is_right = match min_close_requests {
            Some(min) => kind == Kind::NewConnection || count >= min,
            None => count == 0,
        };
        assert!(is_right, "{kind:?}: asked to close {count} times");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_good_and_bad_fail_no_request() {
    let site = Site::new().await;
    let running = ready(&site.program()).await;
    let mut load = site.load().await;
    let reloads = times("POSTERN_TEST_RELOADS", 100);
    let bad = [
        "[[route]]\n",
        "no TOML at all [",
        "[limits]\nhead_timeut = \"1s\"\n",
        "[[test]]\nrequest = \"GET /open\"\ndecision = \"not_found\"\n",
    ];
    let mut version = 1;
    for number in 0..reloads {
        if number % 2 == 0 {
            version += 1;
            // A poll may activate the file just before the signal does, so that one file counts
            // as two versions.
            let before = site.config_status().await["hash"].clone();
            let set = format!("{{ set = {{ X-Version = \"{version}\" }} }}");
            site.write(&format!("{}response_headers = {set}\n", site.text));
            running.signal("HUP").await;
            let is_new = |status: &Value| status["hash"] != before && status["lastError"].is_null();
            site.configured(is_new).await;
        } else {
            let bad = bad[usize::try_from(number / 2 % 4).expect("small")];
            site.write(&format!("{}\n{bad}", site.text));
            running.signal("HUP").await;
            let is_rejected = |status: &Value| !status["lastError"].is_null();
            site.configured(is_rejected).await;
        }
    }
    load.wait_for_served(10).await;
    finish(load, &format!("{reloads} reloads"), None).await;
    let (_, token) = site.pools.user(&[]).await;
    let client = Client::new(&format!("http://{}", site.plain)).with_token(&token);
    let live = client.fetch("/closed", 200).await.header("x-version");
    assert_eq!(live, version.to_string(), "the last valid configuration");
    assert_eq!(running.stop("TERM").await.status, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_restarts_fail_no_request() {
    let site = Site::new().await;
    let mut running = ready(&site.program()).await;
    let mut load = site.load().await;
    let takeovers = times("POSTERN_TEST_TAKEOVERS", 8);
    let probing = probe(site.admin.address());
    for _ in 0..takeovers {
        load.wait_for_served(10).await;
        let next = ready(&site.program().arg("--take-over")).await;
        let ended = running.wait().await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        let notifications = ended.notifications.concat();
        assert!(!notifications.contains("STOPPING=1"), "{notifications}");
        running = next;
    }
    load.wait_for_served(10).await;
    assert!(!probing.is_finished(), "readiness turned red");
    probing.abort();
    finish(load, &format!("{takeovers} take-overs"), Some(takeovers)).await;
    let ended = running.stop("TERM").await;
    assert_eq!(ended.status, Some(0));
    let notifications = ended.notifications.concat();
    assert!(notifications.contains("STOPPING=1"), "{notifications}");
}

#[tokio::test]
async fn draining_process_no_longer_notifies_service_manager() {
    let site = Site::new().await;
    site.write(&format!("{}[stop]\nlinger = \"20s\"\n", site.text));
    let old = ready(&site.program()).await;
    let mut busy = TcpStream::connect(site.plain).await.expect("connected");
    let idle = TcpStream::connect(site.plain).await.expect("connected");
    let new = ready(&site.program().arg("--take-over")).await;
    // Clients are asked to close connections only after the takeover is confirmed.
    let mut told = String::new();
    while !told.contains("onnection: close") {
        busy.write_all(OPEN).await.expect("written");
        let mut answer = [0; 4096];
        let read = tokio::time::timeout(STEP_TIMEOUT, busy.read(&mut answer));
        let length = read.await.expect("in time").expect("an answer");
        told = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert!(told.starts_with("HTTP/1.1 200 "), "{told:?}");
    }
    old.signal("TERM").await;
    drop(idle);
    let ended = old.wait().await;
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    // It is not the main process any more.
    assert_eq!(ended.notifications.concat(), "");
    assert_eq!(new.stop("TERM").await.status, Some(0));
}

#[tokio::test]
async fn starting_process_that_waits_for_keys_stops_at_once() {
    let site = Site::new().await;
    let old = ready(&site.program()).await;
    let endpoint = "AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER";
    let successor = site.program().arg("--take-over");
    let new = successor.env(endpoint, "http://127.0.0.1:1").start();
    // The successor looks for keys.
    text_with("JWKS refresh failed", async || new.log()).await;
    let ended = new.stop("TERM").await;
    assert_eq!(ended.status, Some(69));
    assert_eq!(ended.notifications.concat(), "");
    // The old one has served on.
    let _ = RawClient::send(site.plain, OPEN).await.expect(200);
    assert_eq!(old.stop("TERM").await.status, Some(0));
}

/// Polls the readiness as a load balancer does; ends when it fails.
fn probe(admin: SocketAddr) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let _ = RawClient::send(admin, READY).await.expect(200);
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn socket_activation_restarts_fail_no_request() {
    let site = Site::new().await;
    let sockets = site.sockets();
    let program = site.program().passing(&sockets);
    let mut running = ready(&program).await;
    let mut load = site.load().await;
    let restarts = times("POSTERN_TEST_RESTARTS", 8);
    for _ in 0..restarts {
        load.wait_for_served(10).await;
        let ended = running.stop("TERM").await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        running = ready(&program).await;
    }
    load.wait_for_served(10).await;
    finish(load, &format!("{restarts} restarts"), Some(restarts)).await;
    assert_eq!(running.stop("TERM").await.status, Some(0));
}

#[tokio::test]
async fn unconfigured_passed_socket_is_rejected() {
    let site = Site::new().await;
    let stranger = Arc::new(TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let address = stranger.local_addr().expect("the socket is bound");
    let ended = site.program().passing(&[stranger]).start().wait().await;
    let lines = ended.expect(64, 1);
    assert!(lines[0].contains(&address.to_string()), "{lines:?}");
    let listening = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listening.local_addr().expect("the socket is bound");
    let connected = std::net::TcpStream::connect(address).expect("connected");
    let no_listener = TcpListener::from(std::os::fd::OwnedFd::from(connected));
    let program = site.program().passing(&[Arc::new(no_listener)]);
    let ended = program.start().wait().await;
    let lines = ended.expect(64, 1);
    assert!(lines[0].contains("socket 0 of LISTEN_FDS"), "{lines:?}");
}

#[tokio::test]
async fn moved_access_log_is_reopened_on_a_signal() {
    let site = Site::new().await;
    let log = site.folder.path().join("access.log");
    let moved = log.with_extension("log.1");
    let file = format!("\"{}\"", log.display());
    site.write(&site.text.replace("\"off\"", &file));
    let running = ready(&site.program()).await;
    let ask = async || RawClient::send(site.plain, OPEN).await.expect(200);
    let _ = ask().await;
    std::fs::rename(&log, &moved).expect("the file is renamed");
    running.signal("USR1").await;
    until("the log is opened again", async || log.exists()).await;
    let _ = ask().await;
    assert_eq!(running.stop("TERM").await.status, Some(0));
    // Each request is logged exactly once.
    for file in [moved, log] {
        let text = std::fs::read_to_string(file).expect("a log");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
