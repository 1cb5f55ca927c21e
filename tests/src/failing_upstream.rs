//! An upstream that fails in the same way for every request.

use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// An upstream that reads each request completely and then fails in one of these ways.
#[derive(Clone, Copy, Debug)]
pub enum FailingUpstream {
    /// Writes these bytes, which need not be valid HTTP, and closes the connection.
    Responds(&'static [u8]),
    /// Keeps the connection open without a response.
    NeverResponds,
    /// Refuses connections.
    RefusesConnections,
}

impl FailingUpstream {
    /// Starts the upstream on a free loopback port.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start(self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free loopback port");
        let address = listener
            .local_addr()
            .expect("the address of a bound socket");
        if matches!(self, Self::RefusesConnections) {
            return address;
        }
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(self.serve(stream));
            }
        });
        address
    }

    async fn serve(self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        // A peer that closes the connection expects no response.
        if read_request(&mut stream).await.is_err() {
            return;
        }
        match self {
            Self::Responds(bytes) => drop(stream.write_all(bytes).await),
            Self::NeverResponds | Self::RefusesConnections => std::future::pending().await,
        }
    }
}

/// Reads a head, and the body of the length that it declares.
async fn read_request(stream: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
        if line.trim_end().is_empty() {
            break;
        }
    }
    stream.read_exact(&mut vec![0; length]).await?;
    Ok(())
}
