//! Certificates in a folder, and the independent clients `openssl s_client` and `curl`.

use std::process::{Output, Stdio};

use rcgen::CertificateParams;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier};
use tokio::process::Command;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

/// A folder with `ca.pem` and the certificates of one authority.
pub(super) struct CertificateFolder {
    pub(super) authority: CertificateAuthority,
    folder: tempfile::TempDir,
}

impl CertificateFolder {
    pub(super) fn new() -> Self {
        let authority = CertificateAuthority::new();
        let folder = tempfile::tempdir().expect("a folder");
        let files = Self { authority, folder };
        files.write("ca.pem", files.authority.pem());
        files
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), contents).expect("writes");
    }

    /// Issues `NAME.pem` and `NAME.key` for these names.
    pub(super) fn issue(&self, name: &str, names: &[&str]) {
        self.issue_with(name, names, |_| {});
    }

    pub(super) fn issue_with(
        &self,
        name: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) {
        let (certificate, key) = self.authority.issue_with(names, change);
        self.write(&format!("{name}.pem"), certificate + &self.authority.pem());
        self.write(&format!("{name}.key"), key);
    }

    /// Returns the lines `certificate` and `key` of a table.
    pub(super) fn keys(&self, name: &str) -> String {
        let folder = self.folder().display();
        format!("certificate = \"{folder}/{name}.pem\"\nkey = \"{folder}/{name}.key\"\n")
    }

    /// Starts a gateway with these lines in `[listen.tls]`. `$` is replaced by the folder.
    pub(super) async fn gateway(&self, tls: &str) -> TestGateway {
        let folder = self.folder().display().to_string();
        let tls = format!("[listen.tls]\n{}", tls.replace('$', &folder));
        TestGateway::behind_tls(OriginBehavior::Answer, "", "", &tls).await
    }

    fn certificates(&self, name: &str) -> Vec<CertificateDer<'static>> {
        let all = CertificateDer::pem_file_iter(self.path(&format!("{name}.pem"))).expect("reads");
        all.map(|one| one.expect("a certificate")).collect()
    }

    fn key(&self, name: &str) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).expect("a key")
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.certificates("ca"));
        roots
    }

    /// Returns the TLS configuration of a server with a certificate of this folder, which may require
    /// one of its clients.
    pub(super) fn server(&self, name: &str, requires_client: bool) -> Arc<ServerConfig> {
        let builder = match requires_client {
            false => server_builder().with_no_client_auth(),
            true => {
                let (roots, provider) = (Arc::new(self.roots()), Arc::new(default_provider()));
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = verifier.build().expect("a verifier");
                server_builder().with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(self.certificates(name), self.key(name));
        Arc::new(config.expect("a configuration"))
    }

    /// Completes the handshake of a client, which may have a certificate of this folder.
    pub(super) async fn handshake(
        &self,
        stream: TcpStream,
        server_name: &'static str,
        protocol: &str,
        client: Option<&str>,
    ) -> TlsStream<TcpStream> {
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder
            .expect("versions")
            .with_root_certificates(self.roots());
        let mut config = match client {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let config = builder.with_client_auth_cert(self.certificates(name), self.key(name));
                config.expect("a configuration")
            }
        };
        config.alpn_protocols = vec![protocol.into()];
        let name = ServerName::try_from(server_name).expect("a name");
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(name, stream).await.expect("a handshake")
    }

    /// Returns the first name of the certificate files whose leaf the server presents.
    pub(super) async fn presented(
        &self,
        port: u16,
        arguments: &[&str],
        names: &[&'static str],
    ) -> Option<&'static str> {
        let output = s_client(port, arguments, "").await;
        let leaf = first_certificate(&output)?;
        let is_presented = |name: &&&str| {
            let file = std::fs::read_to_string(self.path(&format!("{name}.pem")));
            first_certificate(&file.expect("reads")) == Some(leaf.clone())
        };
        names.iter().find(is_presented).copied()
    }

    /// Requests a URL of the gateway by curl, with the authority of this folder. Returns the status
    /// and the protocol version, such as `200 2`; 000 if there was no response.
    pub(super) async fn curl(&self, port: u16, host: &str, path: &str, options: &[&str]) -> String {
        let (ca, resolve) = (self.path("ca.pem"), format!("{host}:{port}:127.0.0.1"));
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--output", "-", "--cacert"]).arg(ca);
        curl.args(["--noproxy", "*", "--resolve", &resolve]);
        curl.args(["--write-out", "\n%{http_code} %{http_version}"]);
        curl.args(options)
            .arg(format!("https://{host}:{port}{path}"));
        let output = run(&mut curl, "").await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().last().unwrap_or_default().to_owned()
    }
}

pub(super) fn server_builder() -> ConfigBuilder<ServerConfig, WantsVerifier> {
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    builder.expect("versions")
}

/// Returns a free port for another program. It is outside of the ephemeral range, in which a
/// connection of another test could take it before the program starts.
pub(super) async fn free_port() -> u16 {
    loop {
        let offset = postern_core::backoff::random_fraction() * 12_000.0;
        let port = 20_000 + offset as u16;
        if TcpListener::bind(("127.0.0.1", port)).await.is_ok() {
            return port;
        }
    }
}

/// Runs `openssl s_client` with `input`. Returns what it prints.
pub(super) async fn s_client(port: u16, arguments: &[&str], input: &str) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &format!("127.0.0.1:{port}")]);
    command.args(arguments);
    let output = run(&mut command, input).await;
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

pub(super) async fn run(command: &mut Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let child = command.stderr(Stdio::piped()).kill_on_drop(true).spawn();
    let mut child = child.expect("a program that tests/run installs");
    let mut stdin = child.stdin.take().expect("piped");
    // The program may have ended already.
    let _gone = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let waiting = tokio::time::timeout(STEP_TIMEOUT, child.wait_with_output());
    waiting.await.expect("ends in time").expect("ends")
}

pub(super) fn first_certificate(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("-----BEGIN CERTIFICATE-----")?;
    let (body, _) = rest.split_once("-----END CERTIFICATE-----")?;
    Some(body.split_whitespace().collect())
}
