use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::ClientConfig;

use super::LoadResult;
use crate::rounds::LoadRequest;
use crate::tls;

/// Concurrent clients.
const CLIENTS: usize = 8;

/// A closed-loop load of new TLS connections: each has a full handshake and one request with
/// HTTP/1.1, and is closed by the client.
pub(crate) struct NewConnectionsLoad<'a> {
    pub(crate) config: &'a Arc<ClientConfig>,
    pub(crate) request: &'a LoadRequest<'a>,
}

/// The connections of one client.
#[derive(Default)]
struct ClientResult {
    latencies_us: Vec<f64>,
    failed: u64,
}

impl NewConnectionsLoad<'_> {
    /// Runs the load for some seconds. A connection without a correct response has failed.
    ///
    /// # Errors
    /// A client panicked.
    pub(crate) fn run(&self, address: SocketAddr, seconds: u32) -> io::Result<LoadResult> {
        let began = Instant::now();
        let end = began + Duration::from_secs(seconds.into());
        let clients: Vec<ClientResult> = thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| scope.spawn(|| self.client(address, end)))
                .collect();
            clients
                .into_iter()
                .map(|client| client.join())
                .collect::<Result<_, _>>()
        })
        .map_err(|_| io::Error::other("a client panicked"))?;
        let mut latencies: Vec<f64> = clients
            .iter()
            .flat_map(|client| client.latencies_us.iter().copied())
            .collect();
        latencies.sort_by(f64::total_cmp);
        let failed: u64 = clients.iter().map(|client| client.failed).sum();
        Ok(LoadResult {
            requests: latencies.len() as u64,
            per_second: latencies.len() as f64 / began.elapsed().as_secs_f64(),
            failed: if latencies.is_empty() {
                failed.max(1)
            } else {
                failed
            },
            p99_us: latencies
                .get(latencies.len() * 99 / 100)
                .copied()
                .unwrap_or(f64::NAN),
            answer_bytes: f64::NAN,
        })
    }

    fn client(&self, address: SocketAddr, end: Instant) -> ClientResult {
        let mut result = ClientResult::default();
        let bearer = format!("Bearer {}", self.request.token);
        while Instant::now() < end {
            let began = Instant::now();
            if self.one(address, &bearer).is_ok() {
                result
                    .latencies_us
                    .push(began.elapsed().as_secs_f64() * 1e6);
            } else {
                result.failed += 1;
            }
        }
        result
    }

    fn one(&self, address: SocketAddr, bearer: &str) -> io::Result<()> {
        let headers = [("Authorization", bearer)];
        let mut client = tls::connect(self.config, address)?;
        let response = client
            .ask("GET", self.request.path, &headers, "")?
            .expect(200)?;
        tls::close(client)?;
        if response.body == self.request.body.as_bytes() {
            Ok(())
        } else {
            Err(io::Error::other("the response is wrong"))
        }
    }
}
