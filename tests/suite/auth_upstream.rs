//! The authentication upstream within the process of a test.

use postern_auth::{App, Config, Listeners};
use postern_core::Clock;
use postern_core::config::{Env, parse};
use postern_service::startup::ConfigOrigin;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Returns a listener and its URL.
pub(crate) async fn bind() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, format!("http://{address}"))
}

/// Starts the upstream with a configuration. It runs until it is cancelled.
pub(crate) async fn start(public: TcpListener, config: &str, env: &Env) -> CancellationToken {
    let config = parse("auth.toml", config, |root| Config::read(root, env));
    let config = config.expect("the configuration is valid");
    let app = Box::pin(App::build(config, Clock::system())).await;
    let app = app.expect("the upstream is built");
    let shutdown = CancellationToken::new();
    let admin = None;
    tokio::spawn(app.run(
        Listeners { public, admin },
        ConfigOrigin::built_in("auth.toml", ""),
        shutdown.clone(),
    ));
    shutdown
}
