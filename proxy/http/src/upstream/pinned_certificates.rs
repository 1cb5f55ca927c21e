//! The certificates that an upstream may present.

use std::sync::Arc;

use aws_lc_rs::digest::{Digest, SHA256, digest};
use pingora_core::connectors::ConnectorOptions;
use pingora_core::protocols::tls::SslDigest;
use pingora_core::{Error, ErrorType};

/// An empty file of certificate authorities, for upstreams that do not use the system's: Pingora
/// reads those unless another file is configured.
pub const NO_ROOTS: &str = "/dev/null";

/// The digests of the certificates that an upstream may present; empty for any that verifies.
#[derive(Clone, Debug, Default)]
pub struct PinnedCertificates(Arc<[Digest]>);

/// Returns the options of a connector that pools this number of connections, and verifies
/// certificates with the system's authorities if `uses_system_roots`.
pub fn connector_options(idle: usize, uses_system_roots: bool) -> ConnectorOptions {
    let mut options = ConnectorOptions::new(idle);
    options.ca_file = (!uses_system_roots).then(|| NO_ROOTS.to_owned());
    options
}

impl PinnedCertificates {
    /// Creates the digests of certificates in DER.
    pub fn new(certificates: impl Iterator<Item: AsRef<[u8]>>) -> Self {
        let digests = certificates.map(|certificate| digest(&SHA256, certificate.as_ref()));
        Self(digests.collect())
    }

    /// Returns whether any certificate that verifies may be presented.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks the certificate of a connection.
    ///
    /// # Errors
    /// It is not one of the pinned ones.
    pub fn check(&self, connection: Option<&SslDigest>) -> pingora_core::Result<()> {
        let presented = connection.map(|it| it.cert_digest.as_slice());
        let is_pinned = |pin: &Digest| Some(pin.as_ref()) == presented;
        match self.0.is_empty() || self.0.iter().any(is_pinned) {
            true => Ok(()),
            false => {
                let detail = "the certificate is not the one of tls.pin";
                Err(Error::explain(ErrorType::TLSHandshakeFailure, detail).into_up())
            }
        }
    }
}
