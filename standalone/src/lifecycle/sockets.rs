//! Listening sockets. All are bound before any part starts, so that a port conflict is reported at
//! once.

use std::net::{Ipv4Addr, SocketAddr};

use postern_core::exit::Exit;
use postern_dev::{Addresses, DevelopmentSockets};
use postern_service::http::bind;
use tokio::net::TcpListener;

/// The bound sockets of all parts.
#[derive(Debug)]
pub(crate) struct BoundSockets {
    pub(crate) services: ServiceSockets,
    pub(crate) development: DevelopmentSockets,
    pub(crate) console: TcpListener,
}

/// The sockets of the three services.
#[derive(Debug)]
pub(crate) struct ServiceSockets {
    pub(crate) proxy: Vec<TcpListener>,
    pub(crate) auth: TcpListener,
    pub(crate) notify: TcpListener,
    pub(crate) proxy_admin: Option<TcpListener>,
    pub(crate) auth_admin: Option<TcpListener>,
    pub(crate) notify_admin: Option<TcpListener>,
}

// === impl BoundSockets ===

impl BoundSockets {
    /// Binds `listen` for the gateway and the ports after `base` for the other parts; with `base`
    /// 0, the operating system assigns the ports.
    ///
    /// # Errors
    /// Exits with status 69 and the address if a port is taken.
    pub(crate) async fn bind(listen: SocketAddr, base: u16) -> Result<(Self, Addresses), Exit> {
        let part = async |offset: u16| {
            let port = if base == 0 {
                Some(0)
            } else {
                base.checked_add(offset)
            };
            let port =
                port.ok_or_else(|| Exit::usage("--port: leaves no ports for the other parts"))?;
            let bound = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
            let address = address(&bound)?;
            Ok::<_, Exit>((bound, address))
        };
        let gateway = bind(listen).await?;
        let proxy_address = address(&gateway)?;
        let ((auth, auth_address), (notify, notify_address)) = (part(1).await?, part(2).await?);
        let ((identity_pool, pool_address), (actor, actor_address)) =
            (part(3).await?, part(4).await?);
        let ((document, document_address), (social, social_address)) =
            (part(5).await?, part(6).await?);
        let ((smtp, smtp_address), (mail, mail_address)) = (part(7).await?, part(8).await?);
        let (proxy_admin, auth_admin, notify_admin) =
            (part(9).await?, part(10).await?, part(11).await?);
        let (console, console_address) = part(12).await?;
        let addresses = Addresses {
            proxy: proxy_address,
            auth: auth_address,
            notify: notify_address,
            identity_pool: pool_address,
            actor: actor_address,
            document: document_address,
            social: social_address,
            smtp: smtp_address,
            mail: mail_address,
            proxy_admin: proxy_admin.1,
            auth_admin: auth_admin.1,
            notify_admin: notify_admin.1,
            console: console_address,
        };
        let services = ServiceSockets {
            proxy: vec![gateway],
            auth,
            notify,
            proxy_admin: Some(proxy_admin.0),
            auth_admin: Some(auth_admin.0),
            notify_admin: Some(notify_admin.0),
        };
        let development = DevelopmentSockets {
            identity_pool,
            actor,
            document,
            social,
            smtp,
            mail,
        };
        Ok((
            Self {
                services,
                development,
                console,
            },
            addresses,
        ))
    }
}

fn address(socket: &TcpListener) -> Result<SocketAddr, Exit> {
    socket
        .local_addr()
        .map_err(|error| Exit::unavailable(format!("cannot read the address of a socket: {error}")))
}
