//! Responses to the challenges of pending orders.

use std::sync::Arc;

use aws_lc_rs::digest;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use crate::certificates::acme::store::{AcmeStore, StoreFile};

/// The ALPN protocol of TLS-ALPN-01 challenges (RFC 8737 section 6.2).
pub(super) const ALPN_PROTOCOL: &[u8] = b"acme-tls/1";

/// The challenges that can be answered: those of this gateway and of all that share its store.
#[derive(Debug)]
pub(crate) struct PendingChallenges {
    store: Arc<AcmeStore>,
    /// The names for which certificates are obtained.
    domains: Vec<String>,
}

impl PendingChallenges {
    pub(crate) fn new(store: Arc<AcmeStore>, domains: Vec<String>) -> Self {
        Self { store, domains }
    }

    /// Returns the TLS configuration that answers a TLS-ALPN-01 challenge; `None` if the handshake
    /// is none, or no challenge is pending for the name.
    pub(crate) async fn tls_config<'a>(
        &self,
        server_name: Option<&str>,
        protocols: impl IntoIterator<Item = &'a [u8]>,
    ) -> Option<Arc<ServerConfig>> {
        let is_validation = protocols.into_iter().any(|it| it == ALPN_PROTOCOL);
        let domain = self
            .domains
            .iter()
            .find(|domain| Some(domain.as_str()) == server_name)?;
        if !is_validation {
            return None;
        }
        let (store, domain) = (Arc::clone(&self.store), domain.clone());
        let answering = move || {
            let authorization = store.read(StoreFile::Challenge(&domain)).ok().flatten()?;
            validation_config(&domain, &authorization)
        };
        tokio::task::spawn_blocking(answering).await.ok().flatten()
    }
}

/// Builds the configuration with the self-signed certificate of RFC 8737 section 3.
fn validation_config(domain: &str, authorization: &[u8]) -> Option<Arc<ServerConfig>> {
    let digest = digest::digest(&digest::SHA256, authorization);
    let mut params = CertificateParams::new(vec![domain.to_owned()]).ok()?;
    params.distinguished_name = DistinguishedName::new();
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
    let key = KeyPair::generate().ok()?;
    let certificate = params.self_signed(&key).ok()?.der().clone();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(default_provider());
    let key = provider.key_provider.load_private_key(key).ok()?;
    // `CertifiedKey::from_der` would reject the critical extension, which it does not know.
    let certified = CertifiedKey::new(vec![certificate], key);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .ok()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![ALPN_PROTOCOL.to_vec()];
    Some(Arc::new(config))
}
