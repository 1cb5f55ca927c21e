//! A TCP relay that can stop forwarding without closing, like a host that lost power or a firewall
//! that dropped its connection state.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use url::Url;

/// Forwards connections to one server and never closes them.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    /// Number of state changes; odd while the relay is silent.
    silences: Arc<watch::Sender<u64>>,
}

// === impl Relay ===

impl Relay {
    /// Starts a relay to the server of a URL, and returns the URL through the relay.
    ///
    /// # Panics
    /// If the URL has no numeric host and port, or no port is free.
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

    /// Returns the listening port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Stops forwarding in both directions. New connections are accepted and receive no answer.
    pub fn fall_silent(&self) {
        self.silences.send_modify(|count| *count |= 1);
    }

    /// Forwards new connections again. Existing connections stay silent.
    pub fn recover(&self) {
        self.silences.send_modify(|count| *count += *count % 2);
    }
}

async fn forward(client: TcpStream, server: SocketAddr, mut silences: watch::Receiver<u64>) {
    let began = *silences.borrow_and_update();
    if began % 2 == 1 {
        // Keeps the connection open.
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

/// Copies until either side closes. After the first silence it keeps the connection open and
/// forwards nothing.
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
