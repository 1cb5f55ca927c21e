//! All processes of the installation, and the faults that are applied to them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::faults::{Fault, Process, REPLICAS, Server};
use super::haproxy::Haproxy;
use super::history::{Event, History};
use super::network::Network;
use super::node::Node;
use super::postgres::Postgres;
use super::redis_cluster::RedisCluster;
use crate::config_file::ConfigFile;
use crate::installation::standalone::Standalone;
use crate::installation::{self, with_identity};
use crate::paths::conf;
use crate::ports;
use crate::process::Program;

/// Notification channel that the recording provider serves.
const SMS_PROVIDER: &str =
    "name = \"sms-file\"\nchannel = \"sms\"\nkind = \"file\"\nfolder = \"var/sms\"\n";

/// Calls per second that the provider accepts from all replicas together. A burst therefore has to wait.
const PROVIDER_RATE: u32 = 40;

/// Time for which a killed process is not running.
const DOWN: Duration = Duration::from_millis(500);

/// Time in which a process notices that its clock has changed back.
const CLOCK_DELAY: Duration = Duration::from_secs(2);

/// The processes and their dependencies.
#[derive(Debug)]
pub(super) struct Cluster {
    /// Identity pools, social provider, and the actor and document services.
    pub(super) development: Standalone,
    pub(super) haproxy: Haproxy,
    nodes: BTreeMap<Process, Node>,
    postgres: Postgres,
    redis: RedisCluster,
    network: Option<Network>,
    own_disks: bool,
}

/// Ports of the listeners of all processes: public and admin.
type Ports = BTreeMap<Process, (u16, u16)>;

fn free_ports() -> Ports {
    let of = |number| {
        let (auth, notify) = (Process::Auth(number), Process::Notify(number));
        [Process::Gateway(number), auth, notify]
    };
    let processes = (0..REPLICAS).flat_map(of);
    processes
        .map(|process| (process, (ports::free(1), ports::free(1))))
        .collect()
}

impl Cluster {
    /// Starts everything below a folder and waits until it is ready. `provider` is the URL of the recording
    /// provider.
    pub(super) async fn start(folder: &Path, provider: &str) -> Self {
        let conf = conf().canonicalize().expect("the repository has conf/");
        let _ = std::fs::remove_file(folder.join("conf"));
        std::os::unix::fs::symlink(conf, folder.join("conf")).expect("the folder can be written");
        let network = Network::prepare().await;
        // File systems are mounted in a mount namespace that ends with this process.
        let own_disks = network.is_some() && is_root();
        let development = Box::pin(Standalone::start()).await;
        let postgres = Postgres::start(folder, &["auth", "notify"], own_disks).await;
        let redis = RedisCluster::start(folder).await;
        let ports = free_ports();
        let gateways = std::array::from_fn(|number| ports[&Process::Gateway(number)]);
        let haproxy = Haproxy::start(folder, gateways);
        let mut nodes = BTreeMap::new();
        for (process, (public, admin)) in &ports {
            let own = (*public, *admin);
            let stored = |file: ConfigFile, database: &str| {
                let file = file.set_text("database", &postgres.url(database));
                file.set_text("cache", &redis.url())
            };
            let file = match process {
                Process::Gateway(number) => gateway_config(&development, &ports, *number, folder),
                Process::Auth(_) => stored(auth_config(&development, own), "auth"),
                Process::Notify(_) => stored(notify_config(&development, own, provider), "notify"),
            };
            let node = node(*process, *public, &file, folder, &development);
            nodes.insert(*process, node);
        }
        // Services before gateways; the first replica of a service migrates the schema.
        for process in nodes.keys().rev().copied().collect::<Vec<_>>() {
            let node = nodes.get_mut(&process).expect("a node");
            node.process.restart().await;
        }
        Self {
            development,
            haproxy,
            nodes,
            postgres,
            redis,
            network,
            own_disks,
        }
    }

    /// Returns why faults of a kind cannot be made here.
    pub(super) fn obstacle(&self, kind: &str) -> Option<&'static str> {
        match kind {
            "partition" if self.network.is_none() => {
                Some("needs nftables in a network namespace (unshare --net)")
            }
            "full-disk" if !self.own_disks => Some("needs root in a mount namespace"),
            "clock-step" if self.nodes[&Process::Auth(0)].clock.is_none() => {
                Some("needs libfaketime")
            }
            _ => None,
        }
    }

    /// Applies a fault, heals it, and records it.
    pub(super) async fn apply(&mut self, fault: Fault, random: usize, history: &History) {
        let start_ms = history.now_ms();
        match fault {
            Fault::Kill(process) => {
                self.node(process).process.kill().await;
                tokio::time::sleep(DOWN).await;
                self.node(process).process.restart().await;
            }
            Fault::Restart(process) => {
                let node = self.node(process);
                let status = node.process.end().await.status;
                node.process.restart().await;
                let process = node.name.clone();
                history.record(start_ms, Event::Exit { process, status });
            }
            Fault::Suspend(process, time) => {
                self.node(process).process.running().signal("STOP").await;
                tokio::time::sleep(time).await;
                self.node(process).process.running().signal("CONT").await;
            }
            Fault::DatabaseFailover => self.postgres.fail_over().await,
            Fault::CacheFailover => self.redis.fail_over(random).await,
            Fault::CacheSwitchover => self.redis.switch_over(random).await,
            Fault::Partition(server, time) => self.partition(server, random, time).await,
            Fault::FullDisk(time) => {
                self.postgres.fill().await;
                tokio::time::sleep(time).await;
                self.postgres.free().await;
            }
            Fault::ClockStep(process, seconds, time) => {
                self.node(process).set_clock(seconds);
                if seconds.abs() >= 3600 {
                    self.node(process).process.kill().await;
                    self.node(process).process.restart().await;
                }
                tokio::time::sleep(time).await;
                self.node(process).set_clock(0);
                tokio::time::sleep(CLOCK_DELAY).await;
            }
            Fault::Reload(number) => self.reload(number),
        }
        let affects = fault.affected();
        let fault = fault.to_string();
        history.record(start_ms, Event::Fault { fault, affects });
    }

    async fn partition(&self, server: Server, random: usize, time: Duration) {
        let Some(network) = self.network else { return };
        let port = match server {
            Server::Process(process) => self.nodes[&process].port,
            Server::Database => self.postgres.primary_port(),
            Server::Cache => {
                let masters = self.redis.masters().await;
                masters[random % masters.len()]
            }
        };
        network.partition(port).await;
        tokio::time::sleep(time).await;
        network.restore().await;
        if server == Server::Cache {
            self.redis.until_complete().await;
        }
    }

    /// Changes a configuration without a consequence; the gateway reloads it.
    fn reload(&self, number: usize) {
        let file = &self.nodes[&Process::Gateway(number)].config;
        let text = std::fs::read_to_string(file).expect("the configuration");
        let new = file.with_extension("new");
        std::fs::write(&new, format!("{text}\n# reloaded")).expect("the folder can be written");
        std::fs::rename(&new, file).expect("the folder can be written");
    }

    fn node(&mut self, process: Process) -> &mut Node {
        self.nodes.get_mut(&process).expect("a node")
    }

    /// Stops all processes, gateways first.
    pub(super) async fn stop(mut self, history: &History) {
        for node in self.nodes.values_mut() {
            let start_ms = history.now_ms();
            let status = node.process.end().await.status;
            let process = node.name.clone();
            history.record(start_ms, Event::Exit { process, status });
        }
        self.postgres.stop().await;
        self.development.stop().await;
    }
}

fn is_root() -> bool {
    let owner =
        std::fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own));
    owner.is_ok_and(|uid| uid == 0)
}

/// Writes the configuration of a process and prepares it.
fn node(
    process: Process,
    port: u16,
    file: &ConfigFile,
    folder: &Path,
    development: &Standalone,
) -> Node {
    let name = process.to_string().replace(' ', "-");
    let (program, account) = match process {
        Process::Gateway(_) => ("postern-proxy", None),
        Process::Auth(_) => ("postern-auth", Some("auth")),
        Process::Notify(_) => ("postern-notify", Some("notify")),
    };
    let path = folder.join(format!("{name}.toml"));
    let program = Program::of_workspace(program, folder);
    let program = program.config(&format!("{name}.toml"), file.text());
    let program = with_identity(program, development, account, &[]);
    Node::new(name, port, path, program)
}

fn gateway_config(
    development: &Standalone,
    ports: &Ports,
    number: usize,
    folder: &Path,
) -> ConfigFile {
    let public = |of: fn(usize) -> Process| -> [u16; REPLICAS] {
        std::array::from_fn(|number| ports[&of(number)].0)
    };
    let (auth, notify) = (public(Process::Auth), public(Process::Notify));
    let own = installation::Ports {
        auth: auth[0],
        ..installation::Ports::of_service(ports[&Process::Gateway(number)], notify[0])
    };
    let log = folder.join(format!("access-{number}.log"));
    installation::proxy_config(development, own)
        .add_replica(auth[0], auth[2])
        .add_replica(auth[0], auth[1])
        .add_replica(notify[0], notify[2])
        .add_replica(notify[0], notify[1])
        // All clients have the same address, to which the rate limits apply.
        .set("requests", "1000000")
        .set("burst", "1000000")
        .set_text("to", &log.display().to_string())
}

fn auth_config(development: &Standalone, own: (u16, u16)) -> ConfigFile {
    let notify = development.addresses().notify.port();
    installation::auth_config(development, installation::Ports::of_service(own, notify))
        .set("sign_ins", "1000000")
}

fn notify_config(development: &Standalone, own: (u16, u16), provider: &str) -> ConfigFile {
    let ports = installation::Ports::of_service(own, own.0);
    let file = installation::notify_config(development, ports).set("sms_permits", "16");
    let http = format!(
        "name = \"record\"\nchannel = \"sms\"\nkind = \"http\"\nurl = \"{provider}/messages\"\nrate = {PROVIDER_RATE}\n\
         body = '{{\"text\": {{{{ text }}}}, \"to\": {{{{ to }}}}}}'\n"
    );
    file.replace(SMS_PROVIDER, &http)
}
