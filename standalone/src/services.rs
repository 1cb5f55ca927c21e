//! The gateway and both upstreams, built from configuration.
//!
//! Input: the built-in configuration files with the addresses and data folder of this installation
//! filled in, or an operator's files. Output: running services.

use std::path::{Path, PathBuf};

use postern_core::Clock;
use postern_core::config::{self, Env};
use postern_core::exit::Exit;
use postern_dev::data_folder::DataFolder;
use postern_dev::{Addresses, DevelopmentServices};
use postern_service::http::bind;
use postern_service::startup::ConfigOrigin;

pub(crate) mod built_in;
mod config_layer;
mod templates;

use self::config_layer::ConfigLayer;
use crate::lifecycle::{ServiceSockets, ShutdownStage, listeners};

/// The configuration files of the services.
const FILES: [&str; 3] = ["proxy.toml", "auth.toml", "notify.toml"];

/// The gateway and both upstreams, before they serve.
pub(crate) struct GatewayServices {
    proxy: postern_proxy::App,
    auth: postern_auth::App,
    notify: postern_notify::App,
    /// The configurations of the two upstreams, in this order.
    origins: [ConfigOrigin; 2],
}

/// The configuration of each service.
struct ServiceConfigs {
    proxy: postern_proxy::Config,
    auth: postern_auth::Config,
    notify: postern_notify::Config,
}

// === impl GatewayServices ===

impl GatewayServices {
    /// Builds the services from the built-in configuration: SQLite databases in the data folder,
    /// in-memory caches, and the development services. Files in the folder `overrides` change it.
    /// The gateway reads and watches its file in the data folder, unless there is an override of it.
    pub(crate) async fn from_built_in_config(
        folder: &DataFolder,
        overrides: Option<&Path>,
        addresses: &Addresses,
        development: &DevelopmentServices,
        clock: &Clock,
    ) -> Result<Self, Exit> {
        let overrides = ConfigOverrides::find(overrides)?;
        // The gateway calls no service under an account of its own.
        let proxy_env: Env = development.variables(None).into_iter().collect();
        let auth_env: Env = development.variables(Some("auth")).into_iter().collect();
        let notify_env: Env = development.variables(Some("notify")).into_iter().collect();
        let file = built_in::gateway_path(folder);
        let is_overridden = overrides.path("proxy.toml").is_some();
        let templates = templates::write_templates(folder)?;
        let auth = built_in::auth(folder, addresses);
        let notify = built_in::notify(folder, &templates, addresses);
        let configs = ServiceConfigs {
            proxy: if is_overridden {
                let text = built_in::proxy(folder, addresses);
                overrides
                    .apply("proxy.toml", &text, &["listen", "admin", "handover"])?
                    .read(|root| postern_proxy::Config::read(root, &proxy_env))?
            } else {
                built_in::read_gateway(&file, &proxy_env)?
            },
            auth: overrides
                .apply("auth.toml", &auth, &["listen", "admin"])?
                .read(|root| postern_auth::Config::read(root, &auth_env))?,
            notify: overrides
                .apply("notify.toml", &notify, &["listen", "admin"])?
                .read(|root| postern_notify::Config::read(root, &notify_env))?,
        };
        let shipped = [
            ("auth.toml", built_in::AUTH),
            ("notify.toml", built_in::NOTIFY),
        ];
        let origins = shipped.map(|(name, text)| overrides.origin(name, text));
        let mut services = Box::pin(Self::build(configs, origins, clock)).await?;
        if !is_overridden {
            services.proxy = services.proxy.watch(file, proxy_env);
        }
        Ok(services)
    }

    /// Builds the services from `proxy.toml`, `auth.toml` and `notify.toml` in a folder, and binds
    /// the sockets configured there. `listen` replaces the first configured address of the gateway.
    pub(crate) async fn from_folder(
        folder: &Path,
        listen: Option<std::net::SocketAddr>,
        env: &Env,
        clock: &Clock,
    ) -> Result<(Self, ServiceSockets), Exit> {
        let configs = ServiceConfigs::load(folder, env)?;
        let sockets = configs.bind(listen).await?;
        let origins =
            ["auth.toml", "notify.toml"].map(|name| ConfigOrigin::of_file(&folder.join(name)));
        for origin in origins.clone() {
            origin.log_hangups();
        }
        let mut services = Box::pin(Self::build(configs, origins, clock)).await?;
        services.proxy = services.proxy.watch(folder.join("proxy.toml"), env.clone());
        Ok((services, sockets))
    }

    async fn build(
        configs: ServiceConfigs,
        origins: [ConfigOrigin; 2],
        clock: &Clock,
    ) -> Result<Self, Exit> {
        let auth = postern_auth::App::build(configs.auth, clock.clone());
        let notify = postern_notify::App::build(configs.notify, clock.clone());
        let (auth, notify) = tokio::join!(Box::pin(auth), Box::pin(notify));
        Ok(Self {
            proxy: postern_proxy::App::build(configs.proxy, clock.clone())?,
            auth: auth?,
            notify: notify?,
            origins,
        })
    }

    /// Serves until the stages stop: the gateway in `front`, the upstreams in `middle`.
    pub(crate) fn run(
        self,
        sockets: ServiceSockets,
        front: &mut ShutdownStage,
        middle: &mut ShutdownStage,
    ) {
        let [auth, notify] = self.origins;
        let auth = self.auth.run(sockets.auth, auth, middle.shutdown());
        middle.spawn("authentication upstream", auth);
        middle.raise_stop_timeout(postern_notify::MAX_SHUTDOWN_DURATION);
        let notify = self.notify.run(sockets.notify, notify, middle.shutdown());
        middle.spawn("notification upstream", notify);
        let proxy = self.proxy.run(sockets.proxy, front.shutdown());
        front.spawn("gateway", proxy);
    }
}

// === impl ServiceConfigs ===

impl ServiceConfigs {
    /// Loads the three files. Reports the errors of all of them together.
    fn load(folder: &Path, env: &Env) -> Result<Self, Exit> {
        let [proxy, auth, notify] = FILES.map(|name| folder.join(name));
        let proxy = config::load(&proxy, |root| postern_proxy::Config::read(root, env));
        let auth = config::load(&auth, |root| postern_auth::Config::read(root, env));
        let notify = config::load(&notify, |root| postern_notify::Config::read(root, env));
        match (proxy, auth, notify) {
            (Ok(proxy), Ok(auth), Ok(notify)) => Ok(Self {
                proxy,
                auth,
                notify,
            }),
            (proxy, auth, notify) => {
                let errors = [proxy.err(), auth.err(), notify.err()];
                let errors: Vec<Exit> = errors.into_iter().flatten().collect();
                let lines: Vec<&str> = errors.iter().map(Exit::message).collect();
                Err(Exit::usage(lines.join("\n")))
            }
        }
    }

    /// Binds the configured addresses. `listen` replaces the first configured address of the
    /// gateway.
    async fn bind(&self, listen: Option<std::net::SocketAddr>) -> Result<ServiceSockets, Exit> {
        let mut proxy = Vec::new();
        for (index, configured) in self.proxy.listen.iter().enumerate() {
            proxy.push(bind(listen.filter(|_| index == 0).unwrap_or(configured.address)).await?);
        }
        let proxy_admin = match &self.proxy.admin {
            Some(admin) => Some(bind(admin.address).await?),
            None => None,
        };
        let proxy = postern_proxy::Listeners {
            public: proxy,
            admin: proxy_admin,
        };
        let upstream =
            async |public, admin| Ok::<_, Exit>(listeners(bind(public).await?, bind(admin).await?));
        Ok(ServiceSockets {
            proxy,
            auth: upstream(self.auth.listen, self.auth.admin.address).await?,
            notify: upstream(self.notify.listen, self.notify.admin.address).await?,
        })
    }
}

/// Paths of the operator's configuration files found in the override folder.
struct ConfigOverrides(Vec<PathBuf>);

impl ConfigOverrides {
    /// Returns the configuration files in `folder`, or none without a folder.
    fn find(folder: Option<&Path>) -> Result<Self, Exit> {
        let Some(folder) = folder else {
            return Ok(Self(Vec::new()));
        };
        let all = FILES.map(|name| folder.join(name));
        let found: Vec<PathBuf> = all.into_iter().filter(|path| path.exists()).collect();
        if found.is_empty() {
            let folder = folder.display();
            return Err(Exit::usage(format!(
                "{folder}: contains no proxy.toml, auth.toml, or notify.toml"
            )));
        }
        Ok(Self(found))
    }

    /// Returns the operator's file of this name.
    fn path(&self, name: &str) -> Option<&PathBuf> {
        self.0.iter().find(|path| path.ends_with(name))
    }

    /// Merges the operator's file of this name into a built-in text. `fixed_keys` are the top-level
    /// keys that the file must not contain, because the addresses are set by the command line.
    fn apply(&self, name: &str, built_in: &str, fixed_keys: &[&str]) -> Result<ConfigLayer, Exit> {
        let built_in = ConfigLayer::parse(&format!("conf/{name}"), built_in)?;
        match self.path(name) {
            // If the operator supplies a file, only its [[test]] entries are run: the built-in ones
            // describe the built-in routes.
            Some(path) => built_in.without_tests().overlay(path, fixed_keys),
            None => Ok(built_in),
        }
    }

    /// Describes the configuration of a service: the operator's file if there is one, else the
    /// built-in one.
    fn origin(&self, name: &str, built_in: &str) -> ConfigOrigin {
        match self.path(name) {
            Some(path) => ConfigOrigin::of_file(path),
            None => ConfigOrigin::built_in(name, built_in),
        }
    }
}
