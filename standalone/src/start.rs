//! From a data folder to a running installation.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use postern_common::Clock;
use postern_common::exit::Exit;
use postern_identity_pool::Hashing;

use crate::development::{Development, landing_page};
use crate::environment::Environment;
use crate::folder::Folder;
use crate::running::{Running, Stage};
use crate::services::Services;
use crate::sockets::{Addresses, Sockets};

/// How standalone is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where everything is kept; made if it is not there.
    pub data_dir: PathBuf,
    /// Where the gateway listens; default `127.0.0.1` with the port `port`.
    pub listen: Option<SocketAddr>,
    /// The gateway's port; the other parts take the eleven after it, on 127.0.0.1. 0: every port is
    /// chosen by the system.
    pub port: u16,
    /// A folder with `proxy.toml`, `auth.toml` or `notify.toml`, whose values go before those that
    /// are compiled in; default none.
    pub overrides: Option<PathBuf>,
    /// What password hashes of the identity pool cost; tests take less.
    pub hashing: Hashing,
    /// The time, for every part.
    pub clock: Clock,
}

/// The port of the interface.
pub(crate) const PORT: u16 = 8500;

// === impl Options ===

impl Options {
    /// The defaults, in this folder.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            listen: None,
            port: PORT,
            overrides: None,
            hashing: Hashing::default(),
            clock: Clock::system(),
        }
    }

    /// For tests: ports of the system's choice, and a clock.
    #[must_use]
    pub fn ephemeral(data_dir: impl Into<PathBuf>, clock: Clock) -> Self {
        Self {
            port: 0,
            clock,
            ..Self::new(data_dir)
        }
    }
}

/// Starts everything. When this returns, every part listens and a request to the gateway is
/// answered.
///
/// # Errors
/// 64 when the gateway is to listen where other machines reach it, or for a mistake in a file of
/// `overrides`; 69 when the folder cannot be written or is in use, or a port is taken.
pub async fn start(options: Options) -> Result<Running, Exit> {
    let Options {
        data_dir,
        listen,
        port,
        overrides,
        hashing,
        clock,
    } = options;
    let listen = listen.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    if !listen.ip().is_loopback() {
        return Err(refuse_to_open(listen));
    }
    let folder = Folder::take(&data_dir)?;
    let (sockets, addresses) = Sockets::bind(listen, port).await?;
    let development = Box::pin(Development::build(&folder, &addresses, hashing, &clock)).await?;
    let services = Box::pin(Services::embedded(
        &folder,
        overrides.as_deref(),
        &addresses,
        &development,
        &clock,
    ))
    .await?;
    let environment = environment(&addresses, &folder, &development);
    environment.write(folder.path())?;
    let mailbox = development.mailbox();
    let keys_are_made = development.keys_are_made();
    let (mut front, mut middle, mut back) = (Stage::default(), Stage::default(), Stage::default());
    development.run(sockets.development, &mut back);
    services.run(sockets.services, &mut front, &mut middle);
    keys_are_made.await?;
    Ok(Running::new(
        addresses,
        environment,
        mailbox,
        vec![front, middle, back],
        folder,
    ))
}

fn refuse_to_open(listen: SocketAddr) -> Exit {
    Exit::usage(format!(
        "--listen {listen}: the identity pool, the sample services, the social provider and the mail catcher are \
         for development and do not start where other machines reach the gateway. Configure your own instead (the \
         pools by IDP_* and CLOUD_REGION, the social provider by SOCIAL_*, actor and document services in \
         conf/proxy.toml and conf/auth.toml, the mail server in conf/notify.toml), and start with: \
         postern --config conf --listen {listen}"
    ))
}

/// What `standalone.env` says.
fn environment(addresses: &Addresses, folder: &Folder, development: &Development) -> Environment {
    let mut environment = Environment::default();
    let parts = [
        ("POSTERN_URL", addresses.proxy),
        ("POSTERN_AUTH_URL", addresses.auth),
        ("POSTERN_NOTIFY_URL", addresses.notify),
        ("POSTERN_IDENTITY_POOL_URL", addresses.identity_pool),
        ("POSTERN_ACTOR_URL", addresses.actor),
        ("POSTERN_DOCUMENT_URL", addresses.document),
        ("POSTERN_SOCIAL_URL", addresses.social),
        ("POSTERN_MAIL_URL", addresses.mail),
        ("POSTERN_PROXY_ADMIN_URL", addresses.proxy_admin),
        ("POSTERN_AUTH_ADMIN_URL", addresses.auth_admin),
        ("POSTERN_NOTIFY_ADMIN_URL", addresses.notify_admin),
    ];
    for (name, address) in parts {
        environment.add(name, format!("http://{address}"));
    }
    environment.add("POSTERN_UI_URL", landing_page(addresses));
    environment.add("POSTERN_SMTP_URL", format!("smtp://{}", addresses.smtp));
    environment.add("POSTERN_SMTP_HOST", addresses.smtp.ip().to_string());
    environment.add("POSTERN_SMTP_PORT", addresses.smtp.port().to_string());
    environment.add("POSTERN_DATA_DIR", folder.path().display().to_string());
    for (name, value) in development.variables("auth") {
        environment.add(name, value);
    }
    for account in &development.provisioned().accounts {
        let name = account.name.to_uppercase();
        environment.add(
            format!("POSTERN_SERVICE_{name}_USERNAME"),
            account.name.clone(),
        );
        environment.add(
            format!("POSTERN_SERVICE_{name}_PASSWORD"),
            account.password.expose(),
        );
    }
    environment
}

#[cfg(test)]
mod tests;
