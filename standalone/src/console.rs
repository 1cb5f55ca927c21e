//! The web console of this installation, and its one-time links.
//!
//! A link signs its holder in as operator. Its secret is in the fragment, which browsers do not
//! send. Whoever can read the data folder can request links, with a secret that serves no other
//! purpose and changes at every start: another program may listen on the console's port later.

use std::net::SocketAddr;
use std::path::Path;

use postern_console::{App, Config};
use postern_core::config::{self, Env};
use postern_core::exit::Exit;
use postern_core::{Clock, Secret};
use postern_dev::{ADMIN_TOKEN, Addresses, DevelopmentServices};

use crate::lifecycle::EnvironmentFile;

/// The variable of `standalone.env` with the secret with which one-time links are requested.
pub(crate) const LINK_SECRET: &str = "POSTERN_CONSOLE_LINK_SECRET";

/// Creates the secret with which one-time links are requested until the next start: 256 random bits.
pub(crate) fn create_link_secret() -> Result<Secret, Exit> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| Exit::unavailable(error.to_string()))?;
    Ok(Secret::new(hex::encode(bytes)))
}

/// Builds the console over the admin listeners of this process. Users of the groups `admin` and
/// `support` can sign in as well.
pub(crate) fn build(
    addresses: &Addresses,
    development: &DevelopmentServices,
    link_secret: Secret,
    clock: &Clock,
) -> Result<App, Exit> {
    let process = |kind: &str, admin: SocketAddr| {
        format!(
            "[[process]]\nkind = \"{kind}\"\nurls = [\"http://{admin}\"]\ntoken_env = \"{ADMIN_TOKEN}\"\n"
        )
    };
    let text = format!(
        "listen = [{{ address = \"{}\" }}]\n\
         [sign_in]\nauth = \"http://{}\"\n\
         [roles.viewer]\ngroups = [\"support\"]\n[roles.operator]\ngroups = [\"admin\"]\n{}{}{}",
        addresses.console,
        addresses.auth,
        process("gateway", addresses.proxy_admin),
        process("auth", addresses.auth_admin),
        process("notify", addresses.notify_admin),
    );
    let env: Env = development.variables(None).into_iter().collect();
    let mut config = config::parse("console", &text, |root| Config::read(root, &env))?;
    config.link_secret = Some(link_secret);
    App::build(config, clock.clone())
}

pub(crate) fn link(console: &str, secret: &Secret) -> Secret {
    Secret::new(format!("{console}/#once={}", secret.expose()))
}

/// Requests a new one-time link from the running installation of a data folder. An unused earlier
/// link is no longer valid.
pub async fn console_link(folder: &Path) -> Result<Secret, Exit> {
    let stored = EnvironmentFile::read(folder)?;
    let url = stored.get("POSTERN_CONSOLE_URL").unwrap_or_default();
    let secret =
        postern_console::link::request_secret(url, stored.get(LINK_SECRET).unwrap_or_default())
            .await;
    let secret = secret.map_err(|error| {
        let reason = error.message();
        let advice = "start postern with this --data-dir first";
        Exit::unavailable(format!("{reason}; {advice}"))
    })?;
    Ok(link(url, &secret))
}
