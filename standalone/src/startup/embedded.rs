//! Starts an installation with embedded development services in a data folder.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use postern_core::Clock;
use postern_core::exit::Exit;
use postern_dev::data_folder::DataFolder;
use postern_dev::{Addresses, DevelopmentServices, landing_page_url};

use crate::console;
use crate::lifecycle::{BoundSockets, Embedded, EnvironmentFile, Running, ShutdownStage};
use crate::services::{GatewayServices, built_in};

/// Options of an embedded installation.
#[derive(Clone, Debug)]
pub struct Options {
    /// Data folder; created if it does not exist.
    pub data_dir: PathBuf,
    /// Listening address of the gateway. Default: 127.0.0.1 and `port`.
    pub listen: Option<SocketAddr>,
    /// Port of the gateway. The other parts use the 12 following ports on 127.0.0.1. With 0, the
    /// operating system assigns all ports.
    pub port: u16,
    /// Folder with `proxy.toml`, `auth.toml`, or `notify.toml`, whose values override the built-in
    /// ones. Default: none.
    pub overrides: Option<PathBuf>,
    /// Lifetime of users' access tokens. Default one hour.
    pub access_token_lifetime: Option<Duration>,
    /// Clock used by every part.
    pub clock: Clock,
}

pub(crate) const DEFAULT_PORT: u16 = 8500;

impl Options {
    /// Returns the default options for a data folder.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            listen: None,
            port: DEFAULT_PORT,
            overrides: None,
            access_token_lifetime: None,
            clock: Clock::system(),
        }
    }

    /// Returns options for tests: ports assigned by the operating system, and the given clock.
    #[must_use]
    pub fn ephemeral(data_dir: impl Into<PathBuf>, clock: Clock) -> Self {
        Self {
            port: 0,
            clock,
            ..Self::new(data_dir)
        }
    }
}

/// Starts the installation. On return, every part accepts connections and the signing keys exist.
pub async fn start(options: Options) -> Result<Running, Exit> {
    let (clock, overrides) = (options.clock, options.overrides);
    let default = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
    let listen = options.listen.unwrap_or(default);
    if !listen.ip().is_loopback() {
        return Err(non_loopback_error(listen));
    }
    let folder = DataFolder::acquire(&options.data_dir)?;
    built_in::limit_access_log(folder.path())?;
    let (sockets, addresses) = BoundSockets::bind(listen, options.port).await?;
    let development = Box::pin(DevelopmentServices::build(
        &folder,
        &addresses,
        options.access_token_lifetime,
        &clock,
    ))
    .await?;
    let link_secret = console::create_link_secret()?;
    let mut environment = environment(&addresses, &folder, &development);
    environment.add(console::LINK_SECRET, link_secret.expose());
    let file = built_in::update_gateway(&folder, &addresses)?;
    let overridden = overrides.as_ref().map(|folder| folder.join("proxy.toml"));
    let file = overridden.filter(|path| path.exists()).unwrap_or(file);
    environment.add("POSTERN_PROXY_CONFIG", file.display().to_string());
    // Now, because the addresses of the file have been changed to these.
    environment.write(folder.path())?;
    let services = Box::pin(GatewayServices::from_built_in_config(
        &folder,
        overrides.as_deref(),
        &addresses,
        &development,
        &clock,
    ))
    .await?;
    let console = console::build(&addresses, &development, link_secret, &clock)?;
    let console_link = console::link(
        &format!("http://{}", addresses.console),
        &console.create_link()?,
    );
    let mailbox = development.mailbox();
    let [mut front, mut middle, mut back] = [(); 3].map(|()| ShutdownStage::default());
    for (name, part) in development.parts(sockets.development, &back.shutdown()) {
        back.spawn(name, part);
    }
    services.run(sockets.services, &mut front, &mut middle);
    front.spawn("console", console.run(sockets.console, front.shutdown()));
    let embedded = Embedded {
        addresses,
        environment,
        mailbox,
        console_link,
        _folder: folder,
    };
    Ok(Running::new(vec![front, middle, back], Some(embedded)))
}

fn non_loopback_error(listen: SocketAddr) -> Exit {
    Exit::usage(format!(
        "--listen {listen}: the identity pool, the sample services, the social provider and the mail catcher are \
         for development and start only if the gateway listens on a loopback address. Configure your own instead (the \
         pools by IDP_* and CLOUD_REGION, the social provider by SOCIAL_*, actor and document services in \
         conf/proxy.toml and conf/auth.toml, the mail server in conf/notify.toml), and start with: \
         postern --config conf --listen {listen}"
    ))
}

/// Returns the content of `standalone.env`.
fn environment(
    addresses: &Addresses,
    folder: &DataFolder,
    development: &DevelopmentServices,
) -> EnvironmentFile {
    let mut environment = EnvironmentFile::default();
    for (name, _, address) in built_in::parts(addresses) {
        environment.add(name, format!("http://{address}"));
    }
    environment.add("POSTERN_UI_URL", landing_page_url(addresses));
    environment.add("POSTERN_SMTP_URL", format!("smtp://{}", addresses.smtp));
    environment.add("POSTERN_SMTP_HOST", addresses.smtp.ip().to_string());
    environment.add("POSTERN_SMTP_PORT", addresses.smtp.port().to_string());
    environment.add("POSTERN_DATA_DIR", folder.path().display().to_string());
    for (name, value) in development.variables(Some("auth")) {
        environment.add(name, value);
    }
    for account in &development.provisioned().accounts {
        let prefix = format!("POSTERN_SERVICE_{}", account.username.to_uppercase());
        environment.add(format!("{prefix}_USERNAME"), &account.username);
        environment.add(format!("{prefix}_PASSWORD"), account.password.expose());
    }
    environment
}

#[cfg(test)]
mod tests;
