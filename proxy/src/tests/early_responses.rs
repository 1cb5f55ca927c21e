//! Responses that begin before the request has ended.

use std::future::pending;

use tokio::process::Command;

use super::scripted_origin::{gateway, start};
use super::upstream_shares::until_in_flight;
use super::*;

const BODY_BYTES: usize = 100_000;
const FIRST_BYTES: usize = 20_000;

/// The origin answers in two parts: after the first bytes of the body, and after its end.
#[tokio::test]
async fn response_arrives_during_its_upload() {
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    let origin = start(move |mut connection| {
        count.fetch_add(1, Ordering::Relaxed);
        async move {
            while connection.take_head().await.is_some() {
                connection.take_body(FIRST_BYTES).await.expect("a part");
                let head = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello";
                connection.send(head).await;
                let rest = BODY_BYTES - FIRST_BYTES;
                connection.take_body(rest).await.expect("the rest");
                connection.send("world").await;
            }
        }
    });
    let gateway = gateway(&[origin.await], "", "").await;
    let [first, rest] = [FIRST_BYTES, BODY_BYTES - FIRST_BYTES].map(|count| "x".repeat(count));
    let mut client = gateway.connect().await;
    let head = format!("POST /open HTTP/1.1\r\nHost: gate\r\nContent-Length: {BODY_BYTES}\r\n\r\n");
    client.write(&format!("{head}{first}")).await;
    let answer = client.until("hello").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    client.write(&rest).await;
    assert_eq!(client.until("world").await, "world");
    let mut client = http2_client(&gateway, 1 << 20).await;
    let (answer, mut upload) = upload(&mut client, "/open", BODY_BYTES, first);
    let mut response = in_time(answer).await.expect("a head").into_body();
    let part = in_time(response.data()).await.expect("a part");
    let actual = part.expect("data");
    assert_eq!(actual, "hello", "before the rest of the request");
    upload.send_data(rest.into(), true).expect("sends");
    let part = in_time(response.data()).await.expect("a part");
    assert_eq!(part.expect("data"), "world");
    let connections = connections.load(Ordering::Relaxed);
    assert_eq!(connections, 1, "the connection is used again");
}

/// Starts an origin that answers after a part of the body and reads no more of it.
async fn start_early_answer() -> SocketAddr {
    start(|mut connection| async move {
        while let Some(head) = connection.take_head().await {
            if head.starts_with("POST ") {
                connection.take_body(FIRST_BYTES).await;
            }
            connection.send(OK).await;
            if head.starts_with("POST ") {
                pending::<()>().await;
            }
        }
    })
    .await
}

/// Starts an origin that answers after the head of a request, and reads the rest then. Returns the
/// number of its connections.
async fn start_counting_early_answers() -> (SocketAddr, Arc<AtomicUsize>) {
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    let origin = start(move |mut connection| {
        count.fetch_add(1, Ordering::Relaxed);
        async move {
            while let Some(head) = connection.take_head().await {
                connection.send(OK).await;
                if head.starts_with("POST ") {
                    connection.take_body(b"5\r\nhello\r\n0\r\n\r\n".len()).await;
                }
            }
        }
    })
    .await;
    (origin, connections)
}

#[tokio::test]
async fn response_of_an_upstream_that_stopped_reading_arrives() {
    let origin = start(|mut connection| async move {
        connection.take_head().await.expect("a head");
        // The gateway has filled all buffers by then.
        tokio::time::sleep(Duration::from_millis(500)).await;
        connection.send(OK).await;
        pending::<()>().await;
    })
    .await;
    let limits = "body_bytes = \"33MiB\"";
    let gateway = gateway(&[origin], "write_timeout = \"60s\"", limits).await;
    let huge = vec![b'x'; 32 << 20];
    let (mut near, mut far) = gateway.connect().await.stream.into_split();
    let length = huge.len();
    let request = format!("POST /open HTTP/1.1\r\nHost: gate\r\nContent-Length: {length}\r\n\r\n");
    let request = [request.into_bytes(), huge.clone()].concat();
    let sending = tokio::spawn(async move {
        let _not_accepted = far.write_all(&request).await;
        far
    });
    let mut response = vec![0; 12];
    let read = in_time(near.read_exact(&mut response)).await;
    read.expect("a response");
    assert_eq!(response, b"HTTP/1.1 200");
    sending.abort();
    let mut client = http2_client(&gateway, 1 << 20).await;
    let (answer, _upload) = upload(&mut client, "/open", huge.len(), huge);
    assert_eq!(status(answer).await, 200);
}

/// The client keeps the rest of its body back: the upstream, which has one slot, is not concerned.
#[tokio::test]
async fn early_response_frees_the_slot_of_its_upstream() {
    let origin = start_early_answer().await;
    // With less to come, the gateway waits for the rest; with more, it closes the connection.
    for length in [FIRST_BYTES + 10_000, BODY_BYTES] {
        let gateway = gateway(&[origin], "in_flight = 1", "").await;
        let mut client = gateway.connect().await;
        let first = "x".repeat(FIRST_BYTES);
        let head = format!("POST /open HTTP/1.1\r\nHost: gate\r\nContent-Length: {length}\r\n\r\n");
        let response = client.ask(&format!("{head}{first}")).await;
        assert_eq!((response.status, &*response.body), (200, "ok"));
        assert_eq!(gateway.status("/open", "").await, 200, "{length}");
        let mut client = http2_client(&gateway, 1 << 20).await;
        let (answer, _upload) = upload(&mut client, "/open", length, first);
        assert_eq!(status(answer).await, 200);
        assert_eq!(gateway.status("/open", "").await, 200, "{length}");
    }
}

/// The upstream answers without the body and resets its stream. The response has announced that the
/// client's connection stays open.
#[tokio::test]
async fn early_response_over_http2_keeps_the_client_connection() {
    let origin = start_http2(|_request, mut answer| async move {
        let response = http::Response::builder().header("content-length", "0");
        let _gone = answer.send_response(response.body(()).expect("a response"), true);
    })
    .await;
    let gateway = gateway(&[origin], "http2 = true", "").await;
    let mut client = gateway.connect().await;
    for part in ["", "12345", "1234567890"] {
        let head = "POST /open HTTP/1.1\r\nHost: gate\r\nContent-Length: 10\r\n\r\n";
        let response = client.ask(&format!("{head}{part}")).await;
        assert_eq!(response.status, 200, "{part}");
        assert_eq!(response.header("connection"), Some("keep-alive"), "{part}");
        client.write(&"x".repeat(10 - part.len())).await;
    }
}

#[tokio::test]
async fn connection_with_an_early_answer_is_not_reused() {
    let (origin, connections) = start_counting_early_answers().await;
    for expect in ["", "Expect: 100-continue\r\n"] {
        let gateway = gateway(&[origin], "", "").await;
        let before = connections.load(Ordering::Relaxed);
        let mut client = gateway.connect().await;
        let head = "POST /open HTTP/1.1\r\nHost: gate\r\nTransfer-Encoding: chunked\r\n";
        assert_eq!(client.ask(&format!("{head}{expect}\r\n")).await.status, 200);
        client.write("5\r\nhello\r\n0\r\n\r\n").await;
        // The connection is free when the upstream has received the end.
        until_in_flight(&gateway, 0).await;
        assert_eq!(gateway.get("/open", "").await.status, 200);
        assert_eq!(connections.load(Ordering::Relaxed) - before, 2, "{expect}");
    }
}

/// curl 7.88 loses the response if the stream is reset while it is sending, and waits for more of a
/// response without `Content-Length` if it has not sent all of its body.
#[tokio::test]
async fn curl_gets_early_answers_to_http2_uploads() {
    let gateway = TestGateway::answering("h2c = true", "body_bytes = \"8MiB\"", ROUTES).await;
    let body = "x".repeat(16 << 20);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("upload");
    std::fs::write(&file, &body).expect("writes");
    let file = file.to_str().expect("a path");
    let long = format!("/open?{}", "x".repeat(9_000));
    for (path, source, status) in [
        ("/any/1", file, "401"),
        ("/any/1", "-", "401"),
        ("/open", file, "413"),
        ("/open", "-", "413"),
        (&long, file, "414"),
        (&long, "-", "414"),
    ] {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--noproxy", "*", "--output", "/dev/null"]);
        curl.args(["--http2-prior-knowledge", "--request", "POST"]);
        curl.args(["--write-out", "%{http_code} %{exitcode}"]);
        curl.args(["--max-time", "20", "--upload-file", source]);
        curl.arg(format!("http://{}{path}", gateway.address));
        let output = run(&mut curl, &body).await;
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(answer, format!("{status} 0"), "{path:.20} {source}");
    }
}
