//! The gateway alone, with the configuration that ships, in front of upstreams of the test.

use std::net::SocketAddr;
use tokio_util::sync::CancellationToken;

use postern_common::Clock;
use postern_common::config::{Env, parse};
use postern_proxy::{App, Config, Listeners};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::config_file::ConfigFile;
use crate::recorder::Recorder;

/// A running gateway; every route leads to the same recorder.
#[derive(Debug)]
pub struct Edge {
    gateway: Gateway,
    /// What has reached the upstreams.
    pub upstream: Recorder,
}

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    client: Client,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
}

// === impl Edge ===

impl Edge {
    /// Starts it from `conf/proxy.toml` on a free port; tokens of the pools in `env` are trusted.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start(env: &Env) -> Self {
        let upstream = Recorder::start().await;
        let gateway = Gateway::start(&Gateway::config(upstream.address()), env).await;
        Self { gateway, upstream }
    }

    /// A client of it, without a token. Its answers are the recorder's, so they are not held
    /// against the contract.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.gateway.client
    }

    /// Stops it and waits until it is gone.
    pub async fn stop(self) {
        self.gateway.stop().await;
    }
}

// === impl Gateway ===

impl Gateway {
    /// `conf/proxy.toml`, and what the local pool adds to it, with this address for all upstreams
    /// and without an access log.
    #[must_use]
    pub fn config(upstream: SocketAddr) -> ConfigFile {
        let file = ConfigFile::of_gateway();
        let file = [8501, 8502, 8503, 8504, 8505]
            .into_iter()
            .fold(file, |file, port| file.port(port, upstream.port()));
        file.set("to", "\"off\"")
    }

    /// Starts it on a free port; tokens of the pools in `env` are trusted.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start(file: &ConfigFile, env: &Env) -> Self {
        let public = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("the loopback has a free port");
        let address = public.local_addr().expect("a bound socket has an address");
        let config = parse("proxy.toml", file.text(), |root| Config::read(root, env))
            .expect("the config is good");
        let app = App::build(config, Clock::system()).expect("the gateway is built");
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

    /// A client of it, without a token; its answers are not held against the contract.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Stops it and waits until it is gone.
    ///
    /// # Panics
    /// If it panicked.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.running.await.expect("the gateway ends well");
    }
}
