//! The gateway with names in `/etc/hosts`: changes and outages of the resolver.
//!
//! The gateway has files of its own in a mount namespace, so that the tests change no file of the
//! machine. Its name server is a port without a listener: what the hosts file lacks is not found.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use postern_harness::process::{Program, Running};
use postern_harness::wait::until;
use postern_harness::{BrokenOrigin, Client, Pools, ports};
use serde_json::Value;
use tempfile::TempDir;

/// The name that the tests look up.
pub(crate) const NAME: &str = "actor.internal";

/// Executes a program with other files of the resolver: hosts, then name servers.
const WITH_FILES: &str = "mount --bind \"$1\" /etc/hosts && mount --bind \"$2\" /etc/resolv.conf && \
                          shift 2 && exec \"$@\"";

/// The files of the resolver of a program.
pub(crate) struct ResolverFiles(TempDir);

/// A gateway whose upstream is a name, and its admin listener.
struct Gateway {
    client: Client,
    admin: Client,
    running: Running,
    _pools: Pools,
    _folder: TempDir,
}

impl ResolverFiles {
    pub(crate) fn new(hosts: &[&str]) -> Self {
        let files = Self(tempfile::tempdir().expect("a folder"));
        files.change(hosts);
        let servers = "nameserver 127.0.0.1\noptions attempts:1 timeout:1\n";
        std::fs::write(files.path("resolv.conf"), servers).expect("the folder can be written");
        files
    }

    /// Replaces the lines of the hosts file.
    pub(crate) fn change(&self, hosts: &[&str]) {
        let lines: String = hosts.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(self.path("hosts"), lines).expect("the folder can be written");
    }

    /// Returns a program of the workspace that uses the files.
    pub(crate) fn program(&self, name: &str, folder: &std::path::Path) -> Program {
        let files = [
            self.path("hosts"),
            self.path("resolv.conf"),
            Program::path_of_workspace(name),
        ];
        let program = Program::at("/usr/bin/unshare".into(), folder);
        program
            .args(["--map-root-user", "--mount", "sh", "-c", WITH_FILES, "sh"])
            .args(files.map(|file| file.display().to_string()))
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl Gateway {
    /// Starts a gateway with these settings of its upstream.
    async fn start(files: &ResolverFiles, upstream: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (pools, ports) = (Pools::start().await, ports::free(2));
        let text = format!(
            "[[listen]]\naddress = \"127.0.0.1:{ports}\"\n[admin]\naddress = \"127.0.0.1:{}\"\n\
             [access_log]\nto = \"off\"\n\
             [upstream.actor]\n{upstream}\n\
             [[route]]\npath = \"/open\"\nmethods = [\"GET\"]\nupstream = \"actor\"\npolicy = \"public\"\n",
            ports + 1,
        );
        let program = files.program("postern-proxy", folder.path());
        let program = program.envs(pools.variables()).config("proxy.toml", &text);
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
        self.admin.read("/upstreams/names").await["actor"][0].clone()
    }

    async fn until_name_is(&self, state: &str) {
        until(state, async || self.name().await["state"] == state).await;
    }

    /// Returns the number of log messages with this text.
    fn messages(&self, text: &str) -> usize {
        self.running.log().matches(text).count()
    }
}

const THREE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nthree";
const FOUR: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfour";
const SIX: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nsix";

/// Starts upstreams at 127.0.0.3, 127.0.0.4 and ::1, which answer with their text, and returns their
/// port.
async fn start_services() -> u16 {
    let port = ports::free(1);
    for (address, answer) in [("127.0.0.3", THREE), ("127.0.0.4", FOUR), ("::1", SIX)] {
        let address: IpAddr = address.parse().expect("an address");
        let address = SocketAddr::from((address, port));
        BrokenOrigin::Writes(answer).start_at(address).await;
    }
    port
}

#[tokio::test]
async fn addresses_of_a_name_are_used_and_kept_in_an_outage() {
    let port = start_services().await;
    let [three, four, six] =
        ["127.0.0.3", "127.0.0.4", "::1"].map(|address| format!("{address} {NAME}"));
    let files = ResolverFiles::new(&[&three, &six]);
    let upstream = format!("addresses = [\"{NAME}:{port}\"]\nload_balancing = \"round_robin\"");
    let gateway = Gateway::start(&files, &upstream).await;
    // A gateway that is ready has looked the names up.
    for text in ["three", "six", "three"] {
        assert_eq!(gateway.get().await, text, "both families");
    }
    files.change(&[&three]);
    until("one address", async || {
        gateway.get().await == "three" && gateway.get().await == "three"
    })
    .await;
    files.change(&[]);
    gateway.until_name_is("stale").await;
    assert_eq!(gateway.get().await, "three");
    until("the metric", async || {
        let metrics = gateway.admin.fetch("/metrics", 200).await.text();
        metrics.contains("postern_upstream_names{state=\"stale\",upstream=\"actor\"} 1")
    })
    .await;
    let logged = gateway.messages("upstream name not resolved");
    assert_eq!(logged, 1, "an outage is logged once");
    files.change(&[&four]);
    gateway.until_name_is("current").await;
    gateway.until_answered_by("four").await;
    assert_eq!(gateway.messages("upstream name resolved again"), 1);
}

#[tokio::test]
async fn unknown_name_makes_the_upstream_unavailable() {
    let port = start_services().await;
    let files = ResolverFiles::new(&[]);
    let gateway = Gateway::start(&files, &format!("addresses = [\"{NAME}:{port}\"]")).await;
    let name = gateway.name().await;
    assert_eq!(name["state"], "unresolved");
    assert!(name["error"].is_string(), "{name}");
    assert_eq!(gateway.get().await, "upstream_unavailable");
    files.change(&[&format!("127.0.0.3 {NAME}")]);
    gateway.until_answered_by("three").await;
    let address = format!("127.0.0.3:{port}");
    assert_eq!(gateway.name().await["addresses"][0], address);
}
