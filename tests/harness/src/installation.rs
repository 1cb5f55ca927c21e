//! Installations: the standalone program, and the three programs as separate processes with any number
//! of replicas.
//!
//! Separate processes have PostgreSQL, Redis and the shipped configuration. The pools, the actor and
//! document services, the social provider and the mail catcher are those of a standalone installation.

pub mod standalone;

use std::collections::BTreeMap;
use std::path::Path;

use tempfile::TempDir;

use crate::config_file::ConfigFile;
use crate::paths::conf;
use crate::ports;
use crate::process::{Process, Program, Running};
use crate::public_api::PublicApi;
use crate::sensitive;
use crate::stores::Stores;

use self::standalone::Standalone;

/// The variable of the secret of the admin routes.
const ADMIN_TOKEN: &str = "POSTERN_ADMIN_TOKEN";

/// A gateway, replicas of both services, and their dependencies.
#[derive(Debug)]
pub struct Installation {
    /// Replicas of the authentication service.
    pub auth: Vec<Process>,
    /// Replicas of the notification service.
    pub notify: Vec<Process>,
    /// The gateway.
    pub gateway: Process,
    surface: PublicApi,
    ports: Ports,
    development: Standalone,
    env: Vec<(&'static str, String)>,
    admin_token: Option<String>,
    stores: Option<Stores>,
    folder: TempDir,
}

/// Differences from the shipped configuration.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Keys at the beginning of `conf/auth.toml`.
    pub auth: Vec<(&'static str, &'static str)>,
    /// Text at the end of `conf/notify.toml`.
    pub notify: String,
    /// The port of the mail server; that of the mail catcher if `None`.
    pub mail_port: Option<u16>,
    /// Tables at the end of all files.
    pub tables: String,
    /// Variables of all processes.
    pub env: Vec<(&'static str, String)>,
    /// The variables of the installation that the processes get; all if empty.
    pub only: Vec<&'static str>,
    /// Values that replace those of keys: the program, the key, and the value in TOML.
    pub set: Vec<(&'static str, &'static str, String)>,
    /// The secret of the admin routes of all processes; they do not exist without one.
    pub admin_token: Option<String>,
    /// URLs of the databases of auth and notify, and of the cache; those of `tests/run` if `None`.
    pub stores: Option<[String; 3]>,
    /// Replicas of each service besides the first one.
    pub more_replicas: usize,
}

/// Listening ports of the first replicas and of the gateway.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) proxy: u16,
    pub(crate) auth: u16,
    pub(crate) notify: u16,
    pub(crate) proxy_admin: u16,
    pub(crate) auth_admin: u16,
    pub(crate) notify_admin: u16,
}

impl Changes {
    /// Returns changes that give the processes a secret of the admin routes, and no limits that tests
    /// of one address would exceed.
    pub fn unlimited() -> Self {
        let unlimited = || "1000000".to_owned();
        Self {
            admin_token: Some(uuid::Uuid::new_v4().simple().to_string()),
            set: vec![
                ("postern-auth", "sign_ins", unlimited()),
                ("postern-proxy", "requests", unlimited()),
                ("postern-proxy", "burst", unlimited()),
                // Nothing reads the standard output of the processes: a full pipe would block them.
                ("postern-proxy", "to", "\"./access.log\"".to_owned()),
            ],
            ..Self::default()
        }
    }

    /// Returns the configuration of a program in this installation.
    fn file(&self, program: &str, development: &Standalone, ports: Ports) -> ConfigFile {
        let file = match program {
            "postern-auth" => {
                let keys = self.auth.iter();
                keys.fold(auth_config(development, ports), |file, (key, value)| {
                    file.insert(key, value)
                })
            }
            "postern-notify" => {
                let file = notify_config(development, ports).append(&self.notify);
                match self.mail_port {
                    Some(port) => file.set("port", &port.to_string()),
                    None => file,
                }
            }
            _ => proxy_config(development, ports),
        };
        let set = self.set.iter().filter(|(of, ..)| *of == program);
        let file = set.fold(file, |file, (_, key, value)| file.set(key, value));
        let file = file.append(&self.tables);
        match &self.admin_token {
            Some(_) => file.replace(
                "[admin]\n",
                &format!("[admin]\ntoken_env = \"{ADMIN_TOKEN}\"\n"),
            ),
            None => file,
        }
    }
}

impl Installation {
    /// Starts everything and waits until each process is ready.
    pub async fn start() -> Self {
        Self::start_with(Changes::default()).await
    }

    /// As [`Installation::start`], with changes.
    pub async fn start_with(changes: Changes) -> Self {
        Self::over(Standalone::start().await, changes).await
    }

    /// As [`Installation::start_with`], over an installation that was started before, so that the
    /// changes can contain its addresses.
    pub async fn over(development: Standalone, changes: Changes) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::os::unix::fs::symlink(conf(), folder.path().join("conf"))
            .expect("the test's folder can be written");
        let (stores, urls) = match &changes.stores {
            Some(urls) => (None, urls.clone()),
            None => {
                let stores = Stores::create().await;
                let urls = stores.urls();
                (Some(stores), urls)
            }
        };
        let admin = changes.admin_token.iter();
        let admin = admin.map(|token| (ADMIN_TOKEN, token.clone()));
        let env: Vec<_> = changes.env.clone().into_iter().chain(admin).collect();
        let start = |name: &str, number: usize, account: Option<&str>, file: ConfigFile| {
            let program = Program::of_workspace(name, folder.path());
            let file_name = match number {
                0 => format!("{name}.toml"),
                _ => format!("{name}-{number}.toml"),
            };
            let program = program.config(&file_name, file.text());
            let program = with_identity(program, &development, account, &changes.only);
            Process::start(program.envs(env.clone()))
        };
        let service = |name: &str, number: usize, ports: Ports, database: &str| {
            let file = changes.file(name, &development, ports);
            let file = file.set_text("database", database);
            let file = file.set_text("cache", &urls[2]);
            let account = name.trim_start_matches("postern-");
            start(name, number, Some(account), file)
        };
        let first = Ports::free();
        let mut gateway = changes.file("postern-proxy", &development, first);
        let (mut auth, mut notify) = (Vec::new(), Vec::new());
        for number in 0..=changes.more_replicas {
            let ports = if number == 0 { first } else { Ports::free() };
            if number > 0 {
                gateway = gateway
                    .add_replica(first.auth, ports.auth)
                    .add_replica(first.notify, ports.notify);
            }
            auth.push(service("postern-auth", number, ports, &urls[0]));
            notify.push(service("postern-notify", number, ports, &urls[1]));
        }
        let mut gateway = start("postern-proxy", 0, None, gateway);
        for process in auth.iter_mut().chain(&mut notify).chain([&mut gateway]) {
            process.until_ready().await;
        }
        let variables: BTreeMap<String, String> = development.surface().environment().clone();
        let surface = PublicApi::new(&format!("http://127.0.0.1:{}", first.proxy), variables);
        Self {
            auth,
            notify,
            gateway,
            surface,
            ports: first,
            development,
            env,
            admin_token: changes.admin_token,
            stores,
            folder,
        }
    }

    /// Returns a program of the workspace with the environment of postern-notify, to run a command
    /// over the configuration of the processes. They are `postern-NAME.toml` in its folder.
    pub fn tool(&self, name: &str) -> Program {
        let program = Program::of_workspace(name, self.folder.path());
        let program = with_identity(program, &self.development, Some("notify"), &[]);
        program.envs(self.env.clone())
    }

    /// Returns the folder with the configuration of the processes.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the running processes: authentication, notification, gateway.
    pub fn processes(&self) -> impl Iterator<Item = &Running> {
        let all = self.auth.iter().chain(&self.notify).chain([&self.gateway]);
        all.filter(|it| it.is_running()).map(Process::running)
    }

    /// Returns the standard error of all running processes so far.
    pub fn log(&self) -> String {
        self.processes().map(Running::log).collect()
    }

    /// Returns the public interface.
    pub fn surface(&self) -> &PublicApi {
        &self.surface
    }

    /// Returns the names of the processes, which are also those of their Prometheus jobs, with the
    /// ports of the admin listeners of the first replicas.
    pub fn admin_ports(&self) -> [(&'static str, u16); 3] {
        [
            ("postern-auth", self.ports.auth_admin),
            ("postern-notify", self.ports.notify_admin),
            ("postern-proxy", self.ports.proxy_admin),
        ]
    }

    /// Returns the port of the first postern-auth.
    pub fn auth_port(&self) -> u16 {
        self.ports.auth
    }

    /// Returns the secret of the admin routes ([`Changes::admin_token`]).
    pub fn admin_token(&self) -> &str {
        let token = self.admin_token.as_deref();
        token.expect("the processes were started with a secret of the admin routes")
    }

    /// Returns a client of the gateway with the token of a service account.
    pub async fn service(&self, account: &str) -> crate::Client {
        let token = self.development.service_token(account).await;
        self.surface.client().with_token(&token)
    }

    /// Returns the standalone installation with pools, services, provider and mail catcher.
    pub fn development(&self) -> &Standalone {
        &self.development
    }

    /// Stops the processes that run as a service manager does, and checks their exit statuses.
    pub async fn stop(mut self) {
        let services = self.notify.iter_mut().chain(&mut self.auth);
        for process in [&mut self.gateway].into_iter().chain(services) {
            if process.is_running() {
                process.stop().await;
            }
        }
        if let Some(stores) = &self.stores {
            sensitive::keep_audit(&stores.auth.url).await;
        }
        let access_log = std::fs::read_to_string(self.folder.path().join("access.log"));
        sensitive::keep("access.out", &access_log.unwrap_or_default());
        self.development.stop().await;
    }
}

pub(crate) fn auth_config(development: &Standalone, ports: Ports) -> ConfigFile {
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

pub(crate) fn notify_config(development: &Standalone, ports: Ports) -> ConfigFile {
    let addresses = development.addresses();
    ConfigFile::of_repository("notify.toml")
        .replace_port(8502, ports.notify)
        .replace_port(8511, ports.notify_admin)
        .replace_port(8504, addresses.actor.port())
        .set("port", &addresses.smtp.port().to_string())
}

pub(crate) fn proxy_config(development: &Standalone, ports: Ports) -> ConfigFile {
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
    development: &Standalone,
    account: Option<&str>,
    only: &[&str],
) -> Program {
    let environment = development.surface().environment().iter();
    // The address of standalone's own gateway must not reach the processes.
    let environment = environment.filter(|(name, _)| !name.starts_with("POSTERN_"));
    let program = program
        .envs(environment.filter(|(name, _)| only.is_empty() || only.contains(&name.as_str())));
    let Some(account) = account else {
        return program;
    };
    let password = development.password_of(account);
    program
        .env("IDP_SERVICE_ACCOUNT_USERNAME", account)
        .env("IDP_SERVICE_ACCOUNT_PASSWORD", password)
}

impl Ports {
    pub(crate) fn free() -> Self {
        let [proxy, auth, notify] = [(); 3].map(|()| ports::free(1));
        let [proxy_admin, auth_admin, notify_admin] = [(); 3].map(|()| ports::free(1));
        Self {
            proxy,
            auth,
            notify,
            proxy_admin,
            auth_admin,
            notify_admin,
        }
    }

    /// Sets the ports of one service: the public one and that of its admin listener.
    pub(crate) fn of_service(own: (u16, u16), notify: u16) -> Self {
        Self {
            proxy: own.0,
            auth: own.0,
            notify,
            proxy_admin: own.1,
            auth_admin: own.1,
            notify_admin: own.1,
        }
    }
}
