use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::*;

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

    /// Writes a certificate of a new authority to a folder.
    pub(super) fn in_folder() -> (tempfile::TempDir, Self) {
        let (folder, authority) = (tempfile::tempdir().expect("a folder"), Self::new());
        authority.write(folder.path());
        (folder, authority)
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
    let tls = format!(
        "[listen.tls]\ncertificate = \"{0}/server.pem\"\nkey = \"{0}/server.key\"\n{extra}",
        folder.display()
    );
    TestGateway::behind_tls(OriginBehavior::Answer, "", "", &tls).await
}

/// Tells whether a client that trusts this authority gets a response.
async fn is_served(
    gateway: &TestGateway,
    authority: &CertificateAuthority,
    identity: Option<(String, String)>,
) -> bool {
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
    let url = format!("https://localhost:{}/open", gateway.address.port());
    let answer = builder.build().expect("a client").get(url).send().await;
    answer.is_ok_and(|answer| answer.status() == 200)
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
    let (folder, authority) = CertificateAuthority::in_folder();
    let asked = format!("client_ca = \"{}/ca.pem\"\n", folder.path().display());
    let gateway = gateway(folder.path(), &asked).await;
    assert!(!is_served(&gateway, &authority, None).await);
    let stranger = CertificateAuthority::new().issue("me");
    assert!(!is_served(&gateway, &authority, Some(stranger)).await);
    let known = authority.issue("me");
    assert!(is_served(&gateway, &authority, Some(known)).await);
}

#[tokio::test]
async fn new_certificate_is_used_without_restart() {
    let (folder, authority) = CertificateAuthority::in_folder();
    let gateway = gateway(folder.path(), "").await;
    let next = CertificateAuthority::new();
    next.write(folder.path());
    wait_until(async || is_served(&gateway, &next, None).await).await;
    assert!(!is_served(&gateway, &authority, None).await);
}

/// The files of an upstream that requires a client certificate.
pub(super) struct UpstreamTls {
    folder: tempfile::TempDir,
    authority: CertificateAuthority,
}

impl UpstreamTls {
    pub(super) fn new() -> Self {
        let (folder, authority) = CertificateAuthority::in_folder();
        let (certificate, key) = authority.issue("me");
        let write = |name: &str, text: String| {
            std::fs::write(folder.path().join(name), text).expect("writes");
        };
        write("client.pem", certificate);
        write("client.key", key);
        write("other.pem", CertificateAuthority::new().pem());
        Self { folder, authority }
    }

    async fn origin(&self, behavior: OriginBehavior) -> TestOrigin {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        let pem = |path: &str| self.folder.path().join(path);
        roots
            .add(CertificateDer::from_pem_file(pem("ca.pem")).expect("invalid authority"))
            .expect("added");
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
            Arc::new(roots),
            Arc::clone(&provider),
        );
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(verifier.build().expect("a verifier"))
            .with_single_cert(
                vec![CertificateDer::from_pem_file(pem("server.pem")).expect("a certificate")],
                PrivateKeyDer::from_pem_file(pem("server.key")).expect("a key"),
            )
            .expect("a configuration");
        TestOrigin::with(behavior, Some(Arc::new(config))).await
    }

    /// Starts a gateway in front of such an origin, with these lines of the upstream, and this name
    /// and this authority in its table `tls`.
    async fn gateway_for(
        &self,
        behavior: OriginBehavior,
        upstream: &str,
        (name, ca): (&str, &str),
    ) -> TestGateway {
        let upstream = format!(
            "{upstream}\n[upstream.origin.outlier]\nfailures = 0\n[upstream.origin.tls]\nname = \"{name}\"\n\
             ca = \"{0}/{ca}\"\ncertificate = \"{0}/client.pem\"\nkey = \"{0}/client.key\"",
            self.folder.path().display()
        );
        TestGateway::before(self.origin(behavior).await, &upstream, "", ROUTES).await
    }

    pub(super) async fn gateway(&self, behavior: OriginBehavior, upstream: &str) -> TestGateway {
        self.gateway_for(behavior, upstream, ("localhost", "ca.pem"))
            .await
    }
}

#[tokio::test]
async fn upstream_requires_mutual_tls() {
    let tls = UpstreamTls::new();
    for (name, ca, status) in [
        ("localhost", "ca.pem", 200),
        ("elsewhere", "ca.pem", 502),
        ("localhost", "other.pem", 502),
    ] {
        let gateway = tls
            .gateway_for(OriginBehavior::Answer, "", (name, ca))
            .await;
        assert_eq!(gateway.get("/open", "").await.status, status, "{name} {ca}");
        assert_eq!(gateway.origin.seen().len(), usize::from(status == 200));
    }
}

#[tokio::test]
async fn new_upstream_authority_is_used_without_restart() {
    let tls = UpstreamTls::new();
    let names = ("localhost", "other.pem");
    let gateway = tls.gateway_for(OriginBehavior::Answer, "", names).await;
    assert_eq!(gateway.get("/open", "").await.status, 502);
    let file = tls.folder.path().join("other.pem");
    std::fs::write(file, tls.authority.pem()).expect("writes");
    gateway.wait_for_version(2).await;
    assert_eq!(gateway.get("/open", "").await.status, 200);
}

#[tokio::test]
async fn written_data_is_flushed_while_the_upstream_is_silent() {
    let front = TlsGateway::start(OriginBehavior::LargeEvent, "", "").await;
    let mut client = front.connect_narrow("http/1.1").await;
    client.write_all(GET.as_bytes()).await.expect("writes");
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
    in_time(reading).await;
}
