//! The gateway alone, with the configuration that ships, in front of upstreams that write down what reaches them.

use postern_common::config::{Env, parse};
use postern_common::{Clock, Shutdown};
use postern_proxy::{App, Config, Listeners};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::config_file::ConfigFile;
use crate::recorder::Recorder;

/// A running gateway; every route leads to the same recorder.
#[derive(Debug)]
pub struct Edge {
    client: Client,
    /// What has reached the upstreams.
    pub upstream: Recorder,
    shutdown: Shutdown,
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
        let public = TcpListener::bind("127.0.0.1:0").await.expect("the loopback has a free port");
        let address = public.local_addr().expect("a bound socket has an address");
        let mut file = ConfigFile::of_repository("proxy.toml");
        for port in [8501, 8502, 8504, 8505] {
            file = file.port(port, upstream.address().port());
        }
        let file = file.set("to", "\"off\"");
        let config =
            parse("proxy.toml", file.text(), |root| Config::read(root, env)).expect("the config is good");
        let app = App::build(config, Clock::system()).expect("the gateway is built");
        let shutdown = Shutdown::new();
        let running =
            tokio::spawn(app.run(Listeners { public: vec![public], admin: None }, shutdown.clone()));
        Self { client: Client::new(&format!("http://{address}")), upstream, shutdown, running }
    }

    /// A client of it, without a token. Its answers are the recorder's, so they are not held against the contract.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Stops it and waits until it is gone.
    ///
    /// # Panics
    /// If it panicked.
    pub async fn stop(self) {
        self.shutdown.begin();
        self.running.await.expect("the gateway ends well");
    }
}
