//! Answers to WebSocket requests before the upgrade, and upstreams that do not speak HTTP/2
//! although they should.

use super::harness::{ROUTES, TestGateway};
use super::origin::{OriginBehavior, TestOrigin};
use super::tls::{CertificateAuthority, origin_behind_tls};
use super::tls_gateway::{TlsGateway, get};

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n";

/// Several failures in a row are meant, and no address is ejected for them.
const NO_EJECTION: &str = "[upstream.origin.outlier]\nfailures = 0\n";

/// Lines of an upstream behind TLS.
fn tls_lines(folder: &tempfile::TempDir) -> String {
    format!(
        "{NO_EJECTION}[upstream.origin.tls]\nname = \"localhost\"\nca = \"{0}/ca.pem\"\n\
         certificate = \"{0}/client.pem\"\nkey = \"{0}/client.key\"",
        folder.path().display()
    )
}

/// Gateways before an origin that answers so, without TLS and with it.
async fn gateways(answer: &'static str) -> ([TestGateway; 2], tempfile::TempDir) {
    let plain = TestGateway::with(OriginBehavior::Text(answer), "", NO_EJECTION).await;
    let (folder, authority) = (
        tempfile::tempdir().expect("a folder"),
        CertificateAuthority::new(),
    );
    authority.write(folder.path());
    let origin = origin_behind_tls(&authority, folder.path(), OriginBehavior::Text(answer)).await;
    let upstream = format!(
        "addresses = [\"{}\"]\n{}",
        origin.address,
        tls_lines(&folder)
    );
    let encrypted = TestGateway::before(origin, &upstream, "", ROUTES).await;
    ([plain, encrypted], folder)
}

fn upgrade_of(gateway: &TestGateway) -> String {
    format!(
        "GET /socket HTTP/1.1\r\nHost: gate\r\nAuthorization: Bearer {}\r\n{UPGRADE}\r\n",
        gateway.user()
    )
}

#[tokio::test]
async fn malformed_answer_to_an_upgrade_is_refused() {
    for answer in [
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 2, 2\r\n\r\nok",
        "HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: xchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\nraw bytes",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\nraw bytes",
    ] {
        let (gateways, _folder) = gateways(answer).await;
        for gateway in gateways {
            let refused = gateway.send(&upgrade_of(&gateway)).await;
            assert_eq!(refused.status, 502, "{answer:?} {refused:?}");
            assert_eq!(
                (refused.status, refused.code().as_str()),
                (502, "upstream_failed"),
                "{answer:?}"
            );
        }
    }
}

#[tokio::test]
async fn cut_chunks_do_not_end_an_answer_to_an_upgrade() {
    for rest in ["\r\n\r\n", "\r\n2\r\nok\r\n0\r\n\r\n", ";x\r\n\r\n"] {
        let answer = format!(
            "HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n{rest}"
        );
        let (gateways, _folder) = gateways(answer.leak()).await;
        for gateway in gateways {
            let mut client = gateway.connect().await;
            client.write(&upgrade_of(&gateway)).await;
            let got = client.rest().await;
            let is_whole = got.as_deref().is_some_and(|got| got.ends_with("0\r\n\r\n"));
            assert!(!is_whole, "{rest:?}: {got:?}");
        }
    }
}

#[tokio::test]
async fn refusal_of_an_upgrade_is_forwarded() {
    for answer in [
        "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno",
    ] {
        let (gateways, _folder) = gateways(answer).await;
        for gateway in gateways {
            let mut client = gateway.connect().await;
            client.write(&upgrade_of(&gateway)).await;
            let mut got = client.response().await.expect("an answer");
            if got.status == 103 {
                got = client.response().await.expect("an answer");
            }
            assert_eq!((got.status, got.body.as_str()), (403, "no"), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn upstream_that_falls_back_to_http1_is_refused() {
    let (folder, authority) = (
        tempfile::tempdir().expect("a folder"),
        CertificateAuthority::new(),
    );
    authority.write(folder.path());
    let upstream = |origin: &TestOrigin| {
        format!(
            "addresses = [\"{}\"]\nhttp2 = true\n{}",
            origin.address,
            tls_lines(&folder)
        )
    };
    let origin = origin_behind_tls(&authority, folder.path(), OriginBehavior::Answer).await;
    let lines = upstream(&origin);
    let gateway = TestGateway::before(origin, &lines, "", ROUTES).await;
    let refused = gateway.get("/open", "").await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (502, "upstream_failed")
    );
    assert_eq!(
        gateway.origin.seen(),
        Vec::<String>::new(),
        "nothing is sent"
    );

    let origin = origin_behind_tls(&authority, folder.path(), OriginBehavior::Answer).await;
    let lines = upstream(&origin);
    let front = TlsGateway::before(origin, &lines, "").await;
    let refused = get(&mut front.client().await, "/open", &[]).await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (502, "upstream_failed")
    );
    assert_eq!(
        front.gateway.origin.seen(),
        Vec::<String>::new(),
        "nothing is sent"
    );
    let events = front.gateway.finish().await;
    assert_eq!(
        (&events[0]["status"], &events[0]["code"]),
        (&502.into(), &"upstream_failed".into())
    );
}
