//! How upstreams are reached and addressed: Unix sockets, `Host`, pinned certificates, and loops.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use tokio::net::UnixListener;

use super::*;

/// Returns the path of a Unix socket whose connections lead to an origin.
pub(super) fn socket_of(origin: &TestOrigin, folder: &Path) -> PathBuf {
    let path = folder.join("origin.sock");
    let listener = UnixListener::bind(&path).expect("binds");
    let address = origin.address;
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut origin = TcpStream::connect(address).await.expect("connects");
                let _end = tokio::io::copy_bidirectional(&mut client, &mut origin).await;
            });
        }
    });
    path
}

/// Waits until the origin has received a request that begins with this text, and returns it.
async fn wait_for_request(gateway: &TestGateway, start: &str) -> String {
    let find = async || {
        let mut seen = gateway.origin.seen().into_iter();
        seen.find(|request| request.starts_with(start))
    };
    wait_for(find).await
}

#[tokio::test]
async fn unix_socket_is_an_upstream() {
    let origin = TestOrigin::start(OriginBehavior::Answer).await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = socket_of(&origin, folder.path());
    let health = "[upstream.origin.health]\npath = \"/livez\"\n";
    let upstream = format!("addresses = [\"unix:{}\"]\n{health}", path.display());
    let gateway = TestGateway::before(origin, &upstream, "", ROUTES).await;
    // The second request finds an idle connection.
    for _ in 0..2 {
        assert_eq!(gateway.status("/open", "").await, 200);
    }
    let check = wait_for_request(&gateway, "GET /livez ").await;
    assert!(has_field(&check, "host: localhost"), "{check}");
    let listed = gateway.admin_get("/upstreams").await;
    assert!(listed.contains("/origin.sock"), "{listed}");
}

#[tokio::test]
async fn missing_unix_socket_is_an_unavailable_upstream() {
    let upstream = "addresses = [\"unix:/nonexistent/a.sock\"]\nretries = 0";
    let gateway = TestGateway::routed(OriginBehavior::Answer, upstream, "", ROUTES).await;
    assert_eq!(gateway.get("/open", "").await.status, 503);
}

#[tokio::test]
async fn host_of_an_upstream_replaces_the_requested_one() {
    let upstream = "host = \"app.example.net:8080\"\n[upstream.origin.health]\npath = \"/livez\"\n";
    let gateway = TestGateway::routed(OriginBehavior::Answer, upstream, "", ROUTES).await;
    assert_eq!(gateway.status("/open", "").await, 200);
    let request = wait_for_request(&gateway, "GET /open ").await;
    assert_eq!(values(&request, "host"), ["app.example.net:8080"]);
    assert_fields(&request, &["x-forwarded-host: gate"]);
    let check = wait_for_request(&gateway, "GET /livez ").await;
    assert!(has_field(&check, "host: app.example.net:8080"), "{check}");
}

#[tokio::test]
async fn request_that_goes_round_in_circles_is_ended() {
    let gateway = TestGateway::start(OriginBehavior::Answer).await;
    for (fields, status) in [
        (String::new(), 200),
        ("CDN-Loop: postern, other\r\n".repeat(9), 200),
        ("CDN-Loop: postern\r\n".repeat(10), 502),
        (format!("CDN-Loop: {}\r\n", ["postern"; 12].join(", ")), 502),
    ] {
        assert_eq!(gateway.status("/open", &fields).await, status, "{fields}");
    }
    let seen = gateway.origin.seen();
    assert!(has_field(&seen[0], "cdn-loop: postern"), "{}", seen[0]);
}

/// A self-signed certificate as `openssl req -x509` makes it: an authority with a common name only.
pub(super) fn self_signed(folder: &Path, name: &str) -> Arc<rustls::ServerConfig> {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("signs");
    std::fs::write(folder.join(format!("{name}.pem")), certificate.pem()).expect("writes");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key);
    Arc::new(config.expect("a configuration"))
}

#[tokio::test]
async fn self_signed_certificate_can_be_pinned() {
    let folder = tempfile::tempdir().expect("a folder");
    let own = self_signed(folder.path(), "own");
    let _other = self_signed(folder.path(), "other");
    for (key, file, status) in [
        ("pin", "own.pem", 200),
        ("pin", "other.pem", 502),
        ("ca", "own.pem", 502),
    ] {
        let origin = TestOrigin::with(OriginBehavior::Answer, Some(Arc::clone(&own))).await;
        let upstream = format!(
            "retries = 0\n[upstream.origin.tls]\n{key} = \"{}\"\n",
            folder.path().join(file).display()
        );
        let gateway = TestGateway::before(origin, &upstream, "", ROUTES).await;
        let answer = gateway.get("/open", "").await;
        assert_eq!(answer.status, status, "{key} {file}");
        assert_eq!(gateway.origin.seen().is_empty(), status != 200);
    }
}

#[tokio::test]
async fn health_check_compares_the_pinned_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let own = self_signed(folder.path(), "own");
    let _other = self_signed(folder.path(), "other");
    for (file, is_healthy) in [("own.pem", true), ("other.pem", false)] {
        for probe in ["", "path = \"/livez\""] {
            let origin = TestOrigin::with(OriginBehavior::Answer, Some(Arc::clone(&own))).await;
            let upstream = format!(
                "[upstream.origin.tls]\npin = \"{}\"\n\
                 [upstream.origin.health]\n{probe}\ninterval = \"20ms\"\nfailures = 1",
                folder.path().join(file).display()
            );
            let gateway = TestGateway::before(origin, &upstream, "", ROUTES).await;
            let expected = format!("\"healthy\":{is_healthy}");
            let checking = async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                while !gateway.admin_get("/upstreams").await.contains(&expected) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            in_time(checking).await;
        }
    }
}
