//! Malformed and abusive HTTP/2 frame sequences.

use tokio_rustls::client::TlsStream;

use super::*;

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

pub(super) const ACK: u8 = 1;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// Returns `GET path` in HPACK (RFC 7541), with indexed fields and literals without indexing.
fn request(path: &str) -> Vec<u8> {
    let method = [0x82, 0x87, 0x04, u8::try_from(path.len()).expect("short")];
    [&method, path.as_bytes(), &[0x01, 4], b"gate"].concat()
}

fn whole_request(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &request(path))
}

/// Returns the beginning of a connection, and these frames.
fn begun(frames: &[&[u8]]) -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frames.concat()].concat()
}

pub(super) async fn open(front: &TlsGateway) -> TlsStream<TcpStream> {
    let mut stream = front.connect().await;
    stream.write_all(&begun(&[])).await.expect("writes");
    stream
}

/// Reads all frames until the connection is closed, as (kind, payload).
async fn until_closed(stream: &mut TlsStream<TcpStream>) -> Vec<(u8, Vec<u8>)> {
    let reading = async {
        let mut bytes = Vec::new();
        let _reset_or_closed = stream.read_to_end(&mut bytes).await;
        let (mut frames, mut rest) = (Vec::new(), bytes.as_slice());
        while let [high, middle, low, kind, _flags, _, _, _, _, body @ ..] = rest {
            let length = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
            let Some((payload, next)) = body.split_at_checked(length) else {
                break;
            };
            frames.push((*kind, payload.to_vec()));
            rest = next;
        }
        frames
    };
    in_time(reading).await
}

fn goaway_error(frames: &[(u8, Vec<u8>)]) -> Option<u8> {
    let mut frames = frames.iter().rev();
    frames.find_map(|(kind, payload)| (*kind == GOAWAY).then(|| payload[7]))
}

#[tokio::test]
async fn incomplete_head_times_out() {
    let front = TlsGateway::start(OriginBehavior::Answer, "head_timeout = \"150ms\"", "").await;
    let whole = whole_request(1, "/open");
    let half = frame(HEADERS, END_STREAM, 3, &request("/open"));
    let continued = frame(CONTINUATION, 0, 3, &[]);
    for parts in [
        // A connection that sends nothing, or half a preface.
        Vec::new(),
        PREFACE[..10].to_vec(),
        // An unfinished header block, as the first frame and after a whole request.
        begun(&[&half]),
        begun(&[&whole, &half]),
        // Half a frame, and another frame type within a header block.
        begun(&[&whole, &half[..12]]),
        begun(&[&whole, &half, &continued]),
    ] {
        let mut stream = front.connect().await;
        stream.write_all(&parts).await.expect("writes");
        until_closed(&mut stream).await;
    }
}

#[tokio::test]
async fn continuation_flood_closes_the_connection() {
    let front = TlsGateway::start(OriginBehavior::Answer, "", "").await;
    let mut stream = open(&front).await;
    // A literal field of 1,000 bytes, repeated without END_HEADERS.
    let field = [&[0x00, 1, b'x', 0x7f, 0xe9, 0x06][..], &[b'y'; 1000]].concat();
    let (mut reader, mut writer) = tokio::io::split(&mut stream);
    let flood = async {
        let begun = frame(HEADERS, END_STREAM, 1, &request("/open"));
        let mut sent = writer.write_all(&begun).await;
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
    let ended = tokio::time::timeout(STEP_TIMEOUT, async { tokio::join!(flood, drain).0 }).await;
    // 100 MB of fields are not accepted.
    assert!(ended.expect("the end in time"));
    front.gateway.origin.assert_unused();
    let actual = get(&mut front.client().await, "/open", &[]).await.status;
    assert_eq!(actual, 200, "others are served");
}

#[tokio::test]
async fn settings_are_sent_before_the_client_has_sent_anything() {
    let front = TlsGateway::start(OriginBehavior::Answer, "", "").await;
    let mut stream = front.connect().await;
    let mut header = [0; 9];
    let read = in_time(stream.read_exact(&mut header)).await;
    read.expect("a frame");
    assert_eq!(header[3], SETTINGS);
}

/// Returns whether the connection is still open after all sent frames were processed, by means of a
/// PING.
pub(super) async fn is_open_after_ping(stream: &mut TlsStream<TcpStream>) -> bool {
    let settling = async {
        if stream.write_all(&frame(PING, 0, 0, &[7; 8])).await.is_err() {
            return false;
        }
        let mut bytes = Vec::new();
        let mut space = [0; 4096];
        while find(&bytes, &[7; 8]).is_none() {
            match stream.read(&mut space).await {
                Ok(read @ 1..) => bytes.extend_from_slice(&space[..read]),
                Ok(_) | Err(_) => return false,
            }
        }
        true
    };
    in_time(settling).await
}

/// Returns a request on this stream of a client, and its reset.
fn given_up(number: u32, path: &str) -> Vec<u8> {
    let id = 2 * number + 1;
    let reset = frame(RST_STREAM, 0, id, &[0, 0, 0, 8]);
    [whole_request(id, path), reset].concat()
}

/// Opens and resets streams until the connection is closed. Returns their number.
async fn resets_until_closed(stream: &mut TlsStream<TcpStream>, path: &str) -> u32 {
    for round in 0..200_u32 {
        let attack = (0..5).flat_map(|number| given_up(5 * round + number, path));
        let attack: Vec<u8> = attack.collect();
        if stream.write_all(&attack).await.is_err() || !is_open_after_ping(stream).await {
            return 5 * round;
        }
    }
    panic!("1,000 streams were begun and given up");
}

#[tokio::test]
async fn rapid_resets_close_the_connection() {
    let front = TlsGateway::start(OriginBehavior::Answer, "", "").await;
    // Without a token, so that the gateway answers by itself without polling the client.
    let taken = resets_until_closed(&mut open(&front).await, "/any/1").await;
    assert!((90..150).contains(&taken), "{taken}");
    let closed = "postern_http2_rapid_resets_total 1";
    front.gateway.assert_metric(closed).await;
    let mut stream = open(&front).await;
    let attack = (0..1000).flat_map(|number| given_up(number, "/open"));
    let attack: Vec<u8> = attack.collect();
    let _cut_off = stream.write_all(&attack).await;
    let frames = until_closed(&mut stream).await;
    let actual = goaway_error(&frames);
    assert_eq!(actual, Some(11), "ENHANCE_YOUR_CALM: {frames:?}");
    let seen = front.gateway.origin.seen().len();
    assert!(seen < 200, "{seen}");
    let others = get(&mut front.client().await, "/open", &[]).await;
    assert_eq!(others.status, 200, "others are served");
}

#[tokio::test]
async fn resets_after_goaway_are_limited() {
    let front = TlsGateway::start(OriginBehavior::Hang, "head_timeout = \"100ms\"", "").await;
    let mut stream = open(&front).await;
    // The first GOAWAY is sent because of the idle timeout; the PING after it is never
    // acknowledged, so that the gateway must accept streams.
    let mut space = [0; 4096];
    let mut bytes = Vec::new();
    while find(&bytes, &[8, GOAWAY, 0, 0, 0]).is_none() {
        let read = in_time(stream.read(&mut space)).await;
        bytes.extend_from_slice(&space[..read.expect("reads")]);
    }
    let taken = resets_until_closed(&mut stream, "/open").await;
    assert!(taken < 150, "{taken}");
}

#[tokio::test]
async fn malformed_requests_close_the_connection() {
    let front = TlsGateway::start(OriginBehavior::Answer, "", "").await;
    let mut stream = open(&front).await;
    let mut sent = 0;
    while sent < 100 {
        let bad = whole_request(2 * sent + 1, "//open");
        if stream.write_all(&bad).await.is_err() || !is_open_after_ping(&mut stream).await {
            break;
        }
        sent += 1;
    }
    assert!((32..40).contains(&sent), "{sent}");
    let refused = "postern_proxy_rejected_before_routing_total{code=\"invalid_target\"} 33";
    front.gateway.assert_metric(refused).await;
}

/// Returns the bytes of all bodies.
fn bodies(frames: &[(u8, Vec<u8>)]) -> usize {
    let data = frames.iter().filter(|(kind, _)| *kind == DATA);
    data.map(|(_, payload)| payload.len()).sum()
}

/// A response that fits into the gateway's buffers, but not into the receive buffer of the client.
fn answer(body: usize) -> OriginBehavior {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {body}\r\n\r\n");
    OriginBehavior::Text((head + &"x".repeat(body)).leak())
}

#[tokio::test]
async fn unread_last_bytes_time_out() {
    let front = TlsGateway::start(answer(24 << 10), "stall_timeout = \"150ms\"", "").await;
    let mut stream = front.connect_narrow("h2").await;
    let ask = begun(&[&whole_request(1, "/open")]);
    stream.write_all(&ask).await.expect("writes");
    let (closed, over) = ("postern_connections 0", "code=\"ok\",route=\"open\"} 1");
    front.gateway.wait_for_metric(closed).await;
    front.gateway.assert_metric(over).await;
}

#[tokio::test]
async fn shutdown_waits_for_slow_readers() {
    let body = 24 << 10;
    let front = TlsGateway::start(answer(body), "", "").await;
    let wide = [0, 4, 0, 16, 0, 0];
    let window = frame(WINDOW_UPDATE, 0, 0, &[0, 16, 0, 0]);
    let settings = [PREFACE, &frame(SETTINGS, 0, 0, &wide), &window].concat();
    let ask = [&settings[..], &whole_request(1, "/open")].concat();
    let (mut slow, mut quick) = (front.connect_narrow("h2").await, front.connect().await);
    slow.write_all(&ask).await.expect("writes");
    let over = "code=\"ok\",route=\"open\"} 1";
    front.gateway.wait_for_metric(over).await;
    quick.write_all(&settings).await.expect("writes");
    assert!(is_open_after_ping(&mut quick).await);
    front.gateway.shutdown.cancel();
    // A client without pending data is disconnected one second after GOAWAY; the other one would be
    // as well if its backlog were not considered.
    until_closed(&mut quick).await;
    let frames = until_closed(&mut slow).await;
    assert_eq!(bodies(&frames), body);
    assert_eq!(goaway_error(&frames), Some(0));
}

#[tokio::test]
async fn malformed_frames_end_stream_or_connection() {
    let front = TlsGateway::start(OriginBehavior::Answer, "", "").await;
    let plain = request("/open");
    let with = |field: &[u8]| [&plain[..], field].concat();
    let blocks = [
        // connection, transfer-encoding, an upper-case name, a second :path.
        with(&[&[0x00, 10][..], b"connection", &[5], b"close"].concat()),
        with(&[&[0x00, 17][..], b"transfer-encoding", &[7], b"chunked"].concat()),
        with(&[&[0x00, 1][..], b"X", &[1], b"y"].concat()),
        with(&[&[0x04, 2][..], b"/b"].concat()),
        // A path with a line break, and one with a space.
        request("/open\r\nX: y"),
        request("/open HTTP/1.1"),
        // `:scheme` with an indexed name and an empty value: only the stream is rejected.
        [&[0x82, 0x06, 0, 0x04, 5][..], b"/open", &[0x01, 4], b"gate"].concat(),
    ];
    let mut is_open = false;
    for block in blocks {
        let mut stream = open(&front).await;
        let head = frame(HEADERS, END_STREAM | END_HEADERS, 1, &block);
        stream.write_all(&head).await.expect("writes");
        is_open = is_open_after_ping(&mut stream).await;
    }
    assert!(is_open);
    front.gateway.origin.assert_unused();
}

#[tokio::test]
async fn preface_without_settings_closes_the_connection() {
    let front = TlsGateway::start(OriginBehavior::Answer, "", "").await;
    let ask = whole_request(1, "/open");
    let (ping, settled) = (frame(PING, 0, 0, &[7; 8]), frame(SETTINGS, 1, 0, &[]));
    for first in [Vec::new(), ping, settled] {
        let mut stream = front.connect().await;
        let _cut_off = stream.write_all(&[PREFACE, &first, &ask].concat()).await;
        let frames = until_closed(&mut stream).await;
        let holds = frames.iter().all(|(kind, _)| *kind != HEADERS);
        assert!(holds, "{frames:?}");
    }
    front.gateway.origin.assert_unused();
}
