//! The gateway and both upstreams, built from configuration.
//!
//! Input: the built-in configuration files with the addresses and data folder of this installation
//! filled in, or an operator's files. Output: running services. Depends on `lifecycle`.

use std::path::{Path, PathBuf};

use postern_common::Clock;
use postern_common::config::{self, Env};
use postern_common::exit::Exit;
use postern_common::http::bind;
use postern_common::startup::ConfigOrigin;
use postern_dev::data_folder::DataFolder;
use postern_dev::{
    ADMIN_TOKEN, Addresses, DevelopmentServices, landing_page_url, social_callback_url,
};

mod config_layer;
mod templates;

use self::config_layer::{ConfigLayer, ConfigValue};
use crate::lifecycle::{ServiceSockets, ShutdownStage};

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
    ///
    /// # Errors
    /// Status 64 if a file in `overrides` is invalid, 69 if a store is unavailable.
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
        let configs = ServiceConfigs {
            proxy: overrides
                .apply(
                    proxy_layer(folder, addresses)?,
                    "proxy.toml",
                    &["listen", "admin", "handover", "include"],
                )?
                .read(|root| postern_proxy::Config::read(root, &proxy_env))?,
            auth: overrides
                .apply(
                    auth_layer(folder, addresses)?,
                    "auth.toml",
                    &["listen", "admin"],
                )?
                .read(|root| postern_auth::Config::read(root, &auth_env))?,
            notify: overrides
                .apply(
                    notify_layer(folder, addresses)?,
                    "notify.toml",
                    &["listen", "admin"],
                )?
                .read(|root| postern_notify::Config::read(root, &notify_env))?,
        };
        let built_in = [
            ("auth.toml", include_str!("../../conf/auth.toml")),
            ("notify.toml", include_str!("../../conf/notify.toml")),
        ];
        let origins = built_in.map(|(name, text)| overrides.origin(name, text));
        Box::pin(Self::build(configs, origins, clock)).await
    }

    /// Builds the services from `proxy.toml`, `auth.toml` and `notify.toml` in a folder, and binds
    /// the sockets configured there. `listen` replaces the first configured address of the gateway.
    ///
    /// # Errors
    /// Status 64 for an invalid file, 69 if an address cannot be bound or a store is unavailable.
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
        let ServiceConfigs {
            proxy,
            auth,
            notify,
        } = configs;
        let auth = postern_auth::App::build(auth, clock.clone());
        let notify = postern_notify::App::build(notify, clock.clone());
        let (auth, notify) = tokio::join!(Box::pin(auth), Box::pin(notify));
        Ok(Self {
            proxy: postern_proxy::App::build(proxy, clock.clone())?,
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
        let ServiceSockets {
            proxy,
            auth,
            notify,
            proxy_admin,
            auth_admin,
            notify_admin,
        } = sockets;
        let [auth_origin, notify_origin] = self.origins;
        let auth = postern_auth::Listeners {
            public: auth,
            admin: auth_admin,
        };
        middle.spawn(
            "authentication upstream",
            self.auth.run(auth, auth_origin, middle.shutdown()),
        );
        middle.raise_stop_timeout(postern_notify::MAX_SHUTDOWN_DURATION);
        let notify = postern_notify::Listeners {
            public: notify,
            admin: notify_admin,
        };
        middle.spawn(
            "notification upstream",
            self.notify.run(notify, notify_origin, middle.shutdown()),
        );
        let proxy = postern_proxy::Listeners {
            public: proxy,
            admin: proxy_admin,
        };
        front.spawn("gateway", self.proxy.run(proxy, front.shutdown()));
    }
}

// === impl ServiceConfigs ===

impl ServiceConfigs {
    /// Loads the three files. Reports the errors of all of them together.
    fn load(folder: &Path, env: &Env) -> Result<Self, Exit> {
        let proxy = postern_proxy::config_files(&folder.join("proxy.toml"))
            .and_then(|files| files.decode(|root| postern_proxy::Config::read(root, env)));
        let auth = config::load(&folder.join("auth.toml"), |root| {
            postern_auth::Config::read(root, env)
        });
        let notify = config::load(&folder.join("notify.toml"), |root| {
            postern_notify::Config::read(root, env)
        });
        match (proxy, auth, notify) {
            (Ok(proxy), Ok(auth), Ok(notify)) => Ok(Self {
                proxy,
                auth,
                notify,
            }),
            (proxy, auth, notify) => {
                let errors = [proxy.err(), auth.err(), notify.err()]
                    .into_iter()
                    .flatten();
                let lines: Vec<String> = errors.map(|exit| exit.message().to_owned()).collect();
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
        Ok(ServiceSockets {
            proxy,
            proxy_admin,
            auth: bind(self.auth.listen).await?,
            auth_admin: Some(bind(self.auth.admin.address).await?),
            notify: bind(self.notify.listen).await?,
            notify_admin: Some(bind(self.notify.admin.address).await?),
        })
    }
}

/// Paths of the operator's configuration files found in the override folder.
struct ConfigOverrides(Vec<PathBuf>);

impl ConfigOverrides {
    /// Returns the configuration files in `folder`, or none without a folder.
    ///
    /// # Errors
    /// Status 64 if the folder contains none of the three files.
    fn find(folder: Option<&Path>) -> Result<Self, Exit> {
        let Some(folder) = folder else {
            return Ok(Self(Vec::new()));
        };
        let all = ["proxy.toml", "auth.toml", "notify.toml"].map(|name| folder.join(name));
        let found: Vec<PathBuf> = all.into_iter().filter(|path| path.exists()).collect();
        if found.is_empty() {
            let folder = folder.display();
            return Err(Exit::usage(format!(
                "{folder}: contains no proxy.toml, auth.toml, or notify.toml"
            )));
        }
        Ok(Self(found))
    }

    /// Merges the operator's file of this name into a built-in configuration, which is returned
    /// unchanged if there is no such file. `fixed_keys` are the top-level keys that the file must
    /// not contain, because the addresses are set by the command line.
    ///
    /// # Errors
    /// Status 64 for a file that cannot be read or parsed, or that contains a fixed key.
    fn apply(
        &self,
        built_in: ConfigLayer,
        name: &str,
        fixed_keys: &[&str],
    ) -> Result<ConfigLayer, Exit> {
        match self.0.iter().find(|path| path.ends_with(name)) {
            // If the operator supplies a file, only its [[test]] entries are run: the built-in ones
            // describe the built-in routes.
            Some(path) => built_in.unset(&["test"]).overlay(path, fixed_keys),
            None => Ok(built_in),
        }
    }

    /// Describes the configuration of a service: the operator's file if there is one, else the
    /// built-in one.
    fn origin(&self, name: &str, built_in: &str) -> ConfigOrigin {
        let file = self.0.iter().find(|path| path.ends_with(name));
        file.map_or_else(
            || ConfigOrigin::built_in(name, built_in),
            |path| ConfigOrigin::of_file(path),
        )
    }
}

/// CORS origins on loopback hosts, any port.
const LOOPBACK_ORIGINS: [&str; 6] = [
    "http://localhost:*",
    "http://127.0.0.1:*",
    "http://[::1]:*",
    "https://localhost:*",
    "https://127.0.0.1:*",
    "https://[::1]:*",
];

fn proxy_layer(folder: &DataFolder, addresses: &Addresses) -> Result<ConfigLayer, Exit> {
    let access_log = folder.path().join("access.log").display().to_string();
    let text = concat!(
        include_str!("../../conf/proxy.toml"),
        include_str!("../../conf/proxy-local-pool.toml")
    );
    let layer = ConfigLayer::parse("conf/proxy.toml", text)?
        .set(
            &["listen"],
            vec![ConfigValue::table("address", addresses.proxy)],
        )
        .set(&["admin", "address"], addresses.proxy_admin)
        .set(&["admin", "token_env"], ADMIN_TOKEN)
        .set(&["defaults", "cors", "origins"], LOOPBACK_ORIGINS.to_vec())
        .set(&["access_log", "to"], access_log)
        .set(&["access_log", "max_bytes"], "64MiB")
        // No load balancer must notice the shutdown before the listeners close, and a developer
        // does not wait for the drain times of production.
        .set(&["stop", "notice"], "0s")
        .set(&["stop", "linger"], "0s")
        .set(&["stop", "drain"], "500ms");
    let upstreams = [
        ("auth", addresses.auth),
        ("notify", addresses.notify),
        ("actor", addresses.actor),
        ("document", addresses.document),
        ("identity-pool", addresses.identity_pool),
    ];
    let set_address = |layer: ConfigLayer, (name, address)| {
        layer.set(
            &["upstream", name, "addresses"],
            vec![ConfigValue::from(address)],
        )
    };
    Ok(upstreams.into_iter().fold(layer, set_address))
}

fn auth_layer(folder: &DataFolder, addresses: &Addresses) -> Result<ConfigLayer, Exit> {
    Ok(
        ConfigLayer::parse("conf/auth.toml", include_str!("../../conf/auth.toml"))?
            .set(
                &["listen"],
                vec![ConfigValue::table("address", addresses.auth)],
            )
            .set(&["admin", "address"], addresses.auth_admin)
            .set(&["admin", "token_env"], ADMIN_TOKEN)
            .set(&["database"], folder.database("auth.db"))
            .set(&["cache"], "memory:")
            .set(&["actor_service"], format!("http://{}", addresses.actor))
            .set(
                &["notification_service"],
                format!("http://{}", addresses.notify),
            )
            .set(&["social", "name"], "development")
            .set(
                &["social", "issuer"],
                format!("http://{}", addresses.social),
            )
            .set(&["social", "redirect_uri"], social_callback_url(addresses))
            .set(&["social", "ui"], landing_page_url(addresses))
            .set(&["social", "authoritative_domains"], vec!["example.com"])
            // The parameters are Google's; the development provider does not use them.
            .unset(&["social", "parameters"]),
    )
}

fn notify_layer(folder: &DataFolder, addresses: &Addresses) -> Result<ConfigLayer, Exit> {
    let path_in_folder = |name: &str| folder.path().join(name).display().to_string();
    Ok(
        ConfigLayer::parse("conf/notify.toml", include_str!("../../conf/notify.toml"))?
            .set(
                &["listen"],
                vec![ConfigValue::table("address", addresses.notify)],
            )
            .set(&["admin", "address"], addresses.notify_admin)
            .set(&["admin", "token_env"], ADMIN_TOKEN)
            .set(&["database"], folder.database("notify.db"))
            .set(&["cache"], "memory:")
            .set(&["actor_service"], format!("http://{}", addresses.actor))
            .set(
                &["templates", "folder"],
                templates::write_templates(folder)?.display().to_string(),
            )
            .set(
                &["provider", "smtp", "host"],
                addresses.smtp.ip().to_string(),
            )
            .set(
                &["provider", "smtp", "port"],
                i64::from(addresses.smtp.port()),
            )
            .set(&["provider", "sms-file", "folder"], path_in_folder("sms"))
            .set(&["provider", "push-file", "folder"], path_in_folder("push")),
    )
}
