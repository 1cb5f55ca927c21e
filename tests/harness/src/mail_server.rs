//! A mail server that accepts messages, holds their confirmation, and rejects the recipients of one
//! domain with a reply that is HTML.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The domain of the rejected recipients.
pub const REJECTED_DOMAIN: &str = "@rejected.example";
/// The reply to them.
pub const REPLY: &str = "550 5.1.1 <img src=x onerror=window.taken='reply'> unknown";

/// A running server.
#[derive(Clone, Debug)]
pub struct MailServer {
    /// Its port on the loopback.
    pub port: u16,
    received: Arc<watch::Sender<usize>>,
    confirms: Arc<watch::Sender<bool>>,
}

impl MailServer {
    /// Starts a server.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("the loopback has a free port");
        let address = listener.local_addr().expect("a bound socket's address");
        let server = Self {
            port: address.port(),
            received: Arc::default(),
            confirms: Arc::new(watch::Sender::new(true)),
        };
        let accepting = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = accepting.clone();
                tokio::spawn(async move { server.converse(stream).await });
            }
        });
        server
    }

    /// Confirms messages from now on, also received ones, or holds the confirmation.
    pub fn confirm(&self, confirms: bool) {
        self.confirms.send_replace(confirms);
    }

    /// Returns the number of received messages.
    pub fn received(&self) -> usize {
        *self.received.borrow()
    }

    /// Waits for messages.
    pub async fn wait_for(&self, messages: usize) {
        let mut received = self.received.subscribe();
        let waiting = received.wait_for(|received| *received >= messages);
        let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        let _ = waited.expect("it is sent").expect("the server runs");
    }

    async fn converse(&self, stream: TcpStream) -> std::io::Result<()> {
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
                _ if is_content => {
                    self.received.send_modify(|received| *received += 1);
                    let mut confirms = self.confirms.subscribe();
                    let _ = confirms.wait_for(|confirms| *confirms).await;
                    "250 2.0.0 accepted"
                }
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
}
