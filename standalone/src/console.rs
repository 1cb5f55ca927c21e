//! The web console of this installation, and its one-time links.
//!
//! A link signs its holder in as operator. Its secret is in the fragment, which browsers do not
//! send. Whoever can read the data folder can request links.
//!
//! Depends on `development` for the secret of the admin routes, and on `lifecycle`.

use std::net::SocketAddr;
use std::path::Path;

use postern_common::config::{self, Env};
use postern_common::exit::Exit;
use postern_common::{Clock, Secret};
use postern_console::{App, Config};
use serde_json::Value;

use crate::development::{ADMIN_TOKEN, DevelopmentServices};
use crate::lifecycle::{Addresses, EnvironmentFile};

/// Builds the console over the admin listeners of this process. Users of the groups `admin` and
/// `support` can sign in as well.
///
/// # Errors
/// Status 69 if a client cannot be built.
pub(crate) fn build(
    addresses: &Addresses,
    development: &DevelopmentServices,
    clock: &Clock,
) -> Result<App, Exit> {
    let process = |kind: &str, admin: SocketAddr| {
        format!(
            "[[process]]\nkind = \"{kind}\"\nurls = [\"http://{admin}\"]\ntoken_env = \"{ADMIN_TOKEN}\"\n"
        )
    };
    let text = format!(
        "listen = [{{ address = \"{}\" }}]\n\
         [sign_in]\ngateway = \"http://{}\"\n\
         [roles.viewer]\ngroups = [\"support\"]\n[roles.operator]\ngroups = [\"admin\"]\n{}{}{}",
        addresses.console,
        addresses.proxy,
        process("gateway", addresses.proxy_admin),
        process("auth", addresses.auth_admin),
        process("notify", addresses.notify_admin),
    );
    let env: Env = development.variables(None).into_iter().collect();
    let config = config::parse("console", &text, |root| Config::read(root, &env))?;
    let config = Config {
        link_secret: env.secret(ADMIN_TOKEN),
        ..config
    };
    App::build(config, clock.clone())
}

/// Returns the link with a secret.
pub(crate) fn link(console: SocketAddr, secret: &Secret) -> Secret {
    Secret::new(format!("http://{console}/#once={}", secret.expose()))
}

/// Requests a new one-time link from the running installation of a data folder. An unused earlier
/// link is no longer valid.
///
/// # Errors
/// Exits with status 69 if the folder was never used or the installation is not running.
pub async fn console_link(folder: &Path) -> Result<Secret, Exit> {
    let stored = EnvironmentFile::read(folder)?;
    let url = stored.get("POSTERN_CONSOLE_URL").unwrap_or_default();
    let unavailable = |reason: &str| {
        Exit::unavailable(format!(
            "no link from the console at {url} ({reason}); start postern with this --data-dir first"
        ))
    };
    let request = reqwest::Client::builder()
        .no_proxy()
        .build()
        .map_err(|_| unavailable("cannot build an HTTP client"))?
        .post(format!("{url}/session/link"))
        .bearer_auth(stored.get(ADMIN_TOKEN).unwrap_or_default());
    let answer = request.send().await;
    let answer = answer.map_err(|_| unavailable("cannot connect"))?;
    let status = answer.status();
    let body: Value = answer.json().await.unwrap_or_default();
    match body["secret"].as_str() {
        Some(secret) => Ok(Secret::new(format!("{url}/#once={secret}"))),
        None => Err(unavailable(&format!("status {status}"))),
    }
}
