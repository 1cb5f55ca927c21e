//! HTTP/2 without TLS, and what gRPC needs of HTTP/2.

use h2::server::SendResponse;
use http::{HeaderValue, Request, Response};

use super::*;

fn routes() -> String {
    route("s", "/s/*", "policy = \"public\"")
}

/// Answers as a gRPC server, with or without messages, and reports the `te` field.
async fn act(request: Request<h2::RecvStream>, mut respond: SendResponse<Bytes>) {
    let te = request.headers().get("te").cloned();
    let te = te.unwrap_or(HeaderValue::from_static("none"));
    let head = Response::builder().header("content-type", "application/grpc");
    let head = head.header("x-te", te);
    if request.uri().path().ends_with("only") {
        let head = head.header("grpc-status", "5");
        let head = head.header("grpc-message", "no such thing").body(());
        let _gone = respond.send_response(head.expect("a head"), true);
        return;
    }
    let head = head.body(()).expect("a head");
    let mut stream = respond.send_response(head, false).expect("sends");
    stream.send_data("reply".into(), false).expect("sends");
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    trailers.insert("set-cookie", HeaderValue::from_static("a=b"));
    trailers.insert("x-postern-code", HeaderValue::from_static("internal"));
    stream.send_trailers(trailers).expect("sends");
}

async fn gateway(upstream: &str, limits: &str) -> TestGateway {
    TestGateway::h2c(OriginBehavior::Answer, upstream, limits, &routes()).await
}

async fn before_origin() -> TestGateway {
    let upstream = format!("addresses = [\"{}\"]\nhttp2 = true", start_http2(act).await);
    gateway(&upstream, "").await
}

/// The result of a call: status, fields, body and trailers.
struct CallResult {
    status: u16,
    fields: HeaderMap,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

async fn call(client: &mut SendRequest<Bytes>, path: &str) -> CallResult {
    let request = Request::post(format!("http://gate{path}"))
        .header("content-type", "application/grpc+proto")
        .header("te", "trailers");
    let (response, mut body) = send(client, request.body(()).expect("a request"), false);
    body.send_data("\0\0\0\0\0".into(), true).expect("sends");
    let reading = async {
        let (head, mut body) = response.await.expect("a response").into_parts();
        let mut whole = Vec::new();
        while let Some(part) = body.data().await {
            whole.extend_from_slice(&part.expect("complete"));
        }
        let trailers = body.trailers().await.expect("complete");
        CallResult {
            status: head.status.as_u16(),
            fields: head.headers,
            body: whole,
            trailers,
        }
    };
    in_time(reading).await
}

#[tokio::test]
async fn te_and_trailers_are_forwarded() {
    let gateway = before_origin().await;
    let mut client = http2_client(&gateway, 65_535).await;
    let outcome = call(&mut client, "/s/reply").await;
    assert_eq!((outcome.status, &*outcome.body), (200, &b"reply"[..]));
    assert_eq!(outcome.fields["x-te"], "trailers");
    let trailers = outcome.trailers.expect("trailers");
    assert_eq!(trailers["grpc-status"], "0");
    let actual = trailers.len();
    assert_eq!(actual, 1, "no cookies and no gateway fields: {trailers:?}");
    let only = call(&mut client, "/s/only").await;
    assert_eq!(only.fields["grpc-status"], "5");
    assert_eq!(only.fields["grpc-message"], "no such thing");
    assert_eq!((only.body.len(), only.trailers), (0, None));
    // `te` is not added if the client does not send it.
    let plain = get(&mut client, "/s/reply", &[]).await;
    assert_eq!(plain.headers["x-te"], "none");
}

#[tokio::test]
async fn calls_ended_by_the_server_are_not_abuse() {
    let gateway = before_origin().await;
    let mut client = http2_client(&gateway, 65_535).await;
    for _ in 0..150 {
        let fields = [("content-type", "application/grpc")];
        let (response, mut body) = send(&mut client, head("POST", "/s/only", &fields), false);
        let head = in_time(response).await.expect("a response");
        assert_eq!(head.headers()["grpc-status"], "5");
        body.send_reset(h2::Reason::NO_ERROR);
    }
    assert_eq!(call(&mut client, "/s/reply").await.status, 200);
    drop(client);
    let events = gateway.finish().await;
    let holds = events.iter().all(|event| event["code"] == "ok");
    assert!(holds, "{:?}", events.first());
}

#[tokio::test]
async fn h2c_listener_accepts_both_versions() {
    let gateway = before_origin().await;
    let old = gateway.get("/nowhere", "").await;
    assert_eq!(old.problem(), "401 authentication_required");
    // The preface may arrive byte by byte.
    let mut client = gateway.connect().await;
    client.stream.set_nodelay(true).expect("a socket");
    for byte in b"PRI * HTTP/2.0\r\n" {
        client.stream.write_all(&[*byte]).await.expect("writes");
        tokio::task::yield_now().await;
    }
    client.write("\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    let settings = client.bytes(9).await;
    assert_eq!(settings.as_bytes().get(3), Some(&4), "SETTINGS");
    let mut client = http2_client(&gateway, 65_535).await;
    let new = get(&mut client, "/nowhere", &[]).await;
    assert_eq!(new.problem(), "401 authentication_required");
    let events = gateway.finish().await;
    assert_eq!(events.last().expect("one")["protocol"], "HTTP/2");
}

#[tokio::test]
async fn h2c_is_forwarded_as_http_scheme() {
    let gateway = TestGateway::h2c(OriginBehavior::Answer, "", "", &routes()).await;
    let mut client = http2_client(&gateway, 65_535).await;
    let answer = get(&mut client, "/s/x", &[("te", "trailers")]).await;
    assert_eq!(answer.status, 200);
    assert_eq!(call(&mut client, "/s/x").await.status, 200);
    let seen = gateway.origin.seen();
    assert_eq!(seen.len(), 2, "{seen:?}");
    for request in seen {
        let request = request.to_ascii_lowercase();
        assert!(request.contains("x-forwarded-proto: http\r\n"), "{request}");
        assert!(!request.contains("\r\nte:"), "hop-by-hop field: {request}");
    }
}

#[tokio::test]
async fn slow_preface_is_rejected() {
    let gateway = gateway("addresses = [\"127.0.0.1:1\"]", "head_timeout = \"200ms\"").await;
    let mut silent = gateway.begin("PRI * HT").await;
    assert!(silent.until("\r\n\r\n").await.starts_with("HTTP/1.1 400"));
}

#[tokio::test]
async fn preface_is_rejected_without_h2c() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    let answer = gateway.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert_eq!(answer.status, 505);
}
