//! A TCP relay that can stop forwarding without closing, like a host that lost power or a firewall
//! that dropped its connection state.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use url::Url;

/// A relay in front of one server. Connections that existed when forwarding stopped, or were
/// accepted since, stay open and transfer nothing. All others are closed as soon as either side
/// closes.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    /// Number of state changes; odd while forwarding is stopped.
    state_generation: Arc<watch::Sender<u64>>,
    accepted: Arc<AtomicUsize>,
}

impl Relay {
    /// Starts a relay to the server of a URL, and returns the URL through the relay.
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
            state_generation: Arc::default(),
            accepted: Arc::default(),
        };
        let state_generation = Arc::clone(&relay.state_generation);
        let accepted = Arc::clone(&relay.accepted);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(forward(client, server, state_generation.subscribe()));
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

    /// Returns the number of connections accepted so far.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Stops forwarding in both directions. New connections are accepted and receive no answer.
    pub fn stop_forwarding(&self) {
        self.state_generation.send_modify(|count| *count |= 1);
    }

    /// Forwards new connections again. Connections of the time before transfer nothing.
    pub fn recover(&self) {
        self.state_generation
            .send_modify(|count| *count += *count % 2);
    }
}

async fn forward(
    mut client: TcpStream,
    server: SocketAddr,
    mut state_generation: watch::Receiver<u64>,
) {
    let generation = *state_generation.borrow_and_update();
    if generation % 2 == 1 {
        // Keeps the connection open.
        let _client = client;
        return std::future::pending().await;
    }
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    let stopped = async {
        let changed = state_generation.wait_for(|count| *count != generation);
        drop(changed.await);
    };
    tokio::select! {
        biased;
        () = stopped => std::future::pending().await,
        _closed = copy_bidirectional(&mut client, &mut server) => {}
    }
}
