//! Request and response bodies with any framing and any frame boundaries: the origin and the client
//! receive exactly one body with one end.

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::http2_frames::{
    DATA, END_HEADERS, END_STREAM, HEADERS, frame, is_open_after_ping, open,
};
use super::origin::request_length;
use super::*;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// Starts an origin that answers one request per connection and reports all bytes received on it.
async fn start_recording_origin() -> (SocketAddr, UnboundedReceiver<Vec<u8>>) {
    let (report, reports) = unbounded_channel();
    let address = scripted_origin::start(move |mut connection| {
        let report = report.clone();
        async move {
            let (bytes, stream) = (&mut connection.received, &mut connection.stream);
            let mut is_answered = false;
            while stream.read_buf(bytes).await.is_ok_and(|read| read > 0) {
                if !is_answered && request_length(bytes).is_some() {
                    is_answered = stream.write_all(ANSWER).await.is_ok();
                }
            }
            let _test_ended = report.send(connection.received);
        }
    });
    (address.await, reports)
}

/// Returns the body in the bytes of one connection, and checks that nothing follows it.
async fn received_body(reports: &mut UnboundedReceiver<Vec<u8>>, case: &str) -> String {
    let bytes = in_time(reports.recv()).await.expect("the origin reported");
    let text = String::from_utf8(bytes).expect("text");
    let (head, rest) = text.split_once("\r\n\r\n").expect("a head");
    let head = head.to_ascii_lowercase();
    if !head.contains("\r\ntransfer-encoding: chunked") {
        assert_eq!(content_length(&head), rest.len(), "{case}: {text}");
        return rest.to_owned();
    }
    assert!(!head.contains("content-length"), "{case}: {text}");
    unchunked(rest, case)
}

/// Returns the content of a body, and checks that nothing follows it.
#[track_caller]
fn unchunked(mut rest: &str, case: &str) -> String {
    let mut framing = BodyFraming::begin(BodyKind::Chunked);
    let taken = framing.advance(rest.as_bytes());
    assert_eq!(taken, Ok(rest.len()), "{case}: bytes follow: {rest}");
    assert_eq!(framing, BodyFraming::Done, "{case}: {rest}");
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = size.split(';').next().expect("a size");
        let size = usize::from_str_radix(size, 16).expect("a number");
        body.push_str(&after[..size]);
        rest = &after[size + 2..];
    }
    body
}

/// Returns `POST /open` in HPACK, with an optional `content-length`.
fn post(length: Option<usize>) -> Vec<u8> {
    let mut block = [&[0x83, 0x87, 0x04, 5][..], b"/open", &[0x01, 4], b"gate"].concat();
    if let Some(length) = length {
        let digits = length.to_string();
        block.extend([0x0f, 0x0d, u8::try_from(digits.len()).expect("short")]);
        block.extend(digits.as_bytes());
    }
    block
}

/// Returns one request as HTTP/2 frames. The last DATA frame ends the stream, unless trailers do.
fn frames(parts: &[&str], has_length: bool, has_trailers: bool) -> Vec<Vec<u8>> {
    let length = has_length.then(|| parts.iter().map(|part| part.len()).sum());
    let end = |is_last: bool| {
        if is_last && !has_trailers {
            END_STREAM
        } else {
            0
        }
    };
    let flags = END_HEADERS | end(parts.is_empty());
    let mut frames = vec![frame(HEADERS, flags, 1, &post(length))];
    for (at, part) in parts.iter().enumerate() {
        frames.push(frame(DATA, end(at + 1 == parts.len()), 1, part.as_bytes()));
    }
    if has_trailers {
        let trailer = [&[0x00, 5][..], b"x-sum", &[1], b"1"].concat();
        frames.push(frame(HEADERS, END_HEADERS | END_STREAM, 1, &trailer));
    }
    frames
}

#[tokio::test]
async fn http2_body_with_any_frame_boundaries_ends_once() {
    let (address, mut reports) = start_recording_origin().await;
    let upstream = format!("addresses = [\"{address}\"]");
    let front = TlsGateway::start(OriginBehavior::Answer, "", &upstream).await;
    for parts in [
        &[][..],
        &[""],
        &["", ""],
        &["hello"],
        &["hello", ""],
        &["", "hello"],
        &["he", "", "llo"],
        &["h", "e", "l", "l", "o"],
        &["", "he", "", "", "llo", "", ""],
    ] {
        for bits in 0..8 {
            let [has_length, has_trailers, is_burst] = [1, 2, 4].map(|bit| bits & bit != 0);
            let case = format!("{parts:?}, length, trailers and burst {bits:b}");
            let mut stream = open(&front).await;
            let mut frames = frames(parts, has_length, has_trailers);
            if is_burst {
                frames = vec![frames.concat()];
            }
            for frame in frames {
                stream.write_all(&frame).await.expect("writes");
                assert!(is_open_after_ping(&mut stream).await, "{case}");
            }
            let received = received_body(&mut reports, &case).await;
            assert_eq!(received, parts.concat(), "{case}");
        }
    }
}

#[tokio::test]
async fn http1_body_with_any_boundaries_ends_once() {
    let (address, mut reports) = start_recording_origin().await;
    let gateway = scripted_origin::gateway(&[address], "", "").await;
    let long = "x".repeat(40 << 10);
    let long_length = format!("Content-Length: {}\r\n", long.len());
    let chunked = "Transfer-Encoding: chunked\r\n";
    let extended = "1\r\nh\r\n1;x=y\r\ne\r\n3\r\nllo\r\n000\r\n\r\n";
    let trailed = "5\r\nhello\r\n0\r\nX-Sum: 1\r\nX-Other: a\r\n\r\n";
    for (version, framing, sent, expected) in [
        ("1.1", "", "", ""),
        ("1.1", "Content-Length: 0\r\n", "", ""),
        ("1.1", "Content-Length: 5\r\n", "hello", "hello"),
        ("1.1", &long_length, &long, &long),
        ("1.1", chunked, "0\r\n\r\n", ""),
        ("1.1", chunked, "5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("1.1", chunked, extended, "hello"),
        ("1.1", chunked, trailed, "hello"),
        ("1.0", "", "", ""),
        ("1.0", "Content-Length: 0\r\n", "", ""),
        ("1.0", "Content-Length: 5\r\n", "hello", "hello"),
        ("1.0", &long_length, &long, &long),
    ] {
        for piece in [1, 7, usize::MAX] {
            let excerpt = &sent[..sent.len().min(60)];
            let case = format!("HTTP/{version} {framing:?} {excerpt:?} in pieces of {piece}");
            let mut stream = gateway.connect().await.stream;
            stream.set_nodelay(true).expect("a socket");
            let head = format!("POST /open HTTP/{version}\r\nHost: gate\r\n{framing}\r\n");
            stream.write_all(head.as_bytes()).await.expect("writes");
            // The long request is sent in larger pieces.
            let piece = if sent.len() > 100 {
                piece.max(999)
            } else {
                piece
            };
            for part in sent.as_bytes().chunks(piece) {
                stream.write_all(part).await.expect("writes");
                tokio::task::yield_now().await;
            }
            assert_eq!(received_body(&mut reports, &case).await, expected, "{case}");
        }
    }
}

#[tokio::test]
async fn http2_response_with_any_frame_boundaries_ends_once() {
    let cases: [&'static [&'static [u8]]; 4] = [
        &[b""],
        &[b"hello", b""],
        &[b"", b"he", b"", b"llo"],
        &[b"", b"", b""],
    ];
    for parts in cases {
        let body = String::from_utf8(parts.concat()).expect("text");
        let origin = start_http2(move |_, answer| async move { answer_http2(answer, parts) });
        let upstream = format!("addresses = [\"{}\"]\nhttp2 = true", origin.await);
        let gateway = TestGateway::routed(OriginBehavior::Answer, &upstream, "", ROUTES).await;
        let mut client = gateway.begin(GET).await;
        let head = client.until("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200"), "{parts:?}: {head}");
        let first = client.until("0\r\n\r\n").await;
        let last = "GET /open HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n\r\n";
        client.write(last).await;
        let rest = client.rest().await.expect("an orderly end");
        let (head, second) = rest.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200"), "{parts:?}: {rest}");
        for chunks in [&first, second] {
            assert_eq!(unchunked(chunks, "a response"), body, "{parts:?}");
        }
        let front = TlsGateway::start(OriginBehavior::Answer, "", &upstream).await;
        let got = get(&mut front.client().await, "/open", &[]).await;
        assert_eq!(got.body, body, "{parts:?}");
    }
}
