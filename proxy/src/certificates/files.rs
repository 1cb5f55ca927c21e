//! PEM files of certificates, keys and certificate authorities.

use std::path::Path;
use std::time::SystemTime;

use postern_core::exit::Exit;
use postern_core::files::read_regular;
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::config::{AcmeConfig, UpstreamTlsConfig};

/// Maximum bytes of a file: revocation lists of large authorities have some MiB.
pub(super) const MAX_FILE_BYTES: usize = 64 << 20;

/// A mistake in a file: the key of the configuration that names it, with a leading dot, and the
/// reason. The key is empty if files do not match each other.
pub(super) type FileMistake = (String, String);

/// Checks the files of an upstream.
pub(crate) fn check_upstream_files(source: &UpstreamTlsConfig) -> Vec<FileMistake> {
    let certificate = source.certificate.as_deref().map(certificates);
    let key = source.key.as_deref().map(private_key);
    let (ca, pin) = (source.ca.as_deref(), source.pin.as_deref());
    let wrong = [
        (".ca", ca.and_then(|ca| authorities(ca).err())),
        (".pin", pin.and_then(|pin| authorities(pin).err())),
        (".certificate", error_of(certificate.as_ref())),
        (".key", error_of(key.as_ref())),
    ];
    let wrong: Vec<FileMistake> = wrong
        .into_iter()
        .filter_map(|(key, exit)| Some((key.to_owned(), exit?.message().to_owned())))
        .collect();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    match (certificate, key) {
        (Some(Ok(certificate)), Some(Ok(key))) => match key_pair(certificate, key, &provider) {
            Err(error) => vec![(String::new(), format!("key: {error}"))],
            Ok(_) => wrong,
        },
        _ => wrong,
    }
}

/// Returns what is wrong with the certificate authorities of an ACME server.
pub(crate) fn acme_file_fault(config: &AcmeConfig) -> Option<String> {
    let wrong = config.ca.as_deref().and_then(|ca| authorities(ca).err());
    wrong.map(|exit| exit.message().to_owned())
}

fn error_of<T>(result: Option<&Result<T, Exit>>) -> Option<Exit> {
    match result {
        Some(Err(exit)) => Some(Exit::usage(exit.message())),
        Some(Ok(_)) | None => None,
    }
}

fn read_pem(path: &Path) -> Result<Vec<u8>, Exit> {
    read_regular(path, MAX_FILE_BYTES).map_err(|error| unreadable(path, &error))
}

/// Reads the certificates of a PEM file, at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Exit> {
    let pem = read_pem(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(Exit::usage(format!(
            "{}: holds no certificate",
            path.display()
        ))),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// Reads the first private key of a PEM file.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Exit> {
    let pem = read_pem(path)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| unreadable(path, &error))
}

/// Joins a certificate chain and its key.
///
/// # Errors
/// What is wrong with the key.
pub(super) fn key_pair(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, String> {
    CertifiedKey::from_der(chain, key, provider).map_err(|error| {
        if matches!(error, rustls::Error::InconsistentKeys(_)) {
            "is not the key of the certificate".to_owned()
        } else {
            format!("cannot be used: {error}")
        }
    })
}

/// Reads the certificate authorities of a PEM file.
pub(super) fn authorities(path: &Path) -> Result<RootCertStore, Exit> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(path)? {
        roots
            .add(authority)
            .map_err(|error| unreadable(path, &error))?;
    }
    Ok(roots)
}

/// Reads the certificate revocation lists of a PEM file, at least one.
pub(super) fn revocation_lists(
    path: &Path,
) -> Result<Vec<CertificateRevocationListDer<'static>>, Exit> {
    let pem = read_pem(path)?;
    let all: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(Exit::usage(format!(
            "{}: holds no certificate revocation list",
            path.display()
        ))),
        Err(error) => Err(unreadable(path, &error)),
    }
}

pub(super) fn modified_at(path: &Path) -> Option<SystemTime> {
    let modified = std::fs::metadata(path).and_then(|file| file.modified());
    modified.ok()
}

pub(super) fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Exit {
    Exit::usage(format!("{}: cannot read: {error}", path.display()))
}
