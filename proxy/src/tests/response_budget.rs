//! Bytes of responses that the gateway holds for readers that take nothing.

use std::sync::LazyLock;

use h2::client::ResponseFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::InspectWriter;

use super::*;

/// The longest response of the origin of these tests.
const BODY_BYTES: usize = 8 << 20;

/// One body for all responses: a test has many of them at once.
static BODY: LazyLock<Bytes> = LazyLock::new(|| vec![b'x'; BODY_BYTES].into());

/// What a response may hold, and so much for its head and for frames around its body.
const STREAM_BYTES: usize = 64 << 10;
const OVERHEAD_BYTES: usize = 1 << 10;

/// Returns a socket that counts what its kernel has taken.
pub(super) fn counted(
    stream: TcpStream,
    count: &Arc<AtomicUsize>,
) -> impl AsyncRead + AsyncWrite + Unpin + Send + 'static {
    let count = Arc::clone(count);
    InspectWriter::new(stream, move |data: &[u8]| {
        count.fetch_add(data.len(), Ordering::Relaxed);
    })
}

/// An origin that answers one request of a connection with [`BODY_BYTES`], and counts what it
/// wrote.
async fn counting_origin(is_http2: bool) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = bind().await;
    let address = listener.local_addr().expect("bound");
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let counted = counted(stream, &count);
            match is_http2 {
                true => tokio::spawn(flood_http2(counted)),
                false => tokio::spawn(flood_http1(counted)),
            };
        }
    });
    (address, written)
}

async fn flood_http1(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let Ok(1..) = stream.read_buf(&mut request).await else {
            return;
        };
    }
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY_BYTES}\r\n\r\n");
    if stream.write_all(head.as_bytes()).await.is_ok() {
        let _cut = stream.write_all(&BODY).await;
    }
}

async fn flood_http2(stream: impl AsyncRead + AsyncWrite + Unpin) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        if let Ok(mut body) = respond.send_response(http::Response::new(()), false) {
            let _gone = body.send_data(BODY.clone(), true);
        }
    }
}

/// Bytes that wait in the kernel on connections with a socket at this port: in send queues and in
/// receive queues (proc(5), `/proc/net/tcp`).
fn queued(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("a table");
    let port = format!(":{port:04X}");
    let bytes = |text: &str| usize::from_str_radix(text, 16).expect("hexadecimal");
    let lines = table.lines().skip(1);
    let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    // State 01: a listening socket counts connections and no bytes.
    let open = lines.filter(|line| line[3] == "01");
    open.filter(|line| line[1].ends_with(&port) || line[2].ends_with(&port))
        .map(|line| {
            let (sent, received) = line[4].split_once(':').expect("two queues");
            bytes(sent) + bytes(received)
        })
        .sum()
}

/// What the gateway holds once nothing moves any more: written by one side, neither taken by the
/// other nor waiting in the kernel. The side that reads has held up `most` bytes.
pub(super) async fn held_bytes(
    gateway: &TestGateway,
    origin: SocketAddr,
    written: &AtomicUsize,
    most: usize,
) -> usize {
    let (mut known, mut looks) = (0, 0);
    let settling = async {
        // Acknowledgements may be 200 ms late: until then some bytes are in two queues.
        while looks < 5 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let queued = queued(gateway.address.port()) + queued(origin.port());
            let held = written.load(Ordering::Relaxed).saturating_sub(queued);
            looks = if held == known { looks + 1 } else { 0 };
            known = held;
        }
    };
    (tokio::time::timeout(3 * STEP_TIMEOUT, settling).await).expect("at rest in time");
    assert!(written.load(Ordering::Relaxed) < most);
    known
}

async fn gauge(gateway: &TestGateway) -> usize {
    let held = gateway.metric("postern_response_buffer_bytes ").await;
    held.expect("a gauge")
}

/// Clients stall for as long as a test takes on a busy machine.
async fn before(address: SocketAddr, is_http2: bool, limits: &str) -> TestGateway {
    let limits = format!("stall_timeout = \"10m\"\n{limits}");
    let upstream = format!("addresses = [\"{address}\"]\nhttp2 = {is_http2}");
    TestGateway::h2c(OriginBehavior::Answer, &upstream, &limits, ROUTES).await
}

#[tokio::test]
async fn http1_reader_makes_the_gateway_hold_64_kib() {
    for is_http2 in [false, true] {
        let (address, written) = counting_origin(is_http2).await;
        let gateway = before(address, is_http2, "").await;
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4 << 10).expect("a size");
        let mut stream = socket.connect(gateway.address).await.expect("connects");
        stream.write_all(GET.as_bytes()).await.expect("writes");
        let held = held_bytes(&gateway, address, &written, BODY_BYTES).await;
        let holds = held <= STREAM_BYTES + OVERHEAD_BYTES;
        assert!(holds, "{held} bytes: HTTP/2 {is_http2}");
        until_held(&gateway, STREAM_BYTES, &format!("HTTP/2 {is_http2}")).await;
    }
}

#[tokio::test]
async fn http2_stream_makes_the_gateway_hold_64_kib() {
    for is_http2 in [false, true] {
        let (address, written) = counting_origin(is_http2).await;
        let gateway = before(address, is_http2, "").await;
        let mut client = http2_client(&gateway, 0).await;
        let mut answers = Vec::new();
        for count in 1..=2 {
            let (answer, _) = send(&mut client, head("GET", "/open", &[]), true);
            answers.push(answer.await.expect("a head").into_body());
            let held = held_bytes(&gateway, address, &written, count * BODY_BYTES).await;
            let holds = held <= count * (STREAM_BYTES + OVERHEAD_BYTES);
            assert!(holds, "{held} bytes of {count} streams: HTTP/2 {is_http2}");
            // Only this is read with the head: what follows it within 4 KiB.
            let least = if is_http2 { 8 << 10 } else { 2 << 10 };
            assert!(held >= count * least, "{held} bytes of {count} streams");
            until_held(&gateway, count * STREAM_BYTES, "streams").await;
        }
    }
}

/// Waits until so much is held, and looks for a while whether it becomes more: the gauge is set
/// every second.
async fn until_held(gateway: &TestGateway, wanted: usize, case: &str) {
    let (mut held, mut looks) = (0, 0);
    let waiting = async {
        while looks < 60 {
            held = gauge(gateway).await;
            assert!(held <= wanted, "{held} bytes, {wanted} allowed: {case}");
            looks = if held == wanted { looks + 1 } else { 0 };
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    in_time(waiting).await;
}

/// A budget of 16 responses, and what one address may have of it: all as a trusted proxy.
const BUDGET: &str = "response_buffer_bytes = \"1MiB\"";
const OF_A_PROXY: &str = "response_buffer_bytes = \"1MiB\"\ntrusted_proxies = [\"127.0.0.1/32\"]";
const BUDGETS: [(&str, usize); 2] = [(BUDGET, 8), (OF_A_PROXY, 16)];

async fn answers_again(gateway: &TestGateway) {
    wait_until(async || gauge(gateway).await == 0).await;
}

#[tokio::test]
async fn burst_of_streams_does_not_pass_the_budget() {
    for (limits, units) in BUDGETS {
        let (address, _) = counting_origin(false).await;
        let gateway = before(address, false, limits).await;
        let mut client = http2_client(&gateway, 0).await;
        let answers = (0..60).map(|_| send(&mut client, head("GET", "/open", &[]), true).0);
        let answers: Vec<ResponseFuture> = answers.collect();
        until_held(&gateway, units * STREAM_BYTES, limits).await;
        let (answer, _) = send(&mut client, head("GET", "/open", &[]), true);
        // The client has no window for the body of a refusal.
        assert_eq!(answer.await.expect("a head").status(), 503, "{limits}");
        let mut held = 0;
        for answer in answers {
            let Ok(answer) = answer.await else { continue };
            let is_refused = answer.status() == 503;
            let mut body = answer.into_body();
            let end = tokio::time::timeout(Duration::from_millis(10), body.data());
            held += usize::from(!is_refused && end.await.is_err());
        }
        assert_eq!(held, units, "{limits}");
        drop(client);
        answers_again(&gateway).await;
    }
}

#[tokio::test]
async fn burst_over_http1_does_not_pass_the_budget() {
    for (limits, units) in BUDGETS {
        let (address, _) = counting_origin(false).await;
        let gateway = before(address, false, limits).await;
        let mut clients = Vec::new();
        for _ in 0..40 {
            clients.push(gateway.connect().await);
        }
        for client in &mut clients {
            client.write(GET).await;
        }
        until_held(&gateway, units * STREAM_BYTES, limits).await;
        let refused = gateway.send(GET).await;
        assert_eq!(refused.problem(), "503 unavailable", "{limits}");
        drop(clients);
        answers_again(&gateway).await;
    }
}

#[tokio::test]
async fn one_address_leaves_the_budget_to_others() {
    let (address, _) = counting_origin(false).await;
    let gateway = before(address, false, BUDGET).await;
    let mut client = http2_client(&gateway, 0).await;
    let held = (0..20).map(|_| send(&mut client, head("GET", "/open", &[]), true).0);
    let _held: Vec<ResponseFuture> = held.collect();
    until_held(&gateway, 8 * STREAM_BYTES, "one address").await;
    for last in 10..30 {
        let mut other = http2_from(&gateway, last, 65_535).await;
        let body = get(&mut other, "/open", &[]).await.body;
        assert_eq!(body.len(), BODY_BYTES, "{last}");
    }
}
