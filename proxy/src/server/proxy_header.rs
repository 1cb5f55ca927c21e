//! The PROXY protocol header of a connection that a load balancer forwards.

use std::net::SocketAddr;

use postern_http::message::proxy_protocol::{HeaderFault, MAX_HEADER_BYTES, ParsedHeader, parse};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::telemetry::metrics::CloseReason;

/// Reads a header and nothing beyond it, because TLS may follow. Returns the address of the client;
/// `None` if that of the peer applies. The caller limits the time.
///
/// # Errors
/// The connection must be closed: the header is missing or malformed, or the peer disconnected before
/// it was complete, as a health check over TCP does (`None`).
pub(super) async fn read_source(
    stream: &mut TcpStream,
) -> Result<Option<SocketAddr>, Option<CloseReason>> {
    let mut buffer = vec![0; MAX_HEADER_BYTES];
    let mut consumed = 0;
    // `parse` rejects a header that does not fit, so that there is always space for more.
    loop {
        let available = match stream.peek(&mut buffer[consumed..]).await {
            Ok(0) | Err(_) => return Err(None),
            Ok(available) => available,
        };
        let received = consumed + available;
        let (header, source) = match parse(&buffer[..received]) {
            Ok(ParsedHeader::Incomplete) => (received, None),
            Ok(ParsedHeader::Complete { length, source }) => (length, Some(source)),
            Err(HeaderFault::Missing) => return Err(Some(CloseReason::ProxyHeaderMissing)),
            Err(HeaderFault::Malformed) => return Err(Some(CloseReason::ProxyHeaderMalformed)),
        };
        // Has been peeked at.
        let taken = stream.read_exact(&mut buffer[consumed..header]).await;
        taken.map_err(|_| None)?;
        consumed = header;
        if let Some(source) = source {
            return Ok(source);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("bound");
        let client = TcpStream::connect(address).await.expect("connects");
        (client, listener.accept().await.expect("accepts").0)
    }

    #[tokio::test]
    async fn bytes_after_the_header_stay_in_the_socket() {
        let header = "PROXY TCP4 192.0.2.1 198.51.100.2 8080 443\r\n";
        // In one part, and in two at every position.
        for cut in 0..header.len() {
            let (mut client, mut server) = pair().await;
            let all = format!("{header}GET /");
            let reading = tokio::spawn(async move {
                let source = read_source(&mut server).await;
                let mut rest = [0; 5];
                server.read_exact(&mut rest).await.expect("the rest");
                (source, rest)
            });
            let (first, second) = all.as_bytes().split_at(cut);
            for part in [first, second] {
                client.write_all(part).await.expect("writes");
                tokio::task::yield_now().await;
            }
            let (source, rest) = reading.await.expect("no panic");
            let expected = "192.0.2.1:8080".parse().ok();
            assert_eq!((source, &rest), (Ok(expected), b"GET /"), "{cut}");
        }
    }
}
