//! Starts the deployment artefacts: the image and the systemd units, with their folders,
//! configuration and commands. Without a container runtime, the file system of each is created in a
//! folder that becomes the program's root.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use postern_tests::program::{Program, Running};
use postern_tests::{Client, Postern, ports, skipped};
use tempfile::TempDir;

const STEP_TIMEOUT: Duration = Duration::from_secs(60);
const SERVICES: [&str; 3] = ["proxy", "auth", "notify"];
/// User id of the image.
const USER: u32 = 10_001;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the value of the last line with this prefix.
fn value(text: &str, beginning: &str) -> String {
    let line = text
        .lines()
        .rev()
        .find_map(|line| line.trim_start().strip_prefix(beginning));
    line.unwrap_or_else(|| panic!("no {beginning:?} in\n{text}"))
        .trim()
        .to_owned()
}

/// Returns the words of `[a, b]` or `["a", "b"]`.
fn words(list: &str) -> Vec<String> {
    let words = list.trim_matches(['[', ']']).split(',');
    words
        .map(|word| word.trim().trim_matches('"').to_owned())
        .collect()
}

/// The file system of a deployment: programs, `/etc/postern`, and the state folder.
struct Layout {
    folder: TempDir,
    ports: Vec<(u16, u16)>,
}

impl Layout {
    /// Creates the file system. `network` as in `conf/deploy/configure`; the ports are replaced by
    /// free ones.
    fn new(network: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |path: &str| folder.path().join(path);
        for path in [
            "usr/local/bin",
            "etc/postern",
            "etc/ssl/certs",
            "var/lib",
            "tmp",
        ] {
            std::fs::create_dir_all(at(path)).expect("the folder is created");
        }
        // An empty file like the device; creating a device node requires privileges.
        std::fs::create_dir(at("dev")).expect("the folder is created");
        std::fs::write(at("dev/null"), "").expect("the file is written");
        let mut configure = Command::new(root().join("conf/deploy/configure"));
        configure
            .arg(at("etc/postern"))
            .args(network.then_some("network"));
        assert!(configure.status().expect("it runs").success());
        let ports: Vec<(u16, u16)> = [8500, 8501, 8502, 8509, 8510, 8511]
            .map(|port| (port, ports::free(1)))
            .into();
        for service in SERVICES {
            let file = at(&format!("etc/postern/{service}.toml"));
            let text = std::fs::read_to_string(&file).expect("written");
            let listens = |line: &&str| {
                ["listen", "admin", "address "]
                    .iter()
                    .any(|key| line.starts_with(key))
            };
            let moved = |line: &str| {
                ports.iter().fold(line.to_owned(), |line, (from, to)| {
                    line.replace(&format!(":{from}\""), &format!(":{to}\""))
                })
            };
            let lines =
                text.lines().map(|line| if listens(&line) { moved(line) } else { line.to_owned() } + "\n");
            std::fs::write(&file, lines.collect::<String>()).expect("written");
        }
        let authorities = Path::new("/etc/ssl/certs/ca-certificates.crt");
        if authorities.exists() {
            std::fs::copy(authorities, at("etc/ssl/certs/ca-certificates.crt"))
                .expect("the file is copied");
        }
        let layout = Self { folder, ports };
        SERVICES
            .iter()
            .for_each(|service| layout.install(&format!("postern-{service}")));
        layout
    }

    /// Installs the program and its shared libraries.
    fn install(&self, name: &str) {
        let built = std::env::current_exe()
            .expect("a path")
            .ancestors()
            .nth(2)
            .expect("target/PROFILE/deps")
            .join(name);
        self.place(&built, &Path::new("/usr/local/bin").join(name));
        let listed = Command::new("ldd")
            .arg(&built)
            .output()
            .expect("ldd is part of the C library");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let libraries = listed
            .split_whitespace()
            .filter(|word| word.starts_with('/'));
        libraries.for_each(|library| self.place(Path::new(library), Path::new(library)));
    }

    fn place(&self, from: &Path, to: &Path) {
        let to = self
            .folder
            .path()
            .join(to.strip_prefix("/").expect("absolute"));
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("the folder is created");
        let from = from.canonicalize().expect("the file exists");
        if !to.exists() && std::fs::hard_link(&from, &to).is_err() {
            std::fs::copy(&from, &to).expect("the file is copied");
        }
    }

    fn port(&self, of: u16) -> u16 {
        self.ports
            .iter()
            .find(|(from, _)| *from == of)
            .expect("a known service")
            .1
    }

    /// Returns the command in this file system, with a working folder that its user may write to.
    /// Returns `None` if this machine does not permit it.
    fn program(&self, command: &[String], state: &str) -> Option<Program> {
        let place = self.folder.path().join(state.trim_start_matches('/'));
        std::fs::create_dir_all(&place).expect("the folder is created");
        let inside = Program::at(PathBuf::from("/usr/bin/unshare"), self.folder.path())
            .arg(format!("--root={}", self.folder.path().display()))
            .arg(format!("--wd={state}"));
        // Root changes the user; other users become root in a new user namespace.
        let inside = match chown(&place, Some(USER), Some(USER)) {
            Ok(()) => {
                for path in ["", "etc", "etc/postern", "tmp"] {
                    let mode =
                        std::fs::Permissions::from_mode(if path == "tmp" { 0o1777 } else { 0o755 });
                    std::fs::set_permissions(self.folder.path().join(path), mode)
                        .expect("the folder is owned by this user");
                }
                inside
                    .arg(format!("--setuid={USER}"))
                    .arg(format!("--setgid={USER}"))
            }
            Err(_) => {
                let may = Command::new("unshare")
                    .args(["--map-root-user", "true"])
                    .status();
                if !may.is_ok_and(|status| status.success()) {
                    return None;
                }
                inside.arg("--map-root-user")
            }
        };
        let program = Path::new("/usr/local/bin").join(&command[0]);
        Some(command[1..].iter().fold(
            inside.arg(program.display().to_string()),
            |program, word| program.arg(word),
        ))
    }
}

/// Sets the variables of an installation. The databases are separate files by default.
fn configured(program: Program, service: &str, development: &Postern) -> Program {
    let environment = development.surface().environment().iter();
    let environment = environment
        .filter(|(name, _)| !name.starts_with("POSTERN_") && !name.starts_with("SOCIAL_"));
    let program = environment.fold(program, |program, (name, value)| program.env(name, value));
    if service == "proxy" {
        return program;
    }
    program.env("IDP_SERVICE_ACCOUNT_USERNAME", service).env(
        "IDP_SERVICE_ACCOUNT_PASSWORD",
        development.password_of(service),
    )
}

/// Waits until the program is ready. If `everywhere`, through an address that only listeners on all
/// addresses receive.
async fn until_ready(running: &mut Running, admin: u16, everywhere: bool) {
    let client = Client::new(&format!(
        "http://{}:{admin}",
        if everywhere { "127.0.0.2" } else { "127.0.0.1" }
    ));
    let ready = async {
        while client
            .get("/readyz")
            .try_send()
            .await
            .is_none_or(|answer| answer.status != 200)
        {
            running.expect_alive();
            tokio::task::yield_now().await;
        }
    };
    if tokio::time::timeout(STEP_TIMEOUT, ready).await.is_err() {
        panic!("not ready: {}", running.log());
    }
}

async fn starts(
    layout: &Layout,
    service: &str,
    (command, state): (Vec<String>, String),
    everywhere: bool,
) -> bool {
    let development = Postern::start().await;
    let Some(program) = layout.program(&command, &state) else {
        return false;
    };
    let mut running = configured(program, service, &development).start();
    let (http, admin) = match service {
        "proxy" => (8500, 8509),
        "auth" => (8501, 8510),
        _ => (8502, 8511),
    };
    until_ready(&mut running, layout.port(admin), everywhere).await;
    let host = if everywhere { "127.0.0.2" } else { "127.0.0.1" };
    let client = Client::new(&format!("http://{host}:{}", layout.port(http)));
    let _ = client.get("/nowhere").send().await.problem(
        if service == "proxy" { 401 } else { 404 },
        if service == "proxy" {
            "authentication_required"
        } else {
            "not_found"
        },
    );
    assert_eq!(running.stop("TERM").await.status, Some(0));
    development.stop().await;
    true
}

#[tokio::test]
async fn image_starts_each_service_and_is_reachable() {
    let dockerfile = read("conf/deploy/Dockerfile");
    assert!(dockerfile.contains("COPY --from=build /etc/postern /etc/postern\n"));
    assert!(dockerfile.contains("conf/deploy/configure /etc/postern network\n"));
    let (state, gateway) = (
        value(&dockerfile, "WORKDIR "),
        words(&value(&dockerfile, "CMD ")),
    );
    assert_eq!(
        gateway,
        ["postern-proxy", "--config", "/etc/postern/proxy.toml"]
    );
    let layout = Layout::new(true);
    for service in SERVICES {
        let command = gateway
            .iter()
            .map(|word| word.replace("proxy", service))
            .collect();
        if !starts(&layout, service, (command, state.clone()), true).await {
            return skipped(
                "image_starts_each_service_and_is_reached",
                "no file system of its own for a program",
            );
        }
    }
}

#[tokio::test]
async fn systemd_units_start_each_service() {
    let layout = Layout::new(false);
    for service in SERVICES {
        let unit = read(&format!("conf/deploy/postern-{service}.service"));
        let command: Vec<String> = value(&unit, "ExecStart=/usr/local/bin/")
            .split(' ')
            .map(str::to_owned)
            .collect();
        let state = value(&unit, "WorkingDirectory=");
        assert_eq!(
            state,
            format!("/var/lib/{}", value(&unit, "StateDirectory=")),
            "it may be written to"
        );
        if !starts(&layout, service, (command, state), false).await {
            return skipped(
                "systemd_units_start_each_service",
                "no file system of its own for a program",
            );
        }
    }
}

#[test]
fn socket_unit_matches_the_configuration() {
    let unit = read("conf/deploy/postern-proxy.socket");
    let config: toml::Table = toml::from_str(&read("conf/proxy.toml")).expect("TOML");
    let listens: Vec<&str> = config["listen"]
        .as_array()
        .expect("tables")
        .iter()
        .filter_map(|one| one["address"].as_str())
        .collect();
    let sockets: Vec<&str> = unit
        .lines()
        .filter_map(|line| line.strip_prefix("ListenStream="))
        .collect();
    assert_eq!(sockets, listens);
}

#[test]
fn kubernetes_manifest_matches_the_configuration() {
    let manifests = read("conf/deploy/kubernetes.yaml");
    for (service, http, admin) in [
        ("proxy", 8500, 8509),
        ("auth", 8501, 8510),
        ("notify", 8502, 8511),
    ] {
        let name = format!("postern-{service}");
        let parts: Vec<&str> = manifests
            .split("---\n")
            .filter(|part| part.contains(&format!("\n  name: {name}\n")))
            .collect();
        let of = |kind: &str| {
            parts
                .iter()
                .find(|part| part.contains(&format!("kind: {kind}\n")))
                .unwrap_or_else(|| panic!("{kind} {name}"))
        };
        let deployment = of("Deployment");
        let command = words(&value(deployment, "command: "));
        assert_eq!(
            command,
            [
                name.as_str(),
                "--config",
                &format!("/etc/postern/{service}/{service}.toml")
            ]
        );
        for (port, what) in [(http, "http"), (admin, "admin")] {
            assert!(
                deployment.contains(&format!("{{name: {what}, containerPort: {port}}}")),
                "{deployment}"
            );
        }
        assert!(of("Service").contains(&format!("{{name: http, port: {http}, targetPort: http}}")));
    }
}
