//! The SMTP server of the mail catcher.

use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use bytes::BytesMut;
use postern_service::accept::serve_connections;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::mailbox::Mailbox;
use super::smtp_session::{SessionAction, SmtpSession};

/// Maximum number of connections; further ones wait to be accepted. With the message size limit,
/// this bounds memory.
const MAX_CONNECTIONS: usize = 256;

/// Time for which a client may send nothing or read nothing (RFC 5321 section 4.5.3.2 recommends
/// five minutes).
const CLIENT_TIMEOUT: Duration = Duration::from_secs(300);

/// Time for which a shutdown waits for open sessions.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

const GREETING: &str = "220 127.0.0.1 ESMTP Postern mail catcher";

/// Serves SMTP until shutdown.
pub(crate) async fn serve(
    listener: TcpListener,
    mailbox: Arc<Mailbox>,
    shutdown: CancellationToken,
) {
    let serve = |stream, _peer| {
        let (mailbox, shutdown) = (Arc::clone(&mailbox), shutdown.clone());
        async move {
            if let Err(error) = run_session(stream, &mailbox, &shutdown).await {
                tracing::debug!(%error, "smtp session failed");
            }
        }
    };
    serve_connections(listener, MAX_CONNECTIONS, DRAIN_TIMEOUT, &shutdown, serve).await;
}

async fn run_session(
    mut stream: TcpStream,
    mailbox: &Mailbox,
    shutdown: &CancellationToken,
) -> std::io::Result<()> {
    let (mut session, mut input) = (SmtpSession::default(), BytesMut::with_capacity(16 << 10));
    send(&mut stream, GREETING).await?;
    loop {
        // Replies to pipelined commands are sent in one packet.
        let mut replies = String::new();
        while let Some(action) = session.next(&mut input) {
            let (reply, last) = execute_action(action, mailbox).await;
            replies.push_str(&reply);
            replies.push_str("\r\n");
            if last {
                return send_all(&mut stream, replies.as_bytes()).await;
            }
        }
        send_all(&mut stream, replies.as_bytes()).await?;
        let read = tokio::select! {
            () = shutdown.cancelled() => return send(&mut stream, "421 4.3.2 Shutting down").await,
            read = timeout(CLIENT_TIMEOUT, stream.read_buf(&mut input)) => read,
        };
        match read {
            Ok(Ok(0)) => return Ok(()),
            Ok(read) => drop(read?),
            Err(_) => return send(&mut stream, "421 4.4.2 Timeout").await,
        }
    }
}

/// Executes an action. Returns the reply and whether the connection is to be closed.
async fn execute_action(action: SessionAction, mailbox: &Mailbox) -> (String, bool) {
    match action {
        SessionAction::Reply(text) => (text, false),
        SessionAction::Close(text) => (text, true),
        SessionAction::Store(envelope, message) => match mailbox.store(envelope, message).await {
            Ok(id) => (format!("250 2.0.0 Ok {id}"), false),
            Err(error) => {
                tracing::error!(%error, "mail storage failed");
                ("451 4.3.0 Cannot store the message now".to_owned(), false)
            }
        },
    }
}

async fn send(stream: &mut TcpStream, line: &str) -> std::io::Result<()> {
    send_all(stream, format!("{line}\r\n").as_bytes()).await
}

async fn send_all(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    timeout(CLIENT_TIMEOUT, stream.write_all(bytes))
        .await
        .map_err(std::io::Error::from)?
}

#[cfg(test)]
mod tests {
    use super::super::mailbox::tests::open_in;
    use super::*;

    struct TestServer {
        port: u16,
        mailbox: Arc<Mailbox>,
        shutdown: CancellationToken,
        served: tokio::task::JoinHandle<()>,
        _folder: tempfile::TempDir,
    }

    async fn start() -> TestServer {
        let folder = tempfile::tempdir().expect("folder");
        let mailbox = Arc::new(open_in(&folder).await);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
        let port = listener.local_addr().expect("address").port();
        let shutdown = CancellationToken::new();
        let served = tokio::spawn(serve(listener, Arc::clone(&mailbox), shutdown.clone()));
        TestServer {
            port,
            mailbox,
            shutdown,
            served,
            _folder: folder,
        }
    }

    #[tokio::test]
    async fn pipelined_session_completes_and_shutdown_replies_421() {
        let started = start().await;
        let mut socket = TcpStream::connect(("127.0.0.1", started.port))
            .await
            .expect("connected");
        let all = "EHLO raw\r\nMAIL FROM:<>\r\nRCPT TO:<a@b.test>\r\nRCPT TO:<c@d.test>\r\nDATA\r\n\
                   Subject: one\r\n\r\nx\r\n.\r\nMAIL FROM:<a@b.test>\r\nRCPT TO:<e@f.test>\r\nDATA\r\n\
                   Subject: two\r\n\r\n..y\r\n.\r\nNOOP\r\n";
        socket.write_all(all.as_bytes()).await.expect("written");
        let mut answer = String::new();
        let mut buffer = [0; 4096];
        while answer.matches("250 2.0.0 Ok").count() < 3 {
            let read = socket.read(&mut buffer).await.expect("read");
            assert_ne!(read, 0, "{answer}");
            answer.push_str(std::str::from_utf8(&buffer[..read]).expect("text"));
        }
        let subjects: Vec<String> = started
            .mailbox
            .list(None)
            .into_iter()
            .map(|summary| summary.subject.clone())
            .collect();
        assert_eq!(subjects, ["two", "one"]);
        started.shutdown.cancel();
        let read = socket.read(&mut buffer).await.expect("read");
        assert!(buffer[..read].starts_with(b"421 "));
        started.served.await.expect("stopped");
    }
}
