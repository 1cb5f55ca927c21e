//! A mail server that accepts messages, and rejects the recipients of one domain with a reply that
//! is HTML.

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The domain of the rejected recipients.
pub(super) const REJECTED_DOMAIN: &str = "@rejected.example";
/// The reply to them.
pub(super) const REPLY: &str = "550 5.1.1 <img src=x onerror=window.taken='reply'> unknown";

/// Starts the server on a free loopback port, which it returns.
pub(super) async fn start() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free loopback port");
    let address = listener
        .local_addr()
        .expect("the address of a bound socket");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address.port()
}

async fn serve(stream: TcpStream) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    stream.write_all(b"220 mail.test ESMTP\r\n").await?;
    let (mut line, mut is_content) = (String::new(), false);
    loop {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        if is_content && line != ".\r\n" {
            continue;
        }
        let command = line.get(..4).unwrap_or_default().to_ascii_uppercase();
        let reply = match command.as_str() {
            _ if is_content => "250 2.0.0 accepted",
            "EHLO" => "250 mail.test",
            "RCPT" if line.contains(REJECTED_DOMAIN) => REPLY,
            "DATA" => "354 go ahead",
            "QUIT" => "221 2.0.0 bye",
            _ => "250 2.0.0 ok",
        };
        is_content = command == "DATA" && !is_content;
        stream.write_all(format!("{reply}\r\n").as_bytes()).await?;
    }
}
