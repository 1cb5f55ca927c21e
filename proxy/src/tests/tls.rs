use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};

use super::*;

pub(super) struct CertificateAuthority(CertifiedIssuer<'static, KeyPair>);

impl CertificateAuthority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("signs"))
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(super) fn crl(&self, list: &CertificateRevocationListParams) -> String {
        let signed = list.signed_by(&self.0).expect("signs");
        signed.pem().expect("a list")
    }

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

#[tokio::test]
async fn key_exchange_is_post_quantum_with_a_client_that_has_it() {
    let gateway = TlsGateway::listening(OriginBehavior::Answer, "").await;
    let stream = gateway.connect().await;
    let group = stream.get_ref().1.negotiated_key_exchange_group();
    let group = group.map(|group| group.name());
    assert_eq!(group, Some(rustls::NamedGroup::X25519MLKEM768));
}

#[tokio::test]
async fn new_certificate_is_used_without_restart() {
    let (files, next) = (CertificateFolder::new(), CertificateFolder::new());
    for folder in [&files, &next] {
        folder.issue("server", &["localhost"]);
    }
    let gateway = files.gateway(&files.keys("server")).await;
    for file in ["server.pem", "server.key"] {
        std::fs::copy(next.path(file), files.path(file)).expect("copies");
    }
    let served = async |by: &CertificateFolder| {
        let found = by.curl(gateway.address.port(), "localhost", "/open", &[]);
        found.await == "200 2"
    };
    wait_until(async || served(&next).await).await;
    assert!(!served(&files).await);
}

/// The files of an upstream that requires a client certificate.
pub(super) struct UpstreamTls(CertificateFolder);

impl UpstreamTls {
    pub(super) fn new() -> Self {
        let files = CertificateFolder::new();
        files.issue("server", &["localhost"]);
        files.issue("client", &["me"]);
        files.write("other.pem", CertificateAuthority::new().pem());
        Self(files)
    }

    async fn origin(&self, behavior: OriginBehavior) -> TestOrigin {
        TestOrigin::with(behavior, Some(self.0.server("server", true))).await
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
            self.0.folder().display()
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
        let names = (name, ca);
        let gateway = tls.gateway_for(OriginBehavior::Answer, "", names).await;
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
    tls.0.write("other.pem", tls.0.authority.pem());
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
            let actual = client.read_buf(&mut got).await.expect("not truncated");
            assert_ne!(actual, 0, "not complete");
        }
    };
    in_time(reading).await;
}
