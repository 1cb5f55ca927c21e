//! What no proper client sends over HTTP/2, frame by frame.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::front::{Front, get};
use super::harness::PATIENCE;
use super::origin::Manner;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// `GET path` in HPACK (RFC 7541): indexed fields and literals without indexing.
fn request(path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).expect("short");
    [&[0x82, 0x87, 0x04, length], path.as_bytes(), &[0x01, 4], b"gate"].concat()
}

async fn open(front: &Front) -> TlsStream<TcpStream> {
    let mut stream = front.connect().await;
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.expect("writes");
    stream
}

/// Everything until the end of the connection, as (kind, payload).
async fn until_closed(stream: &mut TlsStream<TcpStream>) -> Vec<(u8, Vec<u8>)> {
    let reading = async {
        let mut bytes = Vec::new();
        let _reset_or_closed = stream.read_to_end(&mut bytes).await;
        let (mut frames, mut rest) = (Vec::new(), bytes.as_slice());
        while let [high, middle, low, kind, _flags, _, _, _, _, body @ ..] = rest {
            let length = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
            let Some((payload, next)) = body.split_at_checked(length) else { break };
            frames.push((*kind, payload.to_vec()));
            rest = next;
        }
        frames
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("the connection is closed in time")
}

/// The error code of the last GOAWAY.
fn goodbye(frames: &[(u8, Vec<u8>)]) -> Option<u8> {
    frames.iter().rev().find(|(kind, _)| *kind == GOAWAY).map(|(_, payload)| payload[7])
}

#[tokio::test]
async fn a_head_that_never_ends_is_not_waited_for() {
    let front = Front::start(Manner::Answer, "head_timeout = \"150ms\"", "").await;
    let whole = frame(HEADERS, END_STREAM | END_HEADERS, 1, &request("/open"));
    let begun = frame(HEADERS, END_STREAM, 3, &request("/open"));
    for parts in [
        // A connection that says nothing, or only half a preface.
        Vec::new(),
        PREFACE[..10].to_vec(),
        // A header block without its end, first on a connection, and after a whole request.
        [PREFACE, &frame(SETTINGS, 0, 0, &[]), &begun].concat(),
        [PREFACE, &frame(SETTINGS, 0, 0, &[]), &whole, &begun].concat(),
        // Half of a frame, and a frame after an unfinished block that goes on.
        [PREFACE, &frame(SETTINGS, 0, 0, &[]), &whole, &begun[..12]].concat(),
        [PREFACE, &frame(SETTINGS, 0, 0, &[]), &whole, &begun, &frame(CONTINUATION, 0, 3, &[])].concat(),
    ] {
        let mut stream = front.connect().await;
        stream.write_all(&parts).await.expect("writes");
        until_closed(&mut stream).await;
    }
}

#[tokio::test]
async fn a_flood_of_continuations_ends_the_connection() {
    let front = Front::start(Manner::Answer, "", "").await;
    let mut stream = open(&front).await;
    // A literal field of 1,000 bytes, again and again, and never END_HEADERS.
    let field = [&[0x00, 1, b'x', 0x7f, 0xe9, 0x06][..], &[b'y'; 1000]].concat();
    let (mut reader, mut writer) = tokio::io::split(&mut stream);
    let flood = async {
        let mut sent = writer.write_all(&frame(HEADERS, END_STREAM, 1, &request("/open"))).await;
        for _ in 0..100_000 {
            if sent.is_err() {
                return true;
            }
            sent = writer.write_all(&frame(CONTINUATION, 0, 1, &field)).await;
        }
        false
    };
    let drain = async {
        let mut space = [0; 4096];
        while let Ok(1..) = reader.read(&mut space).await {}
    };
    let ended = tokio::time::timeout(PATIENCE, async { tokio::join!(flood, drain).0 }).await;
    assert!(ended.expect("an end in time"), "100 MB of fields were taken");
    assert!(front.gateway.origin.seen().is_empty());
    assert_eq!(get(&mut front.client().await, "/open", &[]).await.status, 200, "others are served");
}

#[tokio::test]
async fn streams_that_are_reset_as_they_come_end_the_connection() {
    let front = Front::start(Manner::Answer, "", "").await;
    let mut stream = open(&front).await;
    let attack: Vec<u8> = (0..1000_u32)
        .flat_map(|number| {
            let id = 2 * number + 1;
            [
                frame(HEADERS, END_STREAM | END_HEADERS, id, &request("/open")),
                frame(RST_STREAM, 0, id, &[0, 0, 0, 8]),
            ]
            .concat()
        })
        .collect();
    let _cut_off = stream.write_all(&attack).await;
    let frames = until_closed(&mut stream).await;
    assert_eq!(goodbye(&frames), Some(11), "ENHANCE_YOUR_CALM: {frames:?}");
    assert!(front.gateway.origin.seen().len() < 200, "{}", front.gateway.origin.seen().len());
    assert_eq!(get(&mut front.client().await, "/open", &[]).await.status, 200, "others are served");
}

#[tokio::test]
async fn what_is_malformed_ends_the_stream_or_the_connection() {
    let front = Front::start(Manner::Answer, "", "").await;
    let plain = request("/open");
    let with = |field: &[u8]| [&plain[..], field].concat();
    for block in [
        // connection, transfer-encoding, an upper-case name, a second :path.
        with(&[&[0x00, 10][..], b"connection", &[5], b"close"].concat()),
        with(&[&[0x00, 17][..], b"transfer-encoding", &[7], b"chunked"].concat()),
        with(&[&[0x00, 1][..], b"X", &[1], b"y"].concat()),
        with(&[&[0x04, 2][..], b"/b"].concat()),
        // A path with a line break, and one with a space.
        request("/open\r\nX: y"),
        request("/open HTTP/1.1"),
    ] {
        let mut stream = open(&front).await;
        stream.write_all(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &block)).await.expect("writes");
        // An answer to this says that everything before it has been dealt with.
        stream.write_all(&frame(PING, 0, 0, &[7; 8])).await.expect("writes");
        let answered = async {
            let mut bytes = Vec::new();
            let mut space = [0; 4096];
            while !bytes.windows(8).any(|window| window == [7; 8]) {
                match stream.read(&mut space).await {
                    Ok(read @ 1..) => bytes.extend_from_slice(&space[..read]),
                    Ok(_) | Err(_) => return,
                }
            }
        };
        tokio::time::timeout(PATIENCE, answered).await.expect("an answer in time");
    }
    assert!(front.gateway.origin.seen().is_empty(), "{:?}", front.gateway.origin.seen());
}
