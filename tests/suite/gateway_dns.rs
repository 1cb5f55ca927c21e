//! The gateway with a DNS server: expiry of answers, SRV records, and outages of the server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use postern_tests::program::{Program, Running};
use postern_tests::{Client, Pools, ports};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Timeout of each step, after which the test fails.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// The name that the tests look up.
pub(crate) const NAME: &str = "actor.internal";

/// A DNS server for the zone `internal`.
pub(crate) struct DnsServer {
    folder: TempDir,
    port: u16,
    ttl_s: u32,
    running: Option<Running>,
}

/// A gateway whose upstream is a name, and its admin listener.
struct Gateway {
    client: Client,
    admin: Client,
    running: Running,
    _pools: Pools,
    _folder: TempDir,
}

/// An upstream that answers every request with a text. It refuses connections when dropped.
struct Service(JoinHandle<()>);

// === impl DnsServer ===

impl DnsServer {
    pub(crate) async fn start(ttl_s: u32, hosts: &[&str], records: &[&str]) -> Self {
        let mut server = Self {
            folder: readable_folder(),
            port: ports::free(1),
            ttl_s,
            running: None,
        };
        server.restart(hosts, records).await;
        server
    }

    /// Starts the server with these lines of its hosts file and these SRV records: name, target,
    /// port, priority and weight.
    async fn restart(&mut self, hosts: &[&str], records: &[&str]) {
        self.write_hosts(hosts);
        let program = Program::at(PathBuf::from("/usr/sbin/dnsmasq"), self.folder.path());
        let fixed = [
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--pid-file=",
            "--listen-address=127.0.0.1",
            "--bind-interfaces",
            "--no-resolv",
            "--no-hosts",
            "--local=/internal/",
            "--log-facility=-",
        ];
        let program = fixed.into_iter().fold(program, Program::arg);
        let program = program
            .arg(format!("--port={}", self.port))
            .arg(format!("--local-ttl={}", self.ttl_s))
            .arg(format!("--addn-hosts={}", self.hosts_file().display()));
        let program = records.iter().fold(program, |program, record| {
            program.arg(format!("--srv-host={record}"))
        });
        self.running = Some(program.start());
        self.until_read(1).await;
    }

    /// Replaces the lines of its hosts file.
    pub(crate) async fn change(&self, hosts: &[&str]) {
        let before = self.reads();
        self.write_hosts(hosts);
        self.running().signal("HUP").await;
        self.until_read(before + 1).await;
    }

    /// Kills the server.
    async fn kill(&mut self) {
        self.running.take().expect("a running server").kill().await;
    }

    fn write_hosts(&self, hosts: &[&str]) {
        let lines: String = hosts.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(self.hosts_file(), lines).expect("the folder can be written");
        permit(&self.hosts_file(), 0o644);
    }

    fn hosts_file(&self) -> PathBuf {
        self.folder.path().join("hosts")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("a running server")
    }

    /// Returns how often the server has read its hosts file.
    fn reads(&self) -> usize {
        self.running().log().matches("/hosts - ").count()
    }

    async fn until_read(&self, times: usize) {
        until("the hosts file is read", async || self.reads() >= times).await;
    }
}

// === impl Gateway ===

impl Gateway {
    /// Starts a gateway with these settings of its upstream.
    async fn start(dns: &DnsServer, upstream: &str) -> Self {
        let (folder, pools, ports) = (
            tempfile::tempdir().expect("a folder"),
            Pools::start().await,
            ports::free(2),
        );
        let text = format!(
            "[[listen]]\naddress = \"127.0.0.1:{ports}\"\n[admin]\naddress = \"127.0.0.1:{}\"\n\
             [access_log]\nto = \"off\"\n[dns]\nservers = [\"127.0.0.1:{}\"]\ntimeout = \"500ms\"\n\
             [upstream.actor]\n{upstream}\n\
             [[route]]\npath = \"/open\"\nmethods = [\"GET\"]\nupstream = \"actor\"\npolicy = \"public\"\n",
            ports + 1,
            dns.port,
        );
        std::fs::write(folder.path().join("proxy.toml"), text).expect("the folder can be written");
        let program = Program::of_workspace("postern-proxy", folder.path());
        let program = program.arg("--config").arg("proxy.toml");
        let variables = pools.variables().iter();
        let program = variables.fold(program, |program, (name, value)| program.env(name, value));
        let checked = program.clone().arg("check").run().await;
        assert_eq!(checked.status, Some(0), "{}", checked.stderr);
        let mut running = program.arg("run").start();
        running.until_ready().await;
        Self {
            client: Client::new(&format!("http://127.0.0.1:{ports}")),
            admin: Client::new(&format!("http://127.0.0.1:{}", ports + 1)),
            running,
            _pools: pools,
            _folder: folder,
        }
    }

    /// Sends a request and returns the body of the response; its problem code if it is an error.
    async fn get(&self) -> String {
        let answer = self.client.get("/open").send().await;
        match answer.status.as_u16() {
            200 => answer.text(),
            _ => answer.string("/code"),
        }
    }

    async fn until_answered_by(&self, text: &str) {
        until(text, async || self.get().await == text).await;
    }

    /// Returns the status of the name of the upstream.
    async fn name(&self) -> Value {
        let names = self.admin.get("/upstreams/names").send().await;
        names.expect(200).json()["actor"][0].clone()
    }

    async fn until_name_is(&self, state: &str, error: Option<&str>) {
        until(state, async || {
            let name = self.name().await;
            name["state"] == state
                && error.is_none_or(|error| name["error"].to_string().contains(error))
        })
        .await;
    }

    /// Returns the number of log messages with this text.
    fn messages(&self, text: &str) -> usize {
        self.running.log().matches(text).count()
    }
}

// === impl Service ===

impl Service {
    async fn start(address: SocketAddr, text: &'static str) -> Self {
        let listener = TcpListener::bind(address).await.expect("a free port");
        Self(tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                    if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        break;
                    }
                }
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
                    text.len()
                );
                let _gone = stream.write_all(answer.as_bytes()).await;
            }
        }))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Polls until the condition is true.
async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(STEP_TIMEOUT, waiting).await;
    waited.unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// Returns a folder that the server can read, which does not run as root.
fn readable_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    permit(folder.path(), 0o755);
    folder
}

fn permit(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .expect("permissions of an own file can be set");
}

fn local(last: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, last], port))
}

#[tokio::test]
async fn changed_address_is_used_when_the_answer_expires() {
    const TTL: Duration = Duration::from_secs(6);
    let port = ports::free(1);
    let _services = (
        Service::start(local(3, port), "three").await,
        Service::start(local(4, port), "four").await,
    );
    let [three, four] = [3, 4].map(|last| format!("127.0.0.{last} {NAME}"));
    let dns = DnsServer::start(6, &[&three], &[]).await;
    let gateway = Gateway::start(&dns, &format!("addresses = [\"{NAME}:{port}\"]")).await;
    gateway.until_answered_by("three").await;
    dns.change(&[&four]).await;
    gateway.until_answered_by("four").await;
    let found = Instant::now();
    dns.change(&[&three]).await;
    gateway.until_answered_by("three").await;
    let waited = found.elapsed();
    // The answer was found up to a poll before `found`.
    assert!(waited > TTL - Duration::from_secs(2), "{waited:?}");
    assert!(waited < TTL * 2, "{waited:?}");
}

#[tokio::test]
async fn all_addresses_of_both_families_are_used() {
    let port = ports::free(1);
    let _services = (
        Service::start(local(3, port), "three").await,
        Service::start(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port)), "six").await,
    );
    let hosts = [format!("127.0.0.3 {NAME}"), format!("::1 {NAME}")];
    let dns = DnsServer::start(60, &hosts.each_ref().map(String::as_str), &[]).await;
    let upstream = format!("addresses = [\"{NAME}:{port}\"]\nload_balancing = \"round_robin\"");
    let gateway = Gateway::start(&dns, &upstream).await;
    // A gateway that is ready has looked the names up.
    for text in ["three", "six", "three"] {
        assert_eq!(gateway.get().await, text);
    }
}

#[tokio::test]
async fn srv_priorities_and_weights_are_honoured() {
    let [one, two, three] = [1, 2, 3].map(|_| ports::free(1));
    let often = Service::start(local(1, one), "often").await;
    let seldom = Service::start(local(1, two), "seldom").await;
    let _backup = Service::start(local(1, three), "backup").await;
    let records = [(one, 10, 30), (two, 10, 10), (three, 20, 0)].map(|(port, priority, weight)| {
        format!("_http._tcp.{NAME},host.internal,{port},{priority},{weight}")
    });
    let records = records.each_ref().map(String::as_str);
    let dns = DnsServer::start(60, &["127.0.0.1 host.internal"], &records).await;
    let upstream = format!(
        "addresses = [\"srv://_http._tcp.{NAME}\"]\nload_balancing = \"round_robin\"\n\
         [upstream.actor.outlier]\nfailures = 1\nejection = \"60s\"\npanic_percent = 100"
    );
    let gateway = Gateway::start(&dns, &upstream).await;
    gateway.until_name_is("current", None).await;
    let mut answers = Vec::new();
    for _ in 0..40 {
        answers.push(gateway.get().await);
    }
    let count = |text: &str| answers.iter().filter(|answer| *answer == text).count();
    assert_eq!(count("backup"), 0);
    // Three quarters; the order of a round contains the backup as well.
    assert!((28..=32).contains(&count("often")), "{answers:?}");
    assert_eq!(count("often") + count("seldom"), 40);
    drop(often);
    gateway.until_answered_by("seldom").await;
    drop(seldom);
    gateway.until_answered_by("backup").await;
}

#[tokio::test]
async fn last_answer_is_kept_through_outage_of_dns_server() {
    let port = ports::free(1);
    let _services = (
        Service::start(local(3, port), "three").await,
        Service::start(local(4, port), "four").await,
    );
    let three = format!("127.0.0.3 {NAME}");
    let mut dns = DnsServer::start(1, &[&three], &[]).await;
    let gateway = Gateway::start(&dns, &format!("addresses = [\"{NAME}:{port}\"]")).await;
    gateway.until_answered_by("three").await;
    dns.kill().await;
    gateway.until_name_is("stale", None).await;
    assert_eq!(gateway.get().await, "three");
    until("the metric", async || {
        let metrics = gateway.admin.get("/metrics").send().await.text();
        metrics.contains("postern_upstream_names{state=\"stale\",upstream=\"actor\"} 1")
    })
    .await;
    dns.restart(&[], &[]).await;
    gateway
        .until_name_is("stale", Some("the name does not exist"))
        .await;
    assert_eq!(gateway.get().await, "three");
    assert_eq!(
        gateway.messages("upstream name not resolved"),
        1,
        "an outage is logged once"
    );
    dns.change(&[&format!("127.0.0.4 {NAME}")]).await;
    gateway.until_name_is("current", None).await;
    gateway.until_answered_by("four").await;
    assert_eq!(gateway.messages("upstream name resolved again"), 1);
}

#[tokio::test]
async fn unknown_name_makes_the_upstream_unavailable() {
    let port = ports::free(1);
    let _service = Service::start(local(3, port), "three").await;
    let dns = DnsServer::start(60, &[], &[]).await;
    let gateway = Gateway::start(&dns, &format!("addresses = [\"{NAME}:{port}\"]")).await;
    let name = gateway.name().await;
    assert_eq!(name["state"], "unresolved");
    assert_eq!(name["error"], "the name does not exist");
    assert_eq!(gateway.get().await, "upstream_unavailable");
    dns.change(&[&format!("127.0.0.3 {NAME}")]).await;
    gateway.until_answered_by("three").await;
    assert_eq!(
        gateway.name().await["addresses"][0],
        format!("127.0.0.3:{port}")
    );
}
