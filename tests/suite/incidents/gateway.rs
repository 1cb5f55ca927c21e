//! A gateway with upstreams, keys and certificates that fail, and a second one without disk space.

use std::path::{Path, PathBuf};

use postern_harness::Origin;
use postern_harness::process::{Program, Running};
use postern_harness::wait::text_with;
use postern_harness::{BrokenOrigin, Client, Pools, ports};
use tempfile::TempDir;

use super::console_view::{ADMIN_TOKEN, ADMIN_TOKEN_ENV, READER};
use super::evidence::Evidence;
use super::gateway_faults;
use super::tokens::Issuer;
use crate::gateway_dns::{NAME, ResolverFiles};

/// A response that ends before its declared length.
const CUT_RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\npart";

/// A response of an overloaded service.
const OVERLOADED: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// The gateway, and what it depends on.
pub(super) struct FaultyGateway {
    pub(super) evidence: Evidence,
    pub(super) client: Client,
    pub(super) admin: Client,
    pub(super) issuer: Issuer,
    pub(super) names: ResolverFiles,
    /// The API key of the service `partner`.
    pub(super) api_key: String,
    running: Running,
    /// A gateway of which the disk of the access log is full.
    pub(super) full: Running,
    pub(super) full_client: Client,
    pools: Pools,
    pub(super) folder: TempDir,
}

impl FaultyGateway {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (pools, issuer) = (Pools::start().await, Issuer::start().await);
        let upstream = Origin::start().await.address();
        let names = ResolverFiles::new(&[&format!("127.0.0.1 {NAME}")]);
        let port = ports::free(5);
        let [overloaded, cut] = [
            BrokenOrigin::Writes(OVERLOADED).start().await,
            BrokenOrigin::Writes(CUT_RESPONSE).start().await,
        ];
        write_expired_certificate(folder.path());
        let api_key = create_api_key(folder.path()).await;
        let upstreams = format!(
            "[upstream.good]\naddresses = [\"{upstream}\"]\n\
             [upstream.pair]\naddresses = [\"{upstream}\", \"{overloaded}\"]\nretries = 0\n\
             outlier = {{ failures = 3, ejection = \"10m\" }}\n\
             [upstream.cut]\naddresses = [\"{cut}\"]\n\
             [upstream.expired]\naddresses = [\"127.0.0.1:{tls}\"]\ntls = {{ name = \"localhost\", ca = \"expired.pem\" }}\n\
             [upstream.named]\naddresses = [\"{NAME}:{}\"]\n",
            upstream.port(),
            tls = port + 1,
        );
        let text = format!(
            "{listen}[[listen]]\naddress = \"127.0.0.1:{tls}\"\n[listen.tls]\ncertificate = \"expired.pem\"\n\
             key = \"expired.key\"\n[access_log]\nto = \"./access.log\"\nclient_address = \"full\"\n\
             [api_keys]\nfile = \"api-keys.toml\"\n\
             {issuer}{upstreams}{routes}",
            listen = listen(port, port + 2),
            tls = port + 1,
            issuer = issuer.table(),
            routes = ROUTES.map(route).concat(),
        );
        let running = start(&names, &folder.path().join("proxy.toml"), &text, &pools).await;
        let text = format!(
            "{}[access_log]\nto = \"/dev/full\"\n[upstream.good]\naddresses = [\"{upstream}\"]\n{}",
            listen(port + 3, port + 4),
            route(("open", "good", "\"public\""))
        );
        let full = start(&names, &folder.path().join("full.toml"), &text, &pools).await;
        let token = pools.service_token(READER).await;
        let jobs = [("postern-proxy", port + 2), ("postern-proxy", port + 4)];
        Self {
            evidence: Evidence::of(&["Gateway"], &jobs, &token).await,
            client: Client::new(&format!("http://127.0.0.1:{port}")),
            admin: Client::new(&format!("http://127.0.0.1:{}", port + 2)),
            issuer,
            names,
            api_key,
            running,
            full,
            full_client: Client::new(&format!("http://127.0.0.1:{}", port + 3)),
            pools,
            folder,
        }
    }

    /// Proves an incident, after its fault was planted.
    pub(super) async fn prove(&mut self, name: &str, output: &str) {
        let (running, full, folder) = (&self.running, &self.full, self.folder.path());
        let log = || log(running, full, folder);
        self.evidence.prove(name, log, output).await;
    }

    /// Returns the access log.
    pub(super) fn access_log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default()
    }

    /// Returns the access log once it contains a text: it is written after the response.
    pub(super) async fn access_log_with(&self, text: &str) -> String {
        text_with(text, async || self.access_log()).await
    }

    /// Returns a document of the admin listener.
    pub(super) async fn status(&self, path: &str) -> String {
        self.admin.fetch(path, 200).await.text()
    }

    /// Returns a document of the admin listener once it contains a text.
    pub(super) async fn status_with(&self, path: &str, text: &str) -> String {
        text_with(text, async || self.status(path).await).await
    }

    /// Runs a command of the gateway over its configuration and returns what it prints.
    pub(super) async fn run(&self, arguments: &[&str]) -> String {
        let program = program(&self.names, self.folder.path(), "proxy.toml", &self.pools);
        let ended = program.args(arguments.iter().copied()).run().await;
        format!("{}{}", ended.stdout, ended.stderr)
    }

    /// Explains a request to a path with a token.
    pub(super) async fn explain(&self, method: &str, path: &str, token: &str) -> String {
        let url = format!("http://gate.example/{path}");
        self.run(&["explain", method, &url, "--token", token]).await
    }

    /// Sends a request, whose response must have this problem code.
    pub(super) async fn refuses(&self, path: &str, token: &str, code: &str) {
        let answer = self.client.with_token(token).get(path).send().await;
        assert_eq!(answer.json()["code"], code, "{path}");
    }
}

/// Routes of the gateway: name and path, upstream, and policy with what follows.
const ROUTES: [(&str, &str, &str); 7] = [
    ("pair", "pair", "\"public\""),
    ("cut", "cut", "\"public\""),
    ("expired", "expired", "\"public\""),
    ("named", "named", "\"public\""),
    (
        "limited",
        "good",
        "\"public\"\nlimits = [{ by = \"address\", requests = 1, per = \"1h\" }]",
    ),
    ("account", "good", "{ users = \"any\" }"),
    ("orders", "good", "{ services = [\"partner\"] }"),
];

fn route((name, upstream, policy): (&str, &str, &str)) -> String {
    format!(
        "[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nmethods = [\"GET\"]\n\
         upstream = \"{upstream}\"\npolicy = {policy}\n"
    )
}

fn listen(port: u16, admin: u16) -> String {
    format!(
        "[[listen]]\naddress = \"127.0.0.1:{port}\"\n[admin]\naddress = \"127.0.0.1:{admin}\"\n\
         token_env = \"{ADMIN_TOKEN_ENV}\"\n\
         [log]\nformat = \"json\"\n"
    )
}

/// Returns the standard error of both gateways and the access log.
fn log(running: &Running, full: &Running, folder: &Path) -> String {
    let access = std::fs::read_to_string(folder.join("access.log")).unwrap_or_default();
    [running.log(), full.log(), access].concat()
}

fn program(names: &ResolverFiles, folder: &Path, file: &str, pools: &Pools) -> Program {
    let program = names
        .program("postern-proxy", folder)
        .args(["--config", file]);
    let program = program.env(ADMIN_TOKEN_ENV, ADMIN_TOKEN);
    program.envs(pools.variables())
}

async fn start(names: &ResolverFiles, file: &Path, text: &str, pools: &Pools) -> Running {
    std::fs::write(file, text).expect("the folder can be written");
    let folder: PathBuf = file.parent().expect("a folder").to_owned();
    let program = program(names, &folder, &file.display().to_string(), pools);
    let mut running = program.start();
    running.until_ready().await;
    running
}

/// Writes a certificate for `localhost` that expired at the beginning of 2021.
fn write_expired_certificate(folder: &Path) {
    let mut parameters =
        rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = parameters.self_signed(&key).expect("a certificate");
    for (name, text) in [
        ("expired.pem", certificate.pem()),
        ("expired.key", key.serialize_pem()),
    ] {
        std::fs::write(folder.join(name), text).expect("the folder can be written");
    }
}

/// Creates an API key of the service `partner` with its file.
async fn create_api_key(folder: &Path) -> String {
    let program = Program::of_workspace("postern-proxy", folder);
    let program = program.args(["api-key", "create", "--name", "partner"]);
    let ended = program.run().await;
    let (said, entry) = ended.stdout.split_once("[[key]]").expect("an entry");
    std::fs::write(folder.join("api-keys.toml"), format!("[[key]]{entry}"))
        .expect("the folder can be written");
    let key = said.split_whitespace().find(|word| word.starts_with("pk_"));
    key.expect("a key").to_owned()
}

#[tokio::test]
async fn incidents_of_the_gateway_name_their_causes() {
    let mut gateway = FaultyGateway::start().await;
    gateway_faults::plant(&mut gateway).await;
    let FaultyGateway {
        evidence,
        running,
        full,
        folder,
        ..
    } = gateway;
    evidence.finish(&log(&running, &full, folder.path()), folder.path());
    for process in [running, full] {
        assert_eq!(process.stop("TERM").await.status, Some(0));
    }
}
