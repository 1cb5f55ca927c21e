//! The three programs as separate processes over PostgreSQL and Redis, with the shipped
//! configuration. The pools, the actor and document services, the social provider and the mail catcher are
//! those of standalone.

use std::collections::BTreeMap;
use std::path::Path;

use postern_store::cache::testing::{TestCache, redis};
use postern_store::database::testing::{TestDatabase, postgres};
use tempfile::TempDir;

use crate::config_file::{ConfigFile, conf};
use crate::ports;
use crate::postern::Postern;
use crate::program::{Program, Running};
use crate::sensitive;
use crate::surface::PublicApi;

/// The variable of the secret of the admin routes.
const ADMIN_TOKEN: &str = "POSTERN_ADMIN_TOKEN";

/// Three processes and their dependencies.
#[derive(Debug)]
pub struct Split {
    processes: Vec<Running>,
    surface: PublicApi,
    ports: Ports,
    development: Postern,
    env: Vec<(&'static str, String)>,
    admin_token: Option<String>,
    stores: Option<(TestDatabase, TestDatabase, TestCache)>,
    folder: TempDir,
}

/// Differences from the shipped configuration.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Keys at the beginning of `conf/auth.toml`.
    pub auth: Vec<(&'static str, &'static str)>,
    /// Text at the end of `conf/notify.toml`.
    pub notify: &'static str,
    /// The port of the mail server; that of the mail catcher if `None`.
    pub mail_port: Option<u16>,
    /// Tables at the end of all three files.
    pub tables: String,
    /// Variables of all three processes.
    pub env: Vec<(&'static str, String)>,
    /// The variables of the installation that the processes get; all if empty.
    pub only: Vec<&'static str>,
    /// Values that replace those of keys: the program, the key, and the value in TOML.
    pub set: Vec<(&'static str, &'static str, String)>,
    /// The secret of the admin routes of all three processes; they do not exist without one.
    pub admin_token: Option<String>,
    /// URLs of the databases of auth and notify, and of the cache; those of `tests/run` if `None`.
    pub stores: Option<[String; 3]>,
}

/// Listening ports of the processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) proxy: u16,
    pub(crate) auth: u16,
    pub(crate) notify: u16,
    proxy_admin: u16,
    auth_admin: u16,
    notify_admin: u16,
}

// === impl Changes ===

impl Changes {
    fn auth_file(&self, development: &Postern, ports: Ports) -> ConfigFile {
        let keys = self.auth.iter();
        keys.fold(auth_config(development, ports), |file, (key, value)| {
            file.insert(key, value)
        })
    }

    fn notify_file(&self, development: &Postern, ports: Ports) -> ConfigFile {
        let file = notify_config(development, ports).append(self.notify);
        match self.mail_port {
            Some(port) => file.set("port", &port.to_string()),
            None => file,
        }
    }

    /// Makes the changes that concern all programs.
    fn apply(&self, program: &str, file: ConfigFile) -> ConfigFile {
        let set = self.set.iter().filter(|(of, ..)| *of == program);
        let file = set.fold(file, |file, (_, key, value)| file.set(key, value));
        let file = file.append(&self.tables);
        match &self.admin_token {
            Some(_) => file.add_to_table("admin", "token_env", &quoted(ADMIN_TOKEN)),
            None => file,
        }
    }
}

// === impl Split ===

impl Split {
    /// Starts everything and waits until each process is ready.
    pub async fn start() -> Self {
        Self::start_with(Changes::default()).await
    }

    /// As [`Split::start`], with changes.
    ///
    /// # Panics
    /// If a process does not become ready.
    pub async fn start_with(changes: Changes) -> Self {
        Self::over(Postern::start().await, changes).await
    }

    /// As [`Split::start_with`], over an installation that was started before, so that the changes
    /// can contain its addresses.
    ///
    /// # Panics
    /// If a process does not become ready.
    pub async fn over(development: Postern, changes: Changes) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::os::unix::fs::symlink(conf(), folder.path().join("conf"))
            .expect("the test's folder can be written");
        let (stores, urls) = match &changes.stores {
            Some(urls) => (None, urls.clone()),
            None => {
                let stores = (postgres().await, postgres().await, redis().await);
                let urls = [&stores.0.url, &stores.1.url, &stores.2.url].map(Clone::clone);
                (Some(stores), urls)
            }
        };
        let ports = Ports::free();
        let stored = |file: ConfigFile, database: &str| {
            file.set("database", &quoted(database))
                .set("cache", &quoted(&urls[2]))
        };
        let auth = changes.auth_file(&development, ports);
        let notify = changes.notify_file(&development, ports);
        let files = [
            ("postern-auth", Some("auth"), stored(auth, &urls[0])),
            ("postern-notify", Some("notify"), stored(notify, &urls[1])),
            ("postern-proxy", None, proxy_config(&development, ports)),
        ];
        let mut processes = Vec::new();
        let admin = changes.admin_token.iter();
        let admin = admin.map(|token| (ADMIN_TOKEN, token.clone()));
        let env: Vec<_> = changes.env.clone().into_iter().chain(admin).collect();
        for (program, account, file) in files {
            let path = folder.path().join(format!("{program}.toml"));
            let file = changes.apply(program, file);
            std::fs::write(&path, file.text()).expect("the test's folder can be written");
            let program = Program::of_workspace(program, folder.path())
                .arg("--config")
                .arg(path.display().to_string());
            let program = with_identity(program, &development, account, &changes.only);
            let program = env
                .iter()
                .fold(program, |program, (name, value)| program.env(*name, value));
            processes.push(program.start());
        }
        for process in &mut processes {
            process.until_ready().await;
        }
        let variables: BTreeMap<String, String> = development.surface().environment().clone();
        let surface = PublicApi::new(&format!("http://127.0.0.1:{}", ports.proxy), variables);
        Self {
            processes,
            surface,
            ports,
            development,
            env,
            admin_token: changes.admin_token,
            stores,
            folder,
        }
    }

    /// Returns a program of the workspace with the environment of postern-notify, to run a command
    /// over the configuration of the processes. They are `postern-NAME.toml` in its folder.
    #[must_use]
    pub fn tool(&self, name: &str) -> Program {
        let program = Program::of_workspace(name, self.folder.path());
        let program = with_identity(program, &self.development, Some("notify"), &[]);
        let env = self.env.iter();
        env.fold(program, |program, (name, value)| program.env(*name, value))
    }

    /// Returns the folder with the configuration of the processes.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the processes: authentication, notification, gateway.
    #[must_use]
    pub fn processes(&self) -> &[Running] {
        &self.processes
    }

    /// Returns the standard error of all processes so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.processes.iter().map(Running::log).collect()
    }

    /// Returns the public interface.
    #[must_use]
    pub fn surface(&self) -> &PublicApi {
        &self.surface
    }

    /// Returns the names of the processes, which are also those of their Prometheus jobs, with the
    /// ports of their admin listeners.
    #[must_use]
    pub fn admin_ports(&self) -> [(&'static str, u16); 3] {
        [
            ("postern-auth", self.ports.auth_admin),
            ("postern-notify", self.ports.notify_admin),
            ("postern-proxy", self.ports.proxy_admin),
        ]
    }

    /// Returns the port of postern-auth.
    #[must_use]
    pub fn auth_port(&self) -> u16 {
        self.ports.auth
    }

    /// Returns the secret of the admin routes ([`Changes::admin_token`]).
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn admin_token(&self) -> &str {
        let token = self.admin_token.as_deref();
        token.expect("the processes were started with a secret of the admin routes")
    }

    /// Kills the authentication service.
    pub async fn kill_auth(&mut self) {
        self.processes.remove(0).kill().await;
    }

    /// Kills the gateway.
    pub async fn kill_gateway(&mut self) {
        let gateway = self.processes.pop();
        gateway.expect("it was started last").kill().await;
    }

    /// Returns the standalone installation with pools, services, provider and mail catcher.
    #[must_use]
    pub fn development(&self) -> &Postern {
        &self.development
    }

    /// Stops the processes as a service manager does, and checks their exit statuses.
    ///
    /// # Panics
    /// If one of them ends with an error.
    pub async fn stop(self) {
        for process in self.processes.into_iter().rev() {
            let ended = process.stop("TERM").await;
            assert_eq!(ended.status, Some(0), "{}", ended.stderr);
        }
        if let Some((auth, ..)) = &self.stores {
            sensitive::keep_audit(&auth.url).await;
        }
        self.development.stop().await;
    }
}

pub(crate) fn auth_config(development: &Postern, ports: Ports) -> ConfigFile {
    let addresses = development.addresses();
    let social = format!("http://{}", addresses.social);
    ConfigFile::of_repository("auth.toml")
        .replace_port(8501, ports.auth)
        .replace_port(8510, ports.auth_admin)
        .replace_port(8502, ports.notify)
        .replace_port(8504, addresses.actor.port())
        // The provider redirects to standalone's callback address; the tests use its path only.
        .replace_port(8500, addresses.proxy.port())
        .social_provider(&social)
}

pub(crate) fn notify_config(development: &Postern, ports: Ports) -> ConfigFile {
    let addresses = development.addresses();
    ConfigFile::of_repository("notify.toml")
        .replace_port(8502, ports.notify)
        .replace_port(8511, ports.notify_admin)
        .replace_port(8504, addresses.actor.port())
        .set("port", &addresses.smtp.port().to_string())
}

pub(crate) fn proxy_config(development: &Postern, ports: Ports) -> ConfigFile {
    let addresses = development.addresses();
    ConfigFile::of_repository("proxy.toml")
        .replace_port(8500, ports.proxy)
        .replace_port(8501, ports.auth)
        .replace_port(8502, ports.notify)
        .replace_port(8504, addresses.actor.port())
        .replace_port(8505, addresses.document.port())
        .replace_port(8509, ports.proxy_admin)
}

/// Adds the identity variables of the installation, or those named in `only` if it is not empty,
/// and the credentials of the service account, if there is one.
pub(crate) fn with_identity(
    program: Program,
    development: &Postern,
    account: Option<&str>,
    only: &[&str],
) -> Program {
    let environment = development.surface().environment().iter();
    // The address of standalone's own gateway must not reach the processes.
    let environment = environment.filter(|(name, _)| !name.starts_with("POSTERN_"));
    let environment =
        environment.filter(|(name, _)| only.is_empty() || only.contains(&name.as_str()));
    let program = environment.fold(program, |program, (name, value)| program.env(name, value));
    let Some(account) = account else {
        return program;
    };
    let program = program.env("IDP_SERVICE_ACCOUNT_USERNAME", account);
    program.env(
        "IDP_SERVICE_ACCOUNT_PASSWORD",
        development.password_of(account),
    )
}

pub(crate) fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

// === impl Ports ===

impl Ports {
    pub(crate) fn free() -> Self {
        Self {
            proxy: ports::free(1),
            auth: ports::free(1),
            notify: ports::free(1),
            proxy_admin: ports::free(1),
            auth_admin: ports::free(1),
            notify_admin: ports::free(1),
        }
    }
}
