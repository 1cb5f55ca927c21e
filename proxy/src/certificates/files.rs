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

#[derive(Default)]
pub(super) struct FileCheck(pub(super) Vec<FileMistake>);

impl FileCheck {
    /// Records what is wrong with the file that a key names.
    pub(super) fn note<T>(&mut self, key: &str, read: Result<T, Exit>) {
        if let Err(exit) = read {
            self.0.push((key.to_owned(), exit.message().to_owned()));
        }
    }
}

pub(crate) fn check_upstream_files(source: &UpstreamTlsConfig) -> Vec<FileMistake> {
    let mut check = FileCheck::default();
    for (key, file) in [(".ca", &source.ca), (".pin", &source.pin)] {
        check.note(key, file.as_deref().map(authorities).transpose());
    }
    let (Some(chain), Some(key)) = (&source.certificate, &source.key) else {
        return check.0;
    };
    match (certificates(chain), private_key(key)) {
        (Ok(chain), Ok(key)) => {
            let provider = rustls::crypto::aws_lc_rs::default_provider();
            let pair = key_pair(chain, key, &provider);
            check.note(
                "",
                pair.map_err(|error| Exit::usage(format!("key: {error}"))),
            );
        }
        (chain, key) => {
            check.note(".certificate", chain);
            check.note(".key", key);
        }
    }
    check.0
}

/// Returns what is wrong with the certificate authorities of an ACME server.
pub(crate) fn acme_file_fault(config: &AcmeConfig) -> Option<String> {
    let wrong = config.ca.as_deref().and_then(|ca| authorities(ca).err());
    wrong.map(|exit| exit.message().to_owned())
}

fn read_pem(path: &Path) -> Result<Vec<u8>, Exit> {
    read_regular(path, MAX_FILE_BYTES).map_err(|error| unreadable(path, &error))
}

/// Reads the objects of a PEM file, at least one.
fn objects<T: PemObject>(path: &Path, kind: &str) -> Result<Vec<T>, Exit> {
    let pem = read_pem(path)?;
    let all: Result<Vec<T>, _> = T::pem_slice_iter(&pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(Exit::usage(format!("{}: holds no {kind}", path.display()))),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// Reads the certificates of a PEM file, at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Exit> {
    objects(path, "certificate")
}

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
    objects(path, "certificate revocation list")
}

pub(super) fn modified_at(path: &Path) -> Option<SystemTime> {
    let modified = std::fs::metadata(path).and_then(|file| file.modified());
    modified.ok()
}

pub(super) fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Exit {
    Exit::usage(format!("{}: cannot read: {error}", path.display()))
}
