//! Certificates and keys for TLS to upstreams.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use pingora::tls::{RootCertStore, load_platform_certs_incl_env_into_store};
use pingora::utils::tls::{CertKey, WrappedX509, parse_x509};
use postern_core::exit::Exit;
use postern_http::upstream::PinnedCertificates;

use crate::certificates::{certificates, private_key};
use crate::config::UpstreamTlsConfig;

/// The certificates and keys for TLS to an upstream.
#[derive(Clone)]
pub(super) struct TlsMaterial {
    pub(super) ca: Option<Arc<[WrappedX509]>>,
    pub(super) certificate: Option<Arc<CertKey>>,
    pub(super) pins: PinnedCertificates,
    modified: Vec<Option<SystemTime>>,
}

impl TlsMaterial {
    /// Reads the files that the configuration names.
    ///
    /// # Errors
    /// Status 64 with the file that cannot be read; 69 if the system's certificate authorities are
    /// required and there are none.
    pub(super) fn load(config: &UpstreamTlsConfig) -> Result<Self, Exit> {
        let modified = modified(config);
        if config.uses_system_roots() {
            check_system_roots()?;
        }
        let trusted = config.ca.as_deref().or(config.pin.as_deref());
        let trusted = trusted.map(certificates).transpose()?;
        let pinned = trusted.iter().flatten().filter(|_| config.pin.is_some());
        let pins = PinnedCertificates::new(pinned);
        let ca = trusted.map(|certificates| {
            let wrapped = certificates
                .into_iter()
                .map(|certificate| WrappedX509::new(certificate.to_vec(), parse_x509));
            wrapped.collect()
        });
        let certificate = match (&config.certificate, &config.key) {
            (Some(certificate), Some(key)) => {
                let key = private_key(key)?;
                let chain = certificates(certificate)?;
                Some(Arc::new(CertKey::new(
                    chain
                        .iter()
                        .map(|certificate| certificate.to_vec())
                        .collect(),
                    key.secret_der().to_vec(),
                )))
            }
            _ => None,
        };
        Ok(Self {
            ca,
            certificate,
            pins,
            modified,
        })
    }

    /// Returns whether a file was modified since it was read.
    pub(super) fn has_changed(&self, config: &UpstreamTlsConfig) -> bool {
        self.modified != modified(config)
    }
}

/// Checks that the system has certificate authorities. Pingora panics if it cannot read them.
fn check_system_roots() -> Result<(), Exit> {
    let mut roots = RootCertStore::empty();
    let problem = match load_platform_certs_incl_env_into_store(&mut roots) {
        Ok(()) if !roots.is_empty() => return Ok(()),
        Ok(()) => "there are none".to_owned(),
        Err(error) => error.root_cause().to_string(),
    };
    Err(Exit::unavailable(format!(
        "cannot load the system's certificate authorities, which an upstream with TLS and without tls.ca needs: {problem}"
    )))
}

fn modified(config: &UpstreamTlsConfig) -> Vec<Option<SystemTime>> {
    let files = [&config.ca, &config.pin, &config.certificate, &config.key];
    let modified = |path: &PathBuf| {
        std::fs::metadata(path)
            .and_then(|file| file.modified())
            .ok()
    };
    files.into_iter().flatten().map(modified).collect()
}

impl std::fmt::Debug for TlsMaterial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsMaterial(..)")
    }
}
