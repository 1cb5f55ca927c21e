//! HTTP/2 to upstreams, from clients of both versions.

use http::{HeaderValue, Response};

use super::http2_frames::{
    ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame,
};
use super::scripted_origin::start;
use super::*;

/// The requests that an origin received: pseudo-header fields as text, and fields.
type SeenRequests = Arc<Mutex<Vec<(String, HeaderMap)>>>;

/// Starts an origin that echoes the body and sends a trailer.
async fn origin() -> (SocketAddr, SeenRequests) {
    let seen = SeenRequests::default();
    let record = Arc::clone(&seen);
    let address = start_http2(move |request, answer| {
        let (head, body) = request.into_parts();
        let line = format!("{} {} {:?}", head.method, head.uri, head.version);
        record.lock().push((line, head.headers));
        echo(body, answer)
    });
    (address.await, seen)
}

/// Returns an address whose TLS connections lead to an origin.
async fn encrypted(origin: SocketAddr, config: rustls::ServerConfig) -> SocketAddr {
    let listener = bind().await;
    let address = listener.local_addr().expect("bound");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(mut client) = acceptor.accept(client).await {
                    let mut origin = TcpStream::connect(origin).await.expect("connects");
                    let _end = tokio::io::copy_bidirectional(&mut client, &mut origin).await;
                }
            });
        }
    });
    address
}

async fn echo(mut body: h2::RecvStream, mut answer: h2::server::SendResponse<Bytes>) {
    let mut whole = Vec::new();
    while let Some(Ok(part)) = body.data().await {
        let _always_given = body.flow_control().release_capacity(part.len());
        whole.extend_from_slice(&part);
    }
    let Ok(mut stream) = answer.send_response(Response::new(()), false) else {
        return;
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    if stream.send_data(whole.into(), false).is_ok() {
        let _gone = stream.send_trailers(trailers);
    }
}

fn upstream(address: SocketAddr) -> String {
    format!("addresses = [\"{address}\"]\nhttp2 = true")
}

#[tokio::test]
async fn http1_request_is_forwarded_over_http2() {
    let (address, seen) = origin().await;
    let gateway = TestGateway::routed(OriginBehavior::Answer, &upstream(address), "", ROUTES).await;
    let fields = gateway.bearer() + "X_Postern_Subject: eve\r\nContent-Length: 3\r\n";
    let posted = format!("POST /any/1?q HTTP/1.1\r\nHost: gate\r\n{fields}\r\nabc");
    let mut client = gateway.connect().await;
    for _ in 0..3 {
        client.write(&posted).await;
        assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 200"));
        assert_eq!(client.until("0\r\n\r\n").await, "3\r\nabc\r\n0\r\n\r\n");
    }
    let seen = seen.lock().clone();
    assert_eq!(seen.len(), 3);
    let (line, fields) = &seen[0];
    assert_eq!(line, "POST http://gate/any/1?q HTTP/2.0");
    let subjects: Vec<_> = fields.get_all("x-postern-subject").iter().collect();
    assert_eq!(subjects, ["ada"]);
    let mut names = fields.keys().map(http::HeaderName::as_str);
    assert!(names.all(|name| !name.contains('_')), "{fields:?}");
}

#[tokio::test]
async fn tls_upstream_negotiates_http2() {
    let files = CertificateFolder::new();
    files.issue("server", &["localhost"]);
    let mut config = rustls::ServerConfig::clone(&files.server("server", false));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let (plain, seen) = origin().await;
    let address = encrypted(plain, config).await;
    files.write("other.pem", CertificateAuthority::new().pem());
    for (file, status) in [("ca.pem", 200), ("other.pem", 502)] {
        // The name in the certificate.
        let host = "host = \"localhost:8443\"\nretries = 0\n[upstream.origin.tls]";
        let ca = files.path(file).display().to_string();
        let upstream = format!("{}\n{host}\nca = \"{ca}\"", upstream(address));
        let gateway = TestGateway::routed(OriginBehavior::Answer, &upstream, "", ROUTES).await;
        let before = seen.lock().len();
        assert_eq!(gateway.status("/open", "").await, status, "{file}");
        let seen = seen.lock().split_off(before);
        assert_eq!(seen.len(), usize::from(status == 200), "{seen:?}");
        for (line, fields) in seen {
            assert_eq!(line, "GET https://localhost:8443/open HTTP/2.0");
            assert_eq!(fields["x-forwarded-host"], "gate");
        }
    }
}

/// How an HTTP/2 origin says that it has not processed a stream (RFC 9113 section 8.7).
#[derive(Clone, Copy, Debug)]
enum Refusal {
    Goaway(u8),
    RefusedStream,
}

/// Starts an HTTP/2 origin that processes the first request of a connection and refuses the second,
/// the first `refused` times, at its head if `is_early`, else at its end. Answers have no body.
async fn refusing_origin(refusal: Refusal, is_early: bool, refused: usize) -> SocketAddr {
    let left = Arc::new(AtomicUsize::new(refused));
    start(move |mut connection| {
        let left = Arc::clone(&left);
        async move {
            let preface = connection.take_body(PREFACE.len()).await;
            preface.expect("a preface");
            connection.send(frame(SETTINGS, 0, 0, &[])).await;
            let (mut count, mut ended) = (0, 0);
            while let Some(head) = connection.take_body(9).await {
                let length = usize::from(head[1]) << 8 | usize::from(head[2]);
                connection.take_body(length).await.expect("a payload");
                let (kind, flags) = (head[3], head[4]);
                let stream = u32::from_be_bytes(head[5..].try_into().expect("four bytes"));
                if kind == SETTINGS && flags & ACK == 0 {
                    connection.send(frame(SETTINGS, ACK, 0, &[])).await;
                }
                if kind == DATA && length > 0 {
                    let bytes = u32::try_from(length).expect("a frame").to_be_bytes();
                    connection.send(frame(WINDOW_UPDATE, 0, 0, &bytes)).await;
                }
                if !matches!(kind, HEADERS | DATA) || stream == ended {
                    continue;
                }
                count += usize::from(kind == HEADERS);
                let is_end = flags & END_STREAM != 0;
                let mut is_refused = count == 2 && (is_end || is_early);
                if is_refused && left.load(Ordering::Relaxed) == 0 {
                    is_refused = false;
                } else if is_refused {
                    left.fetch_sub(1, Ordering::Relaxed);
                }
                match refusal {
                    Refusal::Goaway(code) if is_refused => {
                        let payload = [0, 0, 0, 1, 0, 0, 0, code];
                        connection.send(frame(GOAWAY, 0, 0, &payload)).await;
                        // Closing with unread data would discard the frame.
                        while connection.take_body(1).await.is_some() {}
                        return;
                    }
                    Refusal::RefusedStream if is_refused => {
                        ended = stream;
                        let reset = frame(RST_STREAM, 0, stream, &[0, 0, 0, 7]);
                        connection.send(reset).await;
                    }
                    Refusal::Goaway(_) | Refusal::RefusedStream if !is_end => {}
                    Refusal::Goaway(_) | Refusal::RefusedStream => {
                        // `:status: 200` (RFC 7541 appendix A).
                        let answer = frame(HEADERS, END_STREAM | END_HEADERS, stream, &[0x88]);
                        connection.send(answer).await;
                    }
                }
            }
        }
    })
    .await
}

#[tokio::test]
async fn unprocessed_request_is_repeated_whatever_its_method() {
    let [goaway, calm] = [0, 11].map(Refusal::Goaway);
    for refusal in [goaway, calm, Refusal::RefusedStream] {
        let long = "x".repeat(40_000);
        for (method, body, is_early) in [
            ("GET", "", false),
            ("POST", "", false),
            ("POST", "body", false),
            ("POST", "body", true),
            // The body meets the end of the stream.
            ("POST", long.as_str(), true),
        ] {
            let address = refusing_origin(refusal, is_early, 3).await;
            let settings = "retries = 0\nretry_budget = 0\n[upstream.origin.outlier]\nfailures = 1";
            let upstream = format!("{}\n{settings}", upstream(address));
            let gateway = TestGateway::routed(OriginBehavior::Answer, &upstream, "", ROUTES).await;
            let length = body.len();
            let head = format!("{method} /open HTTP/1.1\r\nHost: gate\r\nContent-Length: {length}");
            let request = format!("{head}\r\n\r\n{body}");
            for count in 0..8 {
                let status = gateway.send(&request).await.status;
                assert_eq!(status, 200, "{refusal:?} {method} {length} {count}");
            }
            for counter in ["ejections", "retries", "retries_denied"] {
                let name = format!("postern_{counter}_total{{upstream=\"origin\"}}");
                gateway.assert_metric(&format!("{name} 0\n")).await;
            }
        }
    }
}

#[tokio::test]
async fn upstream_that_always_refuses_is_asked_eight_times() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let address = start_http2(move |_request, mut answer| {
        count.fetch_add(1, Ordering::Relaxed);
        async move { answer.send_reset(h2::Reason::REFUSED_STREAM) }
    })
    .await;
    let gateway = TestGateway::routed(OriginBehavior::Answer, &upstream(address), "", ROUTES).await;
    let began = Instant::now();
    assert_eq!(gateway.status("/open", "").await, 502);
    assert_eq!(asked.load(Ordering::Relaxed), 8);
    assert!(began.elapsed() >= Duration::from_millis(60));
}

#[tokio::test]
async fn http2_authority_is_forwarded() {
    let (address, seen) = origin().await;
    let route = "[[route]]\npath = \"/api/*\"\nmethods = [\"GET\"]\nupstream = \"origin\"\npolicy = \"public\"\n\
                 rewrite = { strip = \"/api\", add = \"/v1\" }\n\
                 request_headers = { set = { X-Path = \"{path}{query}\" }, remove = [\"x-removed\"] }\n";
    let upstream = format!("{}\n{route}", upstream(address));
    let front = TlsGateway::start(OriginBehavior::Answer, "", &upstream).await;
    let mut client = front.client().await;
    for path in ["/open?q", "/api/things?q"] {
        let fields = [("x-path", "forged"), ("x-removed", "1")];
        assert_eq!(get(&mut client, path, &fields).await.status, 200);
    }
    let seen = seen.lock().clone();
    let expected = [
        ("GET http://gate/open?q HTTP/2.0", "forged", true),
        (
            "GET http://gate/v1/things?q HTTP/2.0",
            "/api/things?q",
            false,
        ),
    ];
    assert_eq!(seen.len(), 2);
    for ((line, fields), (expected, path, is_kept)) in seen.iter().zip(expected) {
        assert_eq!(line, expected);
        assert_eq!(fields["x-path"], path);
        assert_eq!(fields.contains_key("x-removed"), is_kept);
        let actual = (&fields["x-forwarded-host"], fields.get("host"));
        assert_eq!(actual, (&"gate".parse().expect("text"), None));
    }
}

#[tokio::test]
async fn client_that_expects_an_interim_response_gets_one() {
    let origin = start_http2(|request, answer| async move {
        let mut body = request.into_body();
        while let Some(Ok(_part)) = body.data().await {}
        answer_http2(answer, &[b"ok"]);
    })
    .await;
    let gateway = TestGateway::routed(OriginBehavior::Answer, &upstream(origin), "", ROUTES).await;
    let mut client = gateway.connect().await;
    let head =
        "POST /open HTTP/1.1\r\nHost: gate\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    client.write(head).await;
    let interim = client.until("\r\n\r\n").await;
    assert_eq!(interim, "HTTP/1.1 100 Continue\r\n\r\n");
    client.write("hello").await;
    let head = client.until("\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
}
