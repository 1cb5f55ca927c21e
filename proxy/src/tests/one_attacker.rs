//! Resources of which one client takes as much as it can: 20 others are served meanwhile.

use tokio::sync::watch;

use super::compression_client::{gateway_at, text};
use super::http2_frames::{DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame};
use super::scripted_origin::{gateway, start};
use super::*;

/// The last octet of the attacker's address, and those of the users.
const ATTACKER: u8 = 2;
const USERS: std::ops::Range<u8> = 10..30;

const TRUSTED: &str = "trusted_proxies = [\"127.0.0.1/32\"]";

/// An origin that answers nothing but a user's requests. Counts the others.
async fn partial_origin() -> (SocketAddr, Arc<AtomicUsize>) {
    let held = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&held);
    let address = start(move |mut connection| {
        let count = Arc::clone(&count);
        async move {
            while let Some(head) = connection.take_head().await {
                if head.contains("x-stuck") {
                    count.fetch_add(1, Ordering::Relaxed);
                    std::future::pending::<()>().await;
                }
                connection.send(OK).await;
            }
        }
    });
    (address.await, held)
}

async fn until(count: &AtomicUsize, wanted: usize) {
    wait_until(async || count.load(Ordering::Relaxed) >= wanted).await;
}

async fn answered_users(gateway: &TestGateway) -> usize {
    let mut answered = 0;
    for last in USERS {
        let mut user = begin_from(gateway, last, GET).await;
        answered += usize::from(user.response().await.is_some_and(|it| it.status == 200));
    }
    answered
}

/// 70 encoders need more than half of the memory.
#[tokio::test]
async fn encoders_are_left_for_others() {
    let origin = start(|mut connection| async move {
        let head = connection.take_head().await.unwrap_or_default();
        let body = text(5000);
        let framing = match head.contains("x-stuck") {
            true => "Transfer-Encoding: chunked",
            false => "Content-Length: 5000",
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{framing}\r\n\r\n");
        connection.send(head).await;
        if framing.contains("chunked") {
            std::future::pending::<()>().await;
        }
        connection.send(body).await;
    });
    let gateway = gateway_at(origin.await, "true", "").await;
    let ask = async |last: u8, field: &str| {
        let mut client = client_from(&gateway, last).await;
        let begin = "GET /open HTTP/1.1\r\nHost: gate\r\nAccept-Encoding: br\r\n";
        client.write(&format!("{begin}{field}\r\n")).await;
        let head = client.until("\r\n\r\n").await;
        (client, has_field(&head, "content-encoding: br"))
    };
    let mut attack = Vec::new();
    for _ in 0..70 {
        attack.push(ask(ATTACKER, "X-Stuck: 1\r\n").await);
    }
    let compressed = attack.iter().filter(|(_, is_compressed)| *is_compressed);
    // Of 256 MiB at 3 MiB each.
    assert_eq!(compressed.count(), 43, "half of all");
    let skipped = "postern_proxy_compression_skipped_total 27";
    gateway.assert_metric(skipped).await;
    for last in USERS {
        assert!(ask(last, "").await.1, "{last}");
    }
}

#[tokio::test]
async fn streams_of_a_trusted_proxy_are_left_for_others() {
    let (origin, held) = partial_origin().await;
    let gateway = gateway(&[origin], "", TRUSTED).await;
    let mut client = http2_client(&gateway, 65_535).await;
    let mut ask = |last: u8, fields: &[(&str, &str)]| {
        let address = format!("192.0.2.{last}");
        let address = [("x-forwarded-for", address.as_str())];
        let fields: Vec<_> = fields.iter().copied().chain(address).collect();
        send(&mut client, head("GET", "/open", &fields), true).0
    };
    let stuck = [("x-stuck", "1")];
    let attack: Vec<_> = (0..100).map(|_| ask(ATTACKER, &stuck)).collect();
    until(&held, 50).await;
    for last in USERS {
        assert_eq!(status(ask(last, &[])).await, 200, "{last}");
    }
    let mut refused = 0;
    for answer in attack.into_iter().skip(50) {
        refused += usize::from(status(answer).await == 429);
    }
    assert_eq!(refused, 50);
}

#[tokio::test]
async fn empty_frames_do_not_close_the_connection_of_a_trusted_proxy() {
    let (origin, _) = partial_origin().await;
    let gateway = gateway(&[origin], "", TRUSTED).await;
    let mut stream = gateway.connect().await.stream;
    // `POST http://gate/open` (RFC 7541, appendix A).
    let request = b"\x83\x86\x04\x05/open\x01\x04gate";
    // `GET` of the same, after the frames have been counted.
    let next = b"\x82\x86\x04\x05/open\x01\x04gate";
    let empty = frame(DATA, 0, 1, &[]);
    let bytes = [
        PREFACE,
        &frame(SETTINGS, 0, 0, &[]),
        &frame(HEADERS, END_HEADERS, 1, request),
        &empty.repeat(300),
        &frame(DATA, END_STREAM, 1, b"body"),
        &frame(HEADERS, END_HEADERS | END_STREAM, 3, next),
    ]
    .concat();
    // Also if a read ends within the header of a frame.
    for part in bytes.chunks(100) {
        stream.write_all(part).await.expect("writes");
        tokio::task::yield_now().await;
    }
    let mut received = Vec::new();
    let reading = async {
        // The bodies of both answers.
        while received.windows(2).filter(|part| *part == b"ok").count() < 2 {
            let read = stream.read_buf(&mut received).await.expect("reads");
            assert_ne!(read, 0, "closed: {received:?}");
        }
    };
    in_time(reading).await;
}

/// An upstream may close the connection of all clients for the resets of one.
#[tokio::test]
async fn disconnects_before_an_http2_answer_are_limited() {
    let (arrived, (open, opened)) = (Arc::new(AtomicUsize::new(0)), watch::channel(false));
    let count = Arc::clone(&arrived);
    let origin = start_http2(move |_request, answer| {
        count.fetch_add(1, Ordering::Relaxed);
        let mut opened = opened.clone();
        async move {
            drop(opened.wait_for(|it| *it).await);
            answer_http2(answer, &[b"ok"]);
        }
    })
    .await;
    let gateway = gateway(&[origin], "http2 = true", "").await;
    let mut is_refused = false;
    for number in 1..600 {
        let mut client = begin_from(&gateway, ATTACKER, GET).await;
        let waiting = until(&arrived, number);
        tokio::select! {
            () = waiting => {}
            answer = client.response() => {
                assert_eq!(answer.expect("an answer").status, 429);
                is_refused = true;
                break;
            }
        }
    }
    assert!(is_refused && arrived.load(Ordering::Relaxed) >= 200);
    open.send_replace(true);
    assert_eq!(answered_users(&gateway).await, 20);
}
