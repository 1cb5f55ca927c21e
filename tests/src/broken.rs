//! An upstream that is broken in one way, for every request alike.

use std::net::SocketAddr;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What it does with a request that it has read whole.
#[derive(Clone, Copy, Debug)]
pub enum Broken {
    /// Writes these bytes and closes.
    Says(&'static [u8]),
    /// Keeps the connection open and says nothing.
    Hangs,
    /// It is not there: connections are refused.
    Away,
}

impl Broken {
    /// Starts it on a free port of the loopback.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn start(self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("the loopback has a free port");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        if matches!(self, Self::Away) {
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
        // A peer that goes away has what it wanted.
        if read_request(&mut stream).await.is_err() {
            return;
        }
        match self {
            Self::Says(bytes) => drop(stream.write_all(bytes).await),
            Self::Hangs | Self::Away => std::future::pending().await,
        }
    }
}

/// A head, and the body whose length it gives.
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
