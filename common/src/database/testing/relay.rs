//! A TCP relay that can fall silent, as a host that lost its power or a firewall that forgot a
//! connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use url::Url;

/// Forwards connections to one server. Connections are never closed by it.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    /// How often it has fallen silent; odd while it is.
    silences: Arc<watch::Sender<u64>>,
}

// === impl Relay ===

impl Relay {
    /// A relay to the server of a URL, and the URL that leads through it.
    ///
    /// # Panics
    /// If the URL has no numeric host and port, or there is no free port.
    pub async fn start(url: &str) -> (Self, String) {
        let mut url = Url::parse(url).expect("a URL");
        let host = url
            .host_str()
            .expect("a host")
            .parse()
            .expect("a numeric host");
        let server = SocketAddr::new(host, url.port().expect("a port"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let relay = Self {
            port,
            silences: Arc::default(),
        };
        let silences = Arc::clone(&relay.silences);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, server, silences.subscribe()));
            }
        });
        url.set_port(Some(port)).expect("the URL has a host");
        (relay, url.to_string())
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on no byte passes, in either direction, and connections are accepted and get no
    /// answer.
    pub fn fall_silent(&self) {
        self.silences.send_modify(|count| *count |= 1);
    }

    /// New connections are forwarded again; the ones from before stay silent for good.
    pub fn recover(&self) {
        self.silences.send_modify(|count| *count += *count % 2);
    }
}

async fn forward(client: TcpStream, server: SocketAddr, mut silences: watch::Receiver<u64>) {
    let began = *silences.borrow_and_update();
    if began % 2 == 1 {
        // Held open.
        let _client = client;
        return std::future::pending().await;
    }
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    tokio::select! {
        () = copy(from_client, to_server, &silences, began) => {}
        () = copy(from_server, to_client, &silences, began) => {}
    }
}

/// Until either side closes; from the first silence on it holds the connection and forwards
/// nothing.
async fn copy(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    silences: &watch::Receiver<u64>,
    began: u64,
) {
    let mut silences = silences.clone();
    let mut bytes = vec![0; 64 << 10];
    loop {
        let silent = async { drop(silences.wait_for(|count| *count != began).await) };
        let read = tokio::select! {
            biased;
            () = silent => None,
            read = from.read(&mut bytes) => Some(read.unwrap_or(0)),
        };
        let Some(count) = read else {
            return std::future::pending().await;
        };
        if count == 0 || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
