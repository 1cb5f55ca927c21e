//! Machines for the deployment files: network namespaces, containers, and booted file systems of
//! Debian. `tests/peers/systems/install` installs the file systems. Everything here needs root.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use postern_core::config::Env;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::paths::{built, peer};
use crate::process::{Program, Running};
use crate::public_api::{PASSWORD, PublicApi, message};

/// First port of the development services in a [`Network`]: the shipped ports are those of the
/// deployed processes.
const DEVELOPMENT_PORT: u16 = 8600;
/// Seconds until a process must answer.
const ANSWER_TIMEOUT_SECONDS: &str = "60";
/// Bearer token of all admin APIs.
const ADMIN_TOKEN: &str = "deployment-test-admin-token-0123456789";

/// The programs of a deployment.
pub const PROGRAMS: [&str; 5] = [
    "postern",
    "postern-proxy",
    "postern-auth",
    "postern-notify",
    "postern-console",
];
/// The variable with which `tests/run` runs the tests of packages and images.
const VARIABLE: &str = "POSTERN_TEST_DEPLOY";

/// Returns the reason why systems are not started here: the tests take minutes and are run on demand,
/// or a privilege is missing.
pub fn obstacle() -> Option<String> {
    if Env::of_process().get(VARIABLE).is_none() {
        return Some(format!("{VARIABLE} is not set"));
    }
    let mut check = Command::new("unshare");
    let may = check.args(["--mount", "--net", "true"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        return Some("no privilege for namespaces".to_owned());
    }
    let missing = ["bookworm", "trixie"]
        .into_iter()
        .find(|suite| !system(suite).is_dir());
    missing.map(|suite| format!("no file system of {suite}"))
}

/// Copies programs without symbols.
pub fn copy_programs<N: AsRef<Path>>(names: &[N], to: &Path) {
    std::fs::create_dir_all(to).expect("the folder is created");
    for name in names {
        let mut strip = Command::new("strip");
        let (from, to) = (built().join(name), to.join(name));
        let _output = succeed(strip.arg("-o").arg(to).arg(from));
    }
}

/// Runs a command and returns its standard output.
#[track_caller]
pub fn succeed(command: &mut Command) -> String {
    let output = command.stdin(std::process::Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, error) = (text(&output.stdout), text(&output.stderr));
    let status = output.status;
    assert!(status.success(), "{command:?}: {status}\n{printed}{error}");
    printed
}

/// Returns the file system of a Debian release.
pub fn system(suite: &str) -> PathBuf {
    let peers = peer("systems");
    // podman compares paths of its storage: those of two checkouts may be links to one folder.
    peers.canonicalize().unwrap_or(peers).join(suite)
}

/// Returns the folder of PostgreSQL's newest server programs.
fn postgres_programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed");
    let folders = versions.map(|version| version.expect("an entry").path().join("bin"));
    folders.max().expect("a version")
}

/// A PostgreSQL server, stopped when dropped.
#[derive(Debug)]
pub struct PostgresServer {
    stop: Command,
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        let _stopped = self.stop.output();
    }
}

/// A network namespace with a loopback interface only, in which every port is free. Removed when
/// dropped.
#[derive(Debug)]
pub struct Network {
    name: String,
    /// Folder of the development services.
    folder: TempDir,
}

impl Network {
    /// Creates it.
    pub fn create() -> Self {
        let name = format!("postern-{}", uuid::Uuid::new_v4().simple());
        let _output = succeed(Command::new("ip").args(["netns", "add", &name]));
        let folder = tempfile::tempdir().expect("a folder");
        let network = Self { name, folder };
        let _output = succeed(network.command("ip").args(["link", "set", "lo", "up"]));
        network
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file that stands for the namespace.
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }

    /// Returns a command that runs in the namespace.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Starts the development services, from port 8600 on: the identity pools, and a gateway with
    /// which users are registered.
    pub async fn start_development(&self) -> Running {
        let program = Program::at(PathBuf::from("/usr/sbin/ip"), self.folder.path());
        let program = program
            .args(["netns", "exec", &self.name])
            .arg(built().join("postern").display().to_string())
            .args(["--port", &DEVELOPMENT_PORT.to_string(), "--data-dir"])
            .arg(self.folder.path().display().to_string());
        let mut running = program.start();
        let _greeting = running.wait_for_line("Postern is ready").await;
        running
    }

    /// Returns the variables of a deployed process (`proxy`, `auth`, `notify` or `console`) that
    /// uses the pools of the development services.
    pub fn environment(&self, process: &str) -> BTreeMap<String, String> {
        let development = PublicApi::of_folder(self.folder.path());
        let all = development.environment();
        let is_set = |name: &String| {
            let mut parts = ["IDP_", "AWS_", "CLOUD_"].iter();
            process != "console" && parts.any(|part| name.starts_with(part))
        };
        let mut environment = all.clone();
        environment.retain(|name, _| is_set(name));
        let service = process.to_uppercase();
        for part in ["USERNAME", "PASSWORD"] {
            if let Some(own) = all.get(&format!("POSTERN_SERVICE_{service}_{part}")) {
                environment.insert(format!("IDP_SERVICE_ACCOUNT_{part}"), own.clone());
            }
        }
        for name in ["GATEWAY", "AUTH", "NOTIFY"] {
            environment.insert(format!("{name}_ADMIN_TOKEN"), ADMIN_TOKEN.to_owned());
        }
        environment
    }

    /// Starts PostgreSQL in the namespace, on its usual port, with a user that needs no password.
    pub fn start_postgres(&self, folder: &Path, user: &str) -> PostgresServer {
        let data = folder.join("postgres");
        std::fs::create_dir(&data).expect("the folder is created");
        let mut owner = Command::new("chown");
        let _output = succeed(owner.arg("postgres").arg(&data));
        let _output = succeed(Command::new("chmod").arg("755").arg(folder));
        let bin = postgres_programs();
        let as_postgres = |program: &str| {
            let mut command = self.command("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
            command.arg(bin.join(program)).current_dir(&data);
            command
        };
        let mut create = as_postgres("initdb");
        create.args(["--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"]);
        let _output = succeed(create.arg(format!("--username={user}")).arg("files"));
        let mut start = as_postgres("pg_ctl");
        start.args(["start", "--wait", "--pgdata=files", "--log=log"]);
        let options = "-c listen_addresses=127.0.0.1 -c unix_socket_directories=''";
        let _output = succeed(start.args(["--options", options]));
        let mut create = as_postgres("createdb");
        let _output = succeed(create.args(["--host=127.0.0.1", "--username", user, user]));
        let mut stop = as_postgres("pg_ctl");
        stop.args(["stop", "--mode=immediate", "--pgdata=files"]);
        PostgresServer { stop }
    }

    /// Waits until a URL answers with success.
    #[track_caller]
    pub fn wait_for(&self, url: &str) {
        let mut curl = self.command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--retry", "1000"])
            .args(["--retry-all-errors", "--retry-delay", "1"])
            .args(["--retry-max-time", ANSWER_TIMEOUT_SECONDS, url]);
        let _answer = succeed(&mut curl);
    }

    /// Sends a JSON body, or a GET request without one. Returns status and body.
    #[track_caller]
    pub fn call(&self, url: &str, token: Option<&str>, body: Option<&Value>) -> (u16, Value) {
        let mut curl = self.command("curl");
        curl.args(["--silent", "--show-error", "--write-out", "\n%{http_code}"]);
        curl.args(["--max-time", ANSWER_TIMEOUT_SECONDS]);
        if let Some(token) = token {
            curl.args(["--header", &format!("Authorization: Bearer {token}")]);
        }
        if let Some(body) = body {
            curl.args(["--header", "Content-Type: application/json"])
                .args(["--data-binary", &body.to_string()]);
        }
        let answer = succeed(curl.arg(url));
        let (body, status) = answer.rsplit_once('\n').expect("a status");
        let status = status.parse().expect("a status");
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// Registers a user at the development gateway, signs in at the deployed one and sends a
    /// notification as a service: gateway, authentication and notification services work together.
    #[track_caller]
    pub fn sign_in_and_notify(&self) {
        let email = format!("ada-{}@example.com", uuid::Uuid::new_v4().simple());
        let register = format!("http://127.0.0.1:{DEVELOPMENT_PORT}/auth/register");
        let person =
            json!({ "email": email, "password": PASSWORD, "profile": { "firstName": "Ada" } });
        let (status, answer) = self.call(&register, None, Some(&person));
        assert_eq!(status, 201, "{answer}");
        let credentials = json!({ "email": email, "password": PASSWORD });
        let login = "http://127.0.0.1:8500/auth/login";
        let (status, tokens) = self.call(login, None, Some(&credentials));
        assert_eq!(status, 200, "{tokens}");
        let program = built().join("postern");
        let mut token = self.command(&program.display().to_string());
        let token = token.args(["token", "--service", "document", "--data-dir"]);
        let token = succeed(token.arg(self.folder.path()));
        let message = message("sms", &json!({ "phone": "+12025550123" }));
        let url = "http://127.0.0.1:8500/notifications";
        let (status, answer) = self.call(url, Some(token.trim()), Some(&message));
        assert_eq!(status, 201, "{answer}");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let mut delete = Command::new("ip");
        let _ended = delete.args(["netns", "delete", &self.name]).status();
    }
}
