//! Responses to the challenges of pending orders.

use std::sync::Arc;

use aws_lc_rs::digest;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use crate::certificates::acme::store::{AcmeStore, StoreFile};
use crate::config::AcmeChallenge;

/// The path prefix of HTTP-01 challenges (RFC 8555 section 8.3).
pub(crate) const HTTP_CHALLENGE_PREFIX: &str = "/.well-known/acme-challenge/";

/// The ALPN protocol of TLS-ALPN-01 challenges (RFC 8737 section 6.2).
pub(super) const ALPN_PROTOCOL: &[u8] = b"acme-tls/1";

/// Length of a token in characters: at least 128 bits in base64url (RFC 8555 section 8).
const TOKEN_LENGTH: std::ops::RangeInclusive<usize> = 22..=128;

/// The challenges that can be answered: those of this gateway and of all that share its store.
#[derive(Debug)]
pub(crate) struct PendingChallenges {
    store: Arc<AcmeStore>,
    challenge: AcmeChallenge,
    /// The names for which certificates are obtained.
    domains: Vec<String>,
}

impl PendingChallenges {
    pub(crate) fn new(
        store: Arc<AcmeStore>,
        challenge: AcmeChallenge,
        domains: Vec<String>,
    ) -> Self {
        Self {
            store,
            challenge,
            domains,
        }
    }

    /// Returns whether requests below [`HTTP_CHALLENGE_PREFIX`] are answered by the gateway.
    pub(crate) fn answers_http(&self) -> bool {
        self.challenge == AcmeChallenge::Http01
    }

    /// Returns the key authorization of a token; `None` if it is not pending.
    pub(crate) async fn key_authorization(&self, token: &str) -> Option<Vec<u8>> {
        if !is_token(token) {
            return None;
        }
        let (store, token) = (Arc::clone(&self.store), token.to_owned());
        let reading = move || store.read(StoreFile::HttpChallenge(&token)).ok().flatten();
        tokio::task::spawn_blocking(reading).await.ok().flatten()
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
        if !is_validation || self.challenge != AcmeChallenge::TlsAlpn01 {
            return None;
        }
        let (store, domain) = (Arc::clone(&self.store), domain.clone());
        let answering = move || {
            let authorization = store
                .read(StoreFile::AlpnChallenge(&domain))
                .ok()
                .flatten()?;
            validation_config(&domain, &authorization)
        };
        tokio::task::spawn_blocking(answering).await.ok().flatten()
    }
}

/// Returns whether a token is base64url of a plausible length, and so a safe file name. The token
/// is text of the ACME server, or of any client.
pub(super) fn is_token(token: &str) -> bool {
    TOKEN_LENGTH.contains(&token.len())
        && token
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
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
