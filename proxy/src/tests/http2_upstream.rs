//! HTTP/2 towards upstreams, from clients of either version.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Response};
use tokio::net::TcpListener;

use super::front::{Front, get};
use super::harness::{Gateway, ROUTES};
use super::origin::{Manner, Origin};

/// What an origin got: pseudo-fields as text, and the fields.
type Seen = Arc<Mutex<Vec<(String, HeaderMap)>>>;

/// Speaks HTTP/2 from the first byte; echoes the body, and ends with a trailer.
async fn origin() -> (SocketAddr, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let (address, seen) = (listener.local_addr().expect("bound"), Seen::default());
    let record = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let record = Arc::clone(&record);
            tokio::spawn(async move {
                let Ok(mut connection) = h2::server::handshake(stream).await else { return };
                while let Some(Ok((request, answer))) = connection.accept().await {
                    let (head, body) = request.into_parts();
                    let line = format!("{} {} {:?}", head.method, head.uri, head.version);
                    record.lock().expect("not poisoned").push((line, head.headers));
                    tokio::spawn(echo(body, answer));
                }
            });
        }
    });
    (address, seen)
}

async fn echo(mut body: h2::RecvStream, mut answer: h2::server::SendResponse<Bytes>) {
    let mut whole = Vec::new();
    while let Some(Ok(part)) = body.data().await {
        let _always_given = body.flow_control().release_capacity(part.len());
        whole.extend_from_slice(&part);
    }
    let Ok(mut stream) = answer.send_response(Response::new(()), false) else { return };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    if stream.send_data(whole.into(), false).is_ok() {
        let _gone = stream.send_trailers(trailers);
    }
}

fn upstream(address: SocketAddr) -> String {
    format!("addresses = [\"{address}\"]\nhttp2 = true")
}

#[tokio::test]
async fn a_request_of_http_1_goes_on_over_http_2() {
    let (address, seen) = origin().await;
    let unused = Origin::start(Manner::Answer).await;
    let gateway = Gateway::before(unused, &upstream(address), "", ROUTES).await;
    let bearer = format!("Authorization: Bearer {}\r\nX_Postern_Subject: eve\r\n", gateway.user());
    let posted = format!("POST /any/1?q HTTP/1.1\r\nHost: gate\r\n{bearer}Content-Length: 3\r\n\r\nabc");
    let mut client = gateway.connect().await;
    for _ in 0..3 {
        client.write(&posted).await;
        assert!(client.until("\r\n\r\n").await.starts_with("HTTP/1.1 200"));
        assert_eq!(client.until("0\r\n\r\n").await, "3\r\nabc\r\n0\r\n\r\n");
    }
    let seen = seen.lock().expect("not poisoned").clone();
    assert_eq!(seen.len(), 3);
    let (line, fields) = &seen[0];
    assert_eq!(line, "POST http://gate/any/1?q HTTP/2.0");
    assert_eq!(
        (&fields["x-postern-subject"], fields.get_all("x-postern-subject").iter().count()),
        (&"ada".parse().expect("text"), 1)
    );
    assert!(fields.keys().all(|name| !name.as_str().contains('_')), "{fields:?}");
}

#[tokio::test]
async fn a_stream_goes_on_as_a_stream_with_its_trailers() {
    let (address, seen) = origin().await;
    let front = Front::before(Origin::start(Manner::Answer).await, &upstream(address), "").await;
    let mut client = front.client().await;
    assert_eq!(get(&mut client, "/open", &[]).await.status, 200);
    let (answer, mut body) =
        client.send_request(super::front::head("POST", "/open", &[]), false).expect("a stream");
    body.send_data(Bytes::from_static(b"ping"), true).expect("sends");
    let mut body = answer.await.expect("an answer").into_body();
    assert_eq!(body.data().await.expect("a part").expect("whole"), "ping");
    let trailers = body.trailers().await.expect("whole").expect("trailers");
    assert_eq!(trailers["grpc-status"], "0");
    assert_eq!(seen.lock().expect("not poisoned").len(), 2);
}
