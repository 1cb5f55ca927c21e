//! Idle connections that their upstream has closed.

use tokio::net::UnixStream;
use tokio::sync::mpsc::unbounded_channel;

use super::scripted_origin::{gateway, start};
use super::*;

/// The upstream closes its connection at the moment at which the next request arrives. Then the
/// kernel knows of it, and the gateway's runtime does not: it polls the sockets after the request
/// has been handled.
#[tokio::test]
async fn connection_closed_at_the_last_moment_fails_no_request() {
    for method in ["GET", "POST"] {
        let received = Arc::new(AtomicUsize::new(0));
        let (report, mut answered) = unbounded_channel();
        let count = Arc::clone(&received);
        let origin = start(move |mut connection: OriginConnection| {
            let (count, report) = (Arc::clone(&count), report.clone());
            async move {
                let head = connection.take_head().await.expect("a head");
                connection.take_body(content_length(&head)).await;
                count.fetch_add(1, Ordering::Relaxed);
                connection.send(OK).await;
                let _test_ended = report.send(connection);
            }
        });
        let gateway = gateway(&[origin.await], "", "").await;
        let mut client = gateway.connect().await;
        let request =
            format!("{method} /open HTTP/1.1\r\nHost: gate\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!(client.ask(&request).await.status, 200);
        let idle = answered.recv().await.expect("a connection");
        let (mut signal, mut signaled) = UnixStream::pair().expect("a pair");
        // Both sockets become readable for the same poll. The task of the test runs first.
        signal.write_all(b"x").await.expect("writes");
        client.write(&request).await;
        signaled.read_u8().await.expect("reads");
        drop(idle);
        let response = client.answer().await;
        assert_eq!((response.status, &*response.body), (200, "ok"), "{method}");
        assert_eq!(received.load(Ordering::Relaxed), 2, "{method}");
    }
}
