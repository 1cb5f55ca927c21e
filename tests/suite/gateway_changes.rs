//! The gateway as a process under load, while its configuration and the process itself are exchanged: no request
//! fails.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use postern_tests::program::{Program, Running};
use postern_tests::recorder::Recorder;
use postern_tests::{Client, Pools, ports, raw};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinSet;

/// Files tried, good and bad in turn.
const RELOADS: u64 = 200;

/// How long something may take before the test fails rather than hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a new process takes over.
const TAKEOVERS: u32 = 20;

/// What a gateway needs to be started again and again.
struct Site {
    folder: TempDir,
    address: SocketAddr,
    admin: Client,
    pools: Pools,
    _upstream: Recorder,
    text: String,
}

/// Clients that ask until they are told that it is enough.
struct Load {
    done: Arc<AtomicBool>,
    served: Arc<AtomicU32>,
    lanes: JoinSet<()>,
}

// === impl Site ===

impl Site {
    async fn new() -> Self {
        let (folder, upstream) = (tempfile::tempdir().expect("a folder"), Recorder::start().await);
        let (port, admin) = (ports::free(1), ports::free(1));
        let text = format!(
            "[[listen]]\naddress = \"127.0.0.1:{port}\"\n[admin]\naddress = \"127.0.0.1:{admin}\"\n\
             [access_log]\nto = \"off\"\n[handover]\nsocket = \"{}/proxy.sock\"\n\
             [upstream.origin]\naddresses = [\"{}\"]\n\
             [[route]]\npath = \"/open\"\nmethods = [\"GET\"]\nupstream = \"origin\"\npolicy = \"public\"\n\
             [[route]]\npath = \"/closed\"\nmethods = [\"GET\"]\nupstream = \"origin\"\npolicy = {{ users = \"any\" }}\n",
            folder.path().display(),
            upstream.address(),
        );
        let site = Self {
            folder,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            admin: Client::new(&format!("http://127.0.0.1:{admin}")),
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

    /// Puts a file in the place of the other, whole.
    fn write(&self, text: &str) {
        let beside = self.folder.path().join("proxy.toml.new");
        std::fs::write(&beside, text).expect("the test's folder can be written");
        std::fs::rename(beside, self.file()).expect("the test's folder can be written");
    }

    fn program(&self) -> Program {
        let program = Program::of_workspace("postern-proxy", self.folder.path());
        let program = program.arg("--config").arg(self.file().display().to_string()).arg("run");
        self.pools.variables().iter().fold(program, |program, (name, value)| program.env(name, value))
    }

    /// Starts the first process; it is ready when this returns.
    async fn start(&self) -> Running {
        let mut running = self.program().start();
        running.until_ready().await;
        running
    }

    async fn load(&self) -> Load {
        let (_, token) = self.pools.user(&[]).await;
        let closed = format!("/closed HTTP/1.1\r\nAuthorization: Bearer {token}");
        Load::start(self.address, &["/open HTTP/1.1".to_owned(), closed])
    }

    /// Asks `/config/status` until it is so.
    async fn configured(&self, is: impl Fn(&Value) -> bool) {
        let asking = async {
            while !is(&self.admin.get("/config/status").send().await.expect(200).json()) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, asking).await.expect("the gateway takes the configuration");
    }
}

// === impl Load ===

impl Load {
    /// Two lanes for each request, each request on a connection of its own.
    fn start(address: SocketAddr, requests: &[String]) -> Self {
        let (done, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let mut lanes = JoinSet::new();
        for request in requests.iter().chain(requests) {
            let (done, served) = (Arc::clone(&done), Arc::clone(&served));
            let request = format!("GET {request}\r\nHost: gate\r\nConnection: close\r\n\r\n");
            lanes.spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    let _ = raw::send(address, request.as_bytes()).await.expect(200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Self { done, served, lanes }
    }

    /// Waits until so many more have been served: the change is really made under load.
    async fn goes_on(&self, more: u32) {
        let before = self.served.load(Ordering::Relaxed);
        let serving = async {
            while self.served.load(Ordering::Relaxed) < before + more {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, serving).await.expect("requests are served");
    }

    /// How many were served. A request that failed has ended its lane, and is told here.
    async fn finish(mut self) -> u32 {
        self.done.store(true, Ordering::Relaxed);
        while let Some(lane) = self.lanes.join_next().await {
            lane.expect("no request fails");
        }
        self.served.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_reloads_good_and_bad_fail_no_request() {
    let site = Site::new().await;
    let running = site.start().await;
    let load = site.load().await;
    let bad = [
        "[[route]]\n",
        "no TOML at all [",
        "[limits]\nhead_timeut = \"1s\"\n",
        "[[test]]\nrequest = \"GET /open\"\ndecision = \"not_found\"\n",
    ];
    let mut version = 1;
    for number in 0..RELOADS {
        if number % 2 == 0 {
            version += 1;
            site.write(&format!("{}response_headers = {{ X-Version = \"{version}\" }}\n", site.text));
            running.signal("HUP").await;
            site.configured(|status| status["version"] == version && status["lastError"].is_null()).await;
        } else {
            site.write(&format!("{}\n{}", site.text, bad[usize::try_from(number / 2 % 4).expect("small")]));
            running.signal("HUP").await;
            site.configured(|status| !status["lastError"].is_null()).await;
        }
    }
    load.goes_on(10).await;
    let served = load.finish().await;
    postern_tests::note(&format!(
        "gateway: {RELOADS} reloads under load, {served} requests served, none failed"
    ));
    let (_, token) = site.pools.user(&[]).await;
    let answer =
        Client::new(&format!("http://{}", site.address)).with_token(&token).get("/closed").send().await;
    assert_eq!(answer.expect(200).header("x-version"), version.to_string(), "the last good one is live");
    assert_eq!(running.stop("TERM").await.status, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_processes_take_over_from_one_another_and_no_request_fails() {
    let site = Site::new().await;
    let mut running = site.start().await;
    let load = site.load().await;
    for _ in 0..TAKEOVERS {
        load.goes_on(10).await;
        let mut next = site.program().arg("--take-over").start();
        next.until_ready().await;
        let ended = running.wait().await;
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        running = next;
    }
    load.goes_on(10).await;
    let served = load.finish().await;
    postern_tests::note(&format!(
        "gateway: {TAKEOVERS} take-overs under load, {served} requests served, none failed"
    ));
    assert_eq!(running.stop("TERM").await.status, Some(0));
}

#[tokio::test]
async fn an_access_log_that_was_moved_is_opened_anew_on_a_signal() {
    let site = Site::new().await;
    let (log, moved) = (site.folder.path().join("access.log"), site.folder.path().join("access.log.1"));
    site.write(&site.text.replace("\"off\"", &format!("\"{}\"", log.display())));
    let running = site.start().await;
    let ask = async || raw::send(site.address, b"GET /open HTTP/1.1\r\nHost: gate\r\n\r\n").await.expect(200);
    let _ = ask().await;
    std::fs::rename(&log, &moved).expect("moved");
    running.signal("USR1").await;
    while !log.exists() {
        tokio::task::yield_now().await;
    }
    let _ = ask().await;
    assert_eq!(running.stop("TERM").await.status, Some(0));
    let lines = |path| std::fs::read_to_string(path).expect("a log").lines().count();
    assert_eq!((lines(moved), lines(log)), (1, 1), "nothing is lost and nothing is said twice");
}
