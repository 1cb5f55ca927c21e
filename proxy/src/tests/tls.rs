use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::harness::{STEP_TIMEOUT, TestGateway, has_field};
use super::origin::{OriginBehavior, TestOrigin};
use super::tls_gateway::TlsGateway;

/// A certificate authority for one test.
pub(super) struct CertificateAuthority(CertifiedIssuer<'static, KeyPair>);

impl CertificateAuthority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(
            CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"))
                .expect("signs"),
        )
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Returns the private key in PEM.
    pub(super) fn key_pem(&self) -> String {
        self.0.key().serialize_pem()
    }

    /// Returns the issuer, for signing other objects.
    pub(super) fn issuer(&self) -> &CertifiedIssuer<'static, KeyPair> {
        &self.0
    }

    /// Issues a certificate. Returns certificate and key in PEM.
    fn issue(&self, name: &str) -> (String, String) {
        self.issue_with(&[name], |_| {})
    }

    /// Issues a certificate for these names, with other changes. Returns certificate and key in
    /// PEM.
    pub(super) fn issue_with(
        &self,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names.clone()).expect("names");
        // With the subject of its issuer, OpenSSL would take it for self-signed.
        for name in names.into_iter().take(1) {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        change(&mut params);
        let certificate = params.signed_by(&key, &self.0).expect("signs");
        (certificate.pem(), key.serialize_pem())
    }

    pub(super) fn write(&self, folder: &Path) {
        let (certificate, key) = self.issue("localhost");
        std::fs::write(folder.join("server.pem"), certificate).expect("writes");
        std::fs::write(folder.join("server.key"), key).expect("writes");
        std::fs::write(folder.join("ca.pem"), self.pem()).expect("writes");
    }
}

async fn gateway(folder: &Path, extra: &str) -> TestGateway {
    let origin = TestOrigin::start(OriginBehavior::Answer).await;
    let tls = format!(
        "[listen.tls]\ncertificate = \"{0}/server.pem\"\nkey = \"{0}/server.key\"\n{extra}",
        folder.display()
    );
    let upstream = format!("addresses = [\"{}\"]", origin.address);
    TestGateway::behind_tls(origin, &upstream, "", &tls).await
}

fn client(
    gateway: &TestGateway,
    authority: &CertificateAuthority,
    identity: Option<(String, String)>,
) -> reqwest::Client {
    let root = reqwest::Certificate::from_pem(authority.pem().as_bytes()).expect("a certificate");
    let mut builder = reqwest::Client::builder()
        .tls_certs_only([root])
        .no_proxy()
        .timeout(STEP_TIMEOUT)
        .resolve("localhost", gateway.address);
    if let Some((certificate, key)) = identity {
        let both = format!("{certificate}{key}");
        builder =
            builder.identity(reqwest::Identity::from_pem(both.as_bytes()).expect("an identity"));
    }
    builder.build().expect("a client")
}

fn url(gateway: &TestGateway, path: &str) -> String {
    format!("https://localhost:{}{path}", gateway.address.port())
}

#[tokio::test]
async fn http2_requests_follow_the_same_rules() {
    let (folder, authority) = (
        tempfile::tempdir().expect("a folder"),
        CertificateAuthority::new(),
    );
    authority.write(folder.path());
    let gateway = gateway(folder.path(), "").await;
    let client = client(&gateway, &authority, None);
    let answer = client
        .get(url(&gateway, "/any/1"))
        .send()
        .await
        .expect("a response");
    assert_eq!(
        (answer.status().as_u16(), answer.version()),
        (401, reqwest::Version::HTTP_2)
    );
    let ask = client
        .get(url(&gateway, "/any/1?q"))
        .bearer_auth(gateway.user());
    let answer = ask
        .header("X-Postern-Kind", "service")
        .header("x_postern_service", "auth")
        .send()
        .await;
    assert_eq!(answer.expect("a response").status().as_u16(), 200);
    let seen = gateway.origin.only();
    assert!(seen.starts_with("GET /any/1?q HTTP/1.1\r\n"), "{seen}");
    for line in [
        "x-postern-kind: user",
        "x-forwarded-proto: https",
        "x-postern-subject: ada",
    ] {
        assert!(has_field(&seen, line), "{line}: {seen}");
    }
    assert!(!seen.contains("service"), "{seen}");
    let posted = client
        .post(url(&gateway, "/open"))
        .body("x".repeat(3 << 20))
        .send()
        .await
        .expect("a response");
    assert_eq!(posted.status().as_u16(), 413);
    let posted = client
        .post(url(&gateway, "/open"))
        .body("x".repeat(100_000))
        .send()
        .await
        .expect("a response");
    assert_eq!(posted.status().as_u16(), 200);
}

#[tokio::test]
async fn key_exchange_is_post_quantum_with_a_client_that_has_it() {
    let gateway = TlsGateway::listening(OriginBehavior::Answer, "").await;
    let stream = gateway.connect().await;
    let group = stream.get_ref().1.negotiated_key_exchange_group();
    let group = group.map(|group| group.name());
    assert_eq!(group, Some(rustls::NamedGroup::X25519MLKEM768));
}

#[tokio::test]
async fn client_certificate_is_required_if_configured() {
    let (folder, authority) = (
        tempfile::tempdir().expect("a folder"),
        CertificateAuthority::new(),
    );
    authority.write(folder.path());
    let asked = format!("client_ca = \"{}/ca.pem\"\n", folder.path().display());
    let gateway = gateway(folder.path(), &asked).await;
    assert!(
        client(&gateway, &authority, None)
            .get(url(&gateway, "/open"))
            .send()
            .await
            .is_err()
    );
    let stranger = CertificateAuthority::new().issue("me");
    assert!(
        client(&gateway, &authority, Some(stranger))
            .get(url(&gateway, "/open"))
            .send()
            .await
            .is_err()
    );
    let known = client(&gateway, &authority, Some(authority.issue("me")));
    assert_eq!(
        known
            .get(url(&gateway, "/open"))
            .send()
            .await
            .expect("a response")
            .status()
            .as_u16(),
        200
    );
}

#[tokio::test]
async fn new_certificate_is_used_without_restart() {
    let (folder, authority) = (
        tempfile::tempdir().expect("a folder"),
        CertificateAuthority::new(),
    );
    authority.write(folder.path());
    let gateway = gateway(folder.path(), "").await;
    let next = CertificateAuthority::new();
    next.write(folder.path());
    let renewed = async {
        while client(&gateway, &next, None)
            .get(url(&gateway, "/open"))
            .send()
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(STEP_TIMEOUT, renewed)
        .await
        .expect("the new certificate in time");
    assert!(
        client(&gateway, &authority, None)
            .get(url(&gateway, "/open"))
            .send()
            .await
            .is_err()
    );
}

/// Starts an origin that requires a client certificate, `client.pem` in the folder.
pub(super) async fn origin_behind_tls(
    authority: &CertificateAuthority,
    folder: &Path,
    behavior: OriginBehavior,
) -> TestOrigin {
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    let pem = |path: &str| folder.join(path);
    roots
        .add(CertificateDer::from_pem_file(pem("ca.pem")).expect("invalid authority"))
        .expect("added");
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        std::sync::Arc::new(roots),
        std::sync::Arc::clone(&provider),
    );
    let (certificate, key) = authority.issue("me");
    std::fs::write(pem("client.pem"), certificate).expect("writes");
    std::fs::write(pem("client.key"), key).expect("writes");
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier.build().expect("a verifier"))
        .with_single_cert(
            vec![CertificateDer::from_pem_file(pem("server.pem")).expect("a certificate")],
            PrivateKeyDer::from_pem_file(pem("server.key")).expect("a key"),
        )
        .expect("a configuration");
    TestOrigin::with(behavior, Some(std::sync::Arc::new(config))).await
}

#[tokio::test]
async fn upstream_requires_mutual_tls() {
    let (folder, authority) = (
        tempfile::tempdir().expect("a folder"),
        CertificateAuthority::new(),
    );
    authority.write(folder.path());
    let tls = |name: &str, ca: &str| {
        format!(
            "[upstream.origin.tls]\nname = \"{name}\"\nca = \"{0}/{ca}\"\ncertificate = \"{0}/client.pem\"\n\
             key = \"{0}/client.key\"",
            folder.path().display()
        )
    };
    std::fs::write(
        folder.path().join("other.pem"),
        CertificateAuthority::new().pem(),
    )
    .expect("writes");
    for (name, ca, status) in [
        ("localhost", "ca.pem", 200),
        ("elsewhere", "ca.pem", 502),
        ("localhost", "other.pem", 502),
    ] {
        let origin = origin_behind_tls(&authority, folder.path(), OriginBehavior::Answer).await;
        let upstream = format!("addresses = [\"{}\"]\n{}", origin.address, tls(name, ca));
        let gateway = TestGateway::before(origin, &upstream, "", super::harness::ROUTES).await;
        assert_eq!(gateway.get("/open", "").await.status, status, "{name} {ca}");
        assert_eq!(gateway.origin.seen().len(), usize::from(status == 200));
    }
}

#[tokio::test]
async fn new_upstream_authority_is_used_without_restart() {
    let (folder, authority) = (
        tempfile::tempdir().expect("a folder"),
        CertificateAuthority::new(),
    );
    authority.write(folder.path());
    let origin = origin_behind_tls(&authority, folder.path(), OriginBehavior::Answer).await;
    let ours = folder.path().join("upstream.pem");
    std::fs::write(&ours, CertificateAuthority::new().pem()).expect("writes");
    let upstream = format!(
        "addresses = [\"{}\"]\n[upstream.origin.outlier]\nfailures = 0\n[upstream.origin.tls]\nname = \"localhost\"\n\
         ca = \"{}\"\ncertificate = \"{2}/client.pem\"\nkey = \"{2}/client.key\"",
        origin.address,
        ours.display(),
        folder.path().display()
    );
    let gateway = TestGateway::before(origin, &upstream, "", super::harness::ROUTES).await;
    assert_eq!(gateway.get("/open", "").await.status, 502);
    std::fs::write(&ours, authority.pem()).expect("writes");
    gateway
        .wait_for_config_status(|status| status["version"] == 2)
        .await;
    assert_eq!(gateway.get("/open", "").await.status, 200);
}

#[tokio::test]
async fn written_data_is_flushed_while_the_upstream_is_silent() {
    let front = TlsGateway::start(OriginBehavior::LargeEvent, "", "").await;
    let mut client = front.connect_narrow("http/1.1").await;
    client
        .write_all(b"GET /open HTTP/1.1\r\nHost: gate\r\n\r\n")
        .await
        .expect("writes");
    client.flush().await.expect("writes");
    // By then the gateway has received everything, and most of it is queued in the TLS layer,
    // because the client's receive buffer is small.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut got = Vec::new();
    let reading = async {
        while got.iter().filter(|byte| **byte == b'x').count() < 64 << 10 {
            assert_ne!(
                client.read_buf(&mut got).await.expect("not truncated"),
                0,
                "not complete"
            );
        }
    };
    tokio::time::timeout(STEP_TIMEOUT, reading)
        .await
        .expect("the rest");
}
