//! Client certificates: their verification, and the services that they identify.

use std::sync::Arc;

use parking_lot::Mutex;
use postern_core::clock::Timestamp;
use postern_core::exit::Exit;
use postern_core::token::{Caller, Service};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use crate::certificates::files::{authorities, revocation_lists, unreadable};
use crate::certificates::leaf;
use crate::certificates::server_tls::TlsClientAuthentication;
use crate::config::{CertificateName, ClientAuthConfig};

const CLIENT_CERTIFICATE_ISSUER: &str = "urn:postern:client-certificate";

/// The client of a connection whose server name has client authentication.
#[derive(Debug)]
pub(crate) struct TlsClient {
    pub(super) policy: Arc<ClientAuthConfig>,
    authentication: Mutex<TlsClientAuthentication>,
    chain: Vec<CertificateDer<'static>>,
    caller: Option<Caller>,
    /// The end of the certificate's validity, in Unix seconds.
    not_after: i64,
}

impl TlsClient {
    /// Identifies the client by its verified certificate chain; `None` if it sent none.
    pub(crate) fn identify(
        authentication: TlsClientAuthentication,
        chain: Option<&[CertificateDer<'static>]>,
    ) -> Self {
        let policy = Arc::clone(&authentication.policy);
        let certificate = chain.and_then(<[_]>::first);
        let certificate = certificate.and_then(|der| leaf::parse(der).ok());
        let not_after = certificate.as_ref().map_or(0, |certificate| {
            certificate.validity().not_after.timestamp()
        });
        let principal = certificate.and_then(|certificate| {
            let mut principals = policy.principals.iter();
            principals.find(|principal| has_name(&certificate, &principal.name))
        });
        let caller = principal.map(|principal| {
            Caller::Service(Arc::new(Service {
                issuer: CLIENT_CERTIFICATE_ISSUER.into(),
                subject: principal.name.as_str().into(),
                service_id: principal.service.as_str().into(),
                scopes: principal.scopes.as_slice().into(),
                expires_at: not_after,
            }))
        });
        Self {
            policy,
            authentication: Mutex::new(authentication),
            chain: chain.unwrap_or_default().to_vec(),
            caller,
            not_after,
        }
    }

    /// Returns the service that the certificate identifies, until the certificate expires or is
    /// revoked.
    pub(crate) fn caller(&self, now: Timestamp) -> Option<&Caller> {
        self.caller
            .as_ref()
            .filter(|_| now.unix_seconds() < self.not_after && self.is_accepted(now))
    }

    /// Returns whether the client has still passed its authentication: its certificate was not
    /// revoked, nor its authority removed, after the handshake.
    pub(crate) fn is_accepted(&self, now: Timestamp) -> bool {
        self.authentication.lock().accepts(&self.chain, now)
    }
}

/// Returns whether the certificate has the name. Text with a NUL or any other character that the
/// configuration does not permit is equal to no configured name.
fn has_name(certificate: &X509Certificate<'_>, name: &CertificateName) -> bool {
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return false;
    };
    let is_wanted = |found: &GeneralName<'_>| match (found, name) {
        (GeneralName::URI(found), CertificateName::Uri(wanted)) => found == wanted,
        (GeneralName::DNSName(found), CertificateName::Dns(wanted)) => {
            found.eq_ignore_ascii_case(wanted)
        }
        _ => false,
    };
    names.value.general_names.iter().any(is_wanted)
}

/// Builds the verifier of client certificates. With revocation lists, the status of every
/// certificate of the chain must be known, and a list must not have expired.
///
/// # Errors
/// Status 64 with the file that is invalid.
pub(super) fn verifier(
    config: &ClientAuthConfig,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Exit> {
    let roots = Arc::new(authorities(&config.ca)?);
    let mut builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
    if let Some(path) = &config.crl {
        builder = builder
            .with_crls(revocation_lists(path)?)
            .enforce_revocation_expiration();
    }
    if !config.required {
        builder = builder.allow_unauthenticated();
    }
    let file = config.crl.as_ref().unwrap_or(&config.ca);
    builder.build().map_err(|error| unreadable(file, &error))
}
