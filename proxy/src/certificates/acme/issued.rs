//! Certificates that an ACME server has issued.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::certificates::leaf::Leaf;
use crate::certificates::slot::LoadedCertificate;

/// Maximum difference between the clocks of gateway and server, in seconds.
const MAX_CLOCK_SKEW_S: i64 = 300;

/// Parses a private key with its certificate chain, and checks that the key is that of the
/// certificate and the name is one of its names.
///
/// # Errors
/// What is wrong.
pub(super) fn parse(domain: &str, pem: &[u8]) -> Result<LoadedCertificate, String> {
    let chain = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| format!("not a certificate: {error}"))?;
    let leaf = Leaf::read(chain.first().ok_or("no certificate")?)?;
    if !leaf.covers(domain) {
        return Err(format!("the certificate is not for {domain}"));
    }
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|_| "no private key")?;
    let certified = CertifiedKey::from_der(chain, key, &default_provider())
        .map_err(|error| format!("certificate and key: {error}"))?;
    Ok(LoadedCertificate {
        certified: Arc::new(certified),
        leaf,
    })
}

/// Checks that a new certificate is valid now, a time in Unix seconds.
///
/// # Errors
/// What is wrong.
pub(super) fn check_validity(leaf: &Leaf, now: i64) -> Result<(), String> {
    if leaf.not_before > now + MAX_CLOCK_SKEW_S {
        return Err("the certificate is not valid yet".to_owned());
    }
    match leaf.not_after <= now {
        true => Err("the certificate has expired".to_owned()),
        false => Ok(()),
    }
}
