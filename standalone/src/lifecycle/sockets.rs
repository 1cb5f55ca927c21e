//! Listening sockets. All are bound before any part starts, so that a port conflict is reported at
//! once.

use std::net::{Ipv4Addr, SocketAddr};

use postern_core::exit::Exit;
use postern_dev::{Addresses, DevelopmentSockets};
use postern_service::http::bind;
use postern_service::startup::Listeners;
use tokio::net::TcpListener;

#[derive(Debug)]
pub(crate) struct BoundSockets {
    pub(crate) services: ServiceSockets,
    pub(crate) development: DevelopmentSockets,
    pub(crate) console: TcpListener,
}

#[derive(Debug)]
pub(crate) struct ServiceSockets {
    pub(crate) proxy: postern_proxy::Listeners,
    pub(crate) auth: Listeners,
    pub(crate) notify: Listeners,
}

impl BoundSockets {
    /// Binds `listen` for the gateway and the ports after `base` for the other parts; with `base`
    /// 0, the operating system assigns the ports.
    pub(crate) async fn bind(listen: SocketAddr, base: u16) -> Result<(Self, Addresses), Exit> {
        let part = async |offset: u16| {
            let offset = if base == 0 { 0 } else { offset };
            let none = || Exit::usage("--port: leaves no ports for the other parts");
            let port = base.checked_add(offset).ok_or_else(none)?;
            bind((Ipv4Addr::LOCALHOST, port).into()).await
        };
        let gateway = bind(listen).await?;
        let (auth, notify) = (part(1).await?, part(2).await?);
        let development = DevelopmentSockets {
            identity_pool: part(3).await?,
            actor: part(4).await?,
            document: part(5).await?,
            social: part(6).await?,
            smtp: part(7).await?,
            mail: part(8).await?,
        };
        let (proxy_admin, auth_admin, notify_admin) =
            (part(9).await?, part(10).await?, part(11).await?);
        let console = part(12).await?;
        let addresses = Addresses {
            proxy: address(&gateway)?,
            auth: address(&auth)?,
            notify: address(&notify)?,
            identity_pool: address(&development.identity_pool)?,
            actor: address(&development.actor)?,
            document: address(&development.document)?,
            social: address(&development.social)?,
            smtp: address(&development.smtp)?,
            mail: address(&development.mail)?,
            proxy_admin: address(&proxy_admin)?,
            auth_admin: address(&auth_admin)?,
            notify_admin: address(&notify_admin)?,
            console: address(&console)?,
        };
        let services = ServiceSockets {
            proxy: postern_proxy::Listeners {
                public: vec![gateway],
                admin: Some(proxy_admin),
            },
            auth: listeners(auth, auth_admin),
            notify: listeners(notify, notify_admin),
        };
        let bound = Self {
            services,
            development,
            console,
        };
        Ok((bound, addresses))
    }
}

/// Returns the sockets of an upstream.
pub(crate) fn listeners(public: TcpListener, admin: TcpListener) -> Listeners {
    let admin = Some(admin);
    Listeners { public, admin }
}

fn address(socket: &TcpListener) -> Result<SocketAddr, Exit> {
    socket
        .local_addr()
        .map_err(|error| Exit::unavailable(format!("cannot read the address of a socket: {error}")))
}
