//! Responses of an origin that are not forwarded.

use super::harness::{ROUTES, RawResponse, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};
use super::tls::{CertificateAuthority, origin_behind_tls};
use super::tls_gateway::{TlsGateway, get, head, reply, send};

/// Several consecutive failures are intended; no address is ejected for them.
const NO_EJECTION: &str = "[upstream.origin.outlier]\nfailures = 0\n";

/// Requests that do not ask for an upgrade.
fn requests() -> [String; 5] {
    let long = "x".repeat(20 << 10);
    [
        "GET /open HTTP/1.1\r\nHost: gate\r\n\r\n".to_owned(),
        "GET /open HTTP/1.0\r\nHost: gate\r\n\r\n".to_owned(),
        "GET /open HTTP/1.1\r\nHost: gate\r\nExpect: 100-continue\r\n\r\n".to_owned(),
        "POST /open HTTP/1.1\r\nHost: gate\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
            .to_owned(),
        format!("POST /open HTTP/1.1\r\nHost: gate\r\nContent-Length: {}\r\n\r\n{long}", long.len()),
    ]
}

#[track_caller]
fn assert_failed(answer: &RawResponse, case: &str) {
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (502, "upstream_failed"),
        "{case}"
    );
}

/// Starts a gateway before an origin that uses TLS.
async fn before_tls(behavior: OriginBehavior) -> (TestGateway, tempfile::TempDir) {
    let (folder, authority) = (
        tempfile::tempdir().expect("a folder"),
        CertificateAuthority::new(),
    );
    authority.write(folder.path());
    let origin = origin_behind_tls(&authority, folder.path(), behavior).await;
    let text = format!(
        "addresses = [\"{0}\"]\n{NO_EJECTION}[upstream.origin.tls]\nname = \"localhost\"\nca = \"{1}/ca.pem\"\n\
         certificate = \"{1}/client.pem\"\nkey = \"{1}/client.key\"",
        origin.address,
        folder.path().display()
    );
    (TestGateway::before(origin, &text, "", ROUTES).await, folder)
}

/// Sends every kind of request to an origin with this response; each must be rejected and logged.
async fn assert_rejected_for_all_requests(answer: &'static str) {
    let upstream =
        |origin: &TestOrigin| format!("addresses = [\"{}\"]\n{NO_EJECTION}", origin.address);
    let origin = TestOrigin::start(OriginBehavior::Text(answer)).await;
    let text = upstream(&origin);
    let gateway = TestGateway::before(origin, &text, "", ROUTES).await;
    let mut sent = 0;
    for request in requests() {
        assert_failed(
            &gateway.send(&request).await,
            &format!("{answer:?} to {:?}", &request[..20]),
        );
        sent += 1;
    }
    let bearer = format!("Authorization: Bearer {}\r\n", gateway.user());
    assert_failed(
        &gateway.get("/socket", &bearer).await,
        &format!("{answer:?} on a route with tunnels"),
    );
    let events = gateway.finish().await;
    assert_eq!(events.len(), sent + 1);

    let origin = TestOrigin::start(OriginBehavior::Text(answer)).await;
    let text = upstream(&origin);
    let front = TlsGateway::before(origin, &text, "").await;
    let reply = get(&mut front.client().await, "/open", &[]).await;
    assert_eq!(
        (reply.status, reply.code().as_str()),
        (502, "upstream_failed"),
        "{answer:?} to HTTP/2"
    );

    let (gateway, _folder) = before_tls(OriginBehavior::Text(answer)).await;
    assert_failed(
        &gateway.get("/open", "").await,
        &format!("{answer:?} over TLS"),
    );

    let mut events = [events, front.gateway.finish().await, gateway.finish().await].concat();
    events.retain(|event| {
        (&event["status"], &event["code"]) != (&502.into(), &"upstream_failed".into())
    });
    assert_eq!(events, Vec::<serde_json::Value>::new(), "{answer:?}");
}

#[tokio::test]
async fn unrequested_upgrade_is_rejected() {
    let head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nraw bytes";
    assert_rejected_for_all_requests(head).await;
}

#[tokio::test]
async fn response_with_ambiguous_framing_is_rejected() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\nTransfer-Encoding: gzip\r\n\r\n",
    ] {
        assert_rejected_for_all_requests(answer).await;
    }
}

#[tokio::test]
async fn upgrade_to_another_protocol_is_rejected() {
    let gateway = TestGateway::with(OriginBehavior::Upgrade, "", NO_EJECTION).await;
    let bearer = format!("Authorization: Bearer {}\r\n", gateway.user());
    for (version, upgrade) in [("1.1", "h2c"), ("1.1", "other"), ("1.0", "websocket")] {
        let request = format!(
            "GET /socket HTTP/{version}\r\nHost: gate\r\n{bearer}Connection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n"
        );
        assert_failed(
            &gateway.send(&request).await,
            &format!("HTTP/{version} {upgrade}"),
        );
    }
}

#[tokio::test]
async fn hop_by_hop_and_identity_fields_are_not_forwarded() {
    let answer = "HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nConnection: x-other , Content-Length\r\nX-Hop: 1\r\n\
                  X-Other: 2\r\nX-Kept: 3\r\nX-Postern-Code: rate_limited\r\nX-Postern-Subject: eve\r\nContent-Length: 2\r\n\r\nok";
    let gateway = TestGateway::start(OriginBehavior::Text(answer)).await;
    let got = gateway.get("/open", "").await;
    assert_eq!(
        (got.status, got.body.as_str(), got.header("x-kept")),
        (200, "ok", Some("3"))
    );
    for name in ["x-hop", "x-other", "x-postern-code", "x-postern-subject"] {
        assert_eq!(got.header(name), None, "{name}");
    }
    let front = TlsGateway::start(OriginBehavior::Text(answer), "", "").await;
    let got = get(&mut front.client().await, "/open", &[]).await;
    let names: Vec<&str> = got.headers.keys().map(http::HeaderName::as_str).collect();
    assert!(
        !names
            .iter()
            .any(|name| ["x-hop", "x-other", "connection"].contains(name)),
        "{names:?}"
    );
    assert!(
        !names.iter().any(|name| name.starts_with("x-postern")),
        "{names:?}"
    );
    let upgraded = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade, X-Hop\r\nX-Hop: 1\r\n\r\n";
    let gateway = TestGateway::start(OriginBehavior::Text(upgraded)).await;
    let fields = format!(
        "Authorization: Bearer {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
        gateway.user()
    );
    let got = gateway.get("/socket", &fields).await;
    assert_eq!((got.status, got.header("x-hop")), (101, None));
    assert_eq!(
        (got.header("connection"), got.header("upgrade")),
        (Some("Upgrade"), Some("websocket"))
    );
}

#[tokio::test]
async fn empty_chunk_size_does_not_end_a_response() {
    for rest in ["\r\n\r\n", "\r\n2\r\nok\r\n0\r\n\r\n", ";x\r\n\r\n"] {
        let answer =
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n{rest}");
        let answer: &'static str = answer.leak();
        let origin = TestOrigin::start(OriginBehavior::Text(answer)).await;
        let upstream = format!("addresses = [\"{}\"]\n{NO_EJECTION}", origin.address);
        let gateway = TestGateway::before(origin, &upstream, "", ROUTES).await;
        for request in requests() {
            let mut client = gateway.connect().await;
            client.write(&request).await;
            let got = client.rest().await;
            // A truncated response lacks its last chunk; for HTTP/1.0 the connection is reset.
            let is_part = |got: &str| request.contains("HTTP/1.1") && !got.ends_with("0\r\n\r\n");
            let is_refused = got
                .as_deref()
                .is_none_or(|got| got.contains("upstream_failed") || is_part(got));
            assert!(is_refused, "{rest:?} to {:?}: {got:?}", &request[..20]);
        }
        let origin = TestOrigin::start(OriginBehavior::Text(answer)).await;
        let upstream = format!("addresses = [\"{}\"]\n{NO_EJECTION}", origin.address);
        let front = TlsGateway::before(origin, &upstream, "").await;
        let (got, _) = send(&mut front.client().await, head("GET", "/open", &[]), true);
        assert!(
            !reply(got).await.is_ok_and(|got| got.status == 200),
            "{rest:?} to HTTP/2"
        );
        let (gateway, _folder) = before_tls(OriginBehavior::Text(answer)).await;
        let mut client = gateway.connect().await;
        client.write(&requests()[0]).await;
        assert!(
            client
                .rest()
                .await
                .is_none_or(|got| !got.ends_with("0\r\n\r\n")),
            "{rest:?} over TLS"
        );
    }
}

#[tokio::test]
async fn idle_tls_connection_is_reused_and_retried() {
    let (gateway, _folder) = before_tls(OriginBehavior::AnswerOnce).await;
    for reached in [1, 3] {
        assert_eq!(gateway.get("/open", "").await.status, 200);
        assert_eq!(
            gateway.origin.seen().len(),
            reached,
            "the second request finds a closed connection"
        );
    }
    let (gateway, _folder) = before_tls(OriginBehavior::AnswerOnce).await;
    let post = "POST /open HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok";
    assert_eq!(gateway.send(post).await.status, 200);
    assert_eq!(gateway.send(post).await.status, 502, "not sent twice");
    assert_eq!(gateway.origin.seen().len(), 2);
}

#[tokio::test]
async fn malformed_response_fails_the_upstream_over_http2() {
    for answer in [
        "this is not HTTP at all\r\n\r\n",
        "HTTP/1.1 abc\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    ] {
        let origin = TestOrigin::start(OriginBehavior::Text(answer)).await;
        let upstream = format!("addresses = [\"{}\"]\n{NO_EJECTION}", origin.address);
        let front = TlsGateway::before(origin, &upstream, "").await;
        let got = get(&mut front.client().await, "/open", &[]).await;
        assert_eq!(
            (got.status, got.code().as_str()),
            (502, "upstream_failed"),
            "{answer:?}"
        );
        let events = front.gateway.finish().await;
        assert_eq!(
            (&events[0]["status"], &events[0]["code"]),
            (&502.into(), &"upstream_failed".into())
        );
    }
}
