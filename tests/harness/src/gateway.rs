//! The gateway alone, with the shipped configuration, in front of upstreams of the test.

use std::net::SocketAddr;
use tokio_util::sync::CancellationToken;

use postern_core::Clock;
use postern_core::config::{Env, parse};
use postern_proxy::{App, Config, Listeners};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::config_file::ConfigFile;
use crate::origin::Origin;

/// A running gateway whose routes all lead to one recorder.
#[derive(Debug)]
pub struct Edge {
    gateway: Gateway,
    /// The upstream that records the requests.
    pub upstream: Origin,
}

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    client: Client,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
}

/// A route of `conf/proxy.toml`, as the gateway reads it.
#[derive(Debug)]
pub struct ShippedRoute {
    /// The template of its path.
    pub path: String,
    /// Its methods.
    pub methods: Vec<String>,
    /// Whether it needs no token.
    pub is_public: bool,
}

/// Returns the routes of `conf/proxy.toml`.
///
/// # Panics
/// If the file is not valid.
#[must_use]
pub fn shipped_routes() -> Vec<ShippedRoute> {
    let variables = [
        ("IDP_ACTOR_POOL_ID", "us-west-2_Actor"),
        ("IDP_ACTOR_CLIENT_ID", "actor"),
        ("IDP_SERVICE_POOL_ID", "us-west-2_Service"),
        ("IDP_SERVICE_CLIENT_ID", "service"),
    ];
    let env: Env = variables.into_iter().collect();
    let text = ConfigFile::of_gateway().text().to_owned();
    let config = parse("proxy.toml", &text, |root| Config::read(root, &env));
    let routes = config.expect("a valid configuration").routes.into_iter();
    let shipped = routes.map(|route| ShippedRoute {
        path: route.pattern.path.template.clone(),
        methods: route
            .pattern
            .methods
            .to_string()
            .split(", ")
            .map(str::to_owned)
            .collect(),
        is_public: route.policy.is_public(),
    });
    shipped.collect()
}

// === impl Edge ===

impl Edge {
    /// Starts a gateway from `conf/proxy.toml` on a free port. It trusts tokens of the pools in
    /// `env`.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start(env: &Env) -> Self {
        let upstream = Origin::start().await;
        let gateway = Gateway::start(&Gateway::config(upstream.address()), env).await;
        Self { gateway, upstream }
    }

    /// Returns a client without a token. Responses come from the recorder, so they are not checked
    /// against the contract.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.gateway.client
    }

    /// Stops the gateway and waits for its end.
    pub async fn stop(self) {
        self.gateway.stop().await;
    }
}

// === impl Gateway ===

impl Gateway {
    /// Returns `conf/proxy.toml` with the additions for the local pools, with one address for all
    /// upstreams and without an access log.
    #[must_use]
    pub fn config(upstream: SocketAddr) -> ConfigFile {
        let file = ConfigFile::of_gateway();
        let file = [8501, 8502, 8503, 8504, 8505]
            .into_iter()
            .fold(file, |file, port| file.replace_port(port, upstream.port()));
        file.set("to", "\"off\"")
    }

    /// Starts a gateway on a free port. It trusts tokens of the pools in `env`.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start(file: &ConfigFile, env: &Env) -> Self {
        let public = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free loopback port");
        let address = public.local_addr().expect("the address of a bound socket");
        let config = parse("proxy.toml", file.text(), |root| Config::read(root, env))
            .expect("a valid configuration");
        let app = App::build(config, Clock::system()).expect("the gateway can be built");
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(app.run(
            Listeners {
                public: vec![public],
                admin: None,
            },
            shutdown.clone(),
        ));
        Self {
            client: Client::new(&format!("http://{address}")),
            shutdown,
            running,
        }
    }

    /// Returns a client without a token. Responses are not checked against the contract.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Stops the gateway and waits for its end.
    ///
    /// # Panics
    /// If it panicked.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.running
            .await
            .expect("the gateway ends without a panic");
    }
}
