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

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    client: Client,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
}

/// Returns the routes of `conf/proxy.toml`: the template of the path, the methods, and whether no
/// token is needed.
pub fn shipped_routes() -> Vec<(String, Vec<String>, bool)> {
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
    let shipped = routes.map(|route| {
        let methods = route.pattern.methods.to_string();
        let methods = methods.split(", ").map(str::to_owned).collect();
        let path = route.pattern.path.template.clone();
        (path, methods, route.policy.is_public())
    });
    shipped.collect()
}

impl Gateway {
    /// Returns `conf/proxy.toml` with the additions for the local pools, with one address for all
    /// upstreams and without an access log.
    pub fn config(upstream: SocketAddr) -> ConfigFile {
        let file = ConfigFile::of_gateway();
        let file = [8501, 8502, 8503, 8504, 8505]
            .into_iter()
            .fold(file, |file, port| file.replace_port(port, upstream.port()));
        file.set("to", "\"off\"")
    }

    /// Starts a gateway on a free port. It trusts tokens of the pools in `env`.
    pub async fn start(file: &ConfigFile, env: &Env) -> Self {
        let public = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = public.local_addr().expect("the address of a bound socket");
        let config = parse("proxy.toml", file.text(), |root| Config::read(root, env));
        let config = config.expect("a valid configuration");
        let app = App::build(config, Clock::system()).expect("the gateway can be built");
        let shutdown = CancellationToken::new();
        let (public, admin) = (vec![public], None);
        let running = tokio::spawn(app.run(Listeners { public, admin }, shutdown.clone()));
        Self {
            client: Client::new(&format!("http://{address}")),
            shutdown,
            running,
        }
    }

    /// Returns a client without a token. Responses are not checked against the contract.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Stops the gateway and waits for its end.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.running
            .await
            .expect("the gateway ends without a panic");
    }
}
