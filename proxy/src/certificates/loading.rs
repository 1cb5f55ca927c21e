//! Loading of the files of a listener.

use std::sync::Arc;
use std::time::SystemTime;

use postern_core::exit::Exit;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::danger::ClientCertVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedProtocolVersion};

use crate::certificates::client_auth;
use crate::certificates::files::{
    FileCheck, FileMistake, authorities, certificates, key_pair, modified_at, private_key,
    revocation_lists, unreadable,
};
use crate::certificates::leaf::Leaf;
use crate::certificates::selector::CertificateSelector;
use crate::certificates::slot::{CertificateSlot, LoadedCertificate};
use crate::config::{CertificateConfig, CertificateSource, ListenerTlsConfig};

static ALL_VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
static TLS13_ONLY: &[&SupportedProtocolVersion] = &[&TLS13];

/// The TLS configurations that were built from the files of a listener.
#[derive(Debug)]
pub(super) struct ListenerState {
    pub(super) selector: Arc<CertificateSelector>,
    /// The configuration of each certificate. Certificates with the same client authentication
    /// share one, and sessions are resumed within one only: a session of a name without client
    /// authentication is none for a name with it.
    pub(super) configs: Vec<Arc<ServerConfig>>,
    /// The verifiers of client certificates; `None` without client authentication.
    pub(super) verifiers: Vec<Option<Arc<dyn ClientCertVerifier>>>,
}

/// The files of a listener, read and checked.
pub(super) struct LoadedFiles {
    /// The certificate of each slot; `None` for one of the ACME server, which has its own store.
    pub(super) certificates: Vec<Option<LoadedCertificate>>,
    pub(super) state: ListenerState,
}

pub(crate) fn check_listener_files(source: &ListenerTlsConfig) -> Vec<FileMistake> {
    let mut check = FileCheck::default();
    for certificate in &source.certificates {
        let prefix = &certificate.key_prefix;
        if let CertificateSource::Files {
            certificate: chain,
            key,
        } = &certificate.source
        {
            check.note(&format!("{prefix}.certificate"), certificates(chain));
            check.note(&format!("{prefix}.key"), private_key(key));
        }
        if let Some(client_auth) = &certificate.client_auth {
            check.note(&format!("{prefix}.client_ca"), authorities(&client_auth.ca));
            let crl = client_auth.crl.as_deref().map(revocation_lists);
            check.note(&format!("{prefix}.client_crl"), crl.transpose());
        }
    }
    let mut wrong = check.0;
    wrong.dedup();
    match load_files(source, &new_slots(source)) {
        Err(exit) if wrong.is_empty() => vec![(String::new(), exit.message().to_owned())],
        Err(_) | Ok(_) => wrong,
    }
}

pub(super) fn new_slots(source: &ListenerTlsConfig) -> Vec<Arc<CertificateSlot>> {
    let certificates = source.certificates.iter();
    let slots = certificates.map(|it| Arc::new(CertificateSlot::new(file_name(it))));
    slots.collect()
}

/// Reads the files, and builds the TLS configurations on these slots.
///
/// # Errors
/// Status 64 with the file that is invalid.
pub(super) fn load_files(
    source: &ListenerTlsConfig,
    slots: &[Arc<CertificateSlot>],
) -> Result<LoadedFiles, Exit> {
    let provider = Arc::new(default_provider());
    let certificates = source
        .certificates
        .iter()
        .map(|certificate| load_certificate(&certificate.source, &provider))
        .collect::<Result<Vec<_>, _>>()?;
    let names: Vec<Vec<String>> = source
        .certificates
        .iter()
        .zip(&certificates)
        .map(|(config, loaded)| match loaded {
            Some(loaded) => loaded.leaf.names.clone(),
            None => vec![file_name(config)],
        })
        .collect();
    check_names(source, &names)?;
    let selector = Arc::new(CertificateSelector::new(slots.to_vec(), &names));
    let mut configs: Vec<Arc<ServerConfig>> = Vec::new();
    let mut verifiers: Vec<Option<Arc<dyn ClientCertVerifier>>> = Vec::new();
    for (at, certificate) in source.certificates.iter().enumerate() {
        let before = &source.certificates[..at];
        let same = before
            .iter()
            .position(|other| other.client_auth == certificate.client_auth);
        let (config, verifier) = match same {
            Some(same) => (Arc::clone(&configs[same]), verifiers[same].clone()),
            None => {
                let client_auth = certificate.client_auth.as_deref();
                let verifier = client_auth.map(|config| client_auth::verifier(config, &provider));
                let verifier = verifier.transpose()?;
                let config = server_config(source, verifier.clone(), &provider, &selector)?;
                (Arc::new(config), verifier)
            }
        };
        configs.push(config);
        verifiers.push(verifier);
    }
    Ok(LoadedFiles {
        certificates,
        state: ListenerState {
            selector,
            configs,
            verifiers,
        },
    })
}

/// Returns the path of a certificate, or the name that the ACME server certifies.
pub(super) fn file_name(certificate: &CertificateConfig) -> String {
    match &certificate.source {
        CertificateSource::Files { certificate, .. } => certificate.display().to_string(),
        CertificateSource::Acme(domain) => domain.clone(),
    }
}

/// Rejects a certificate that is never used, and a name that two certificates have with different
/// client authentication.
fn check_names(source: &ListenerTlsConfig, names: &[Vec<String>]) -> Result<(), Exit> {
    for (at, (first, certificate)) in names.iter().zip(&source.certificates).enumerate() {
        if at > 0 && first.is_empty() {
            return Err(Exit::usage(format!(
                "{}: contains no DNS name",
                file_name(certificate)
            )));
        }
        let later = names.iter().zip(&source.certificates).skip(at + 1);
        for (second, other) in later {
            let shared = first.iter().find(|name| second.contains(name));
            if let Some(name) = shared.filter(|_| certificate.client_auth != other.client_auth) {
                return Err(Exit::usage(format!(
                    "{name} is a name of two certificates with different client authentication"
                )));
            }
        }
    }
    Ok(())
}

fn load_certificate(
    source: &CertificateSource,
    provider: &CryptoProvider,
) -> Result<Option<LoadedCertificate>, Exit> {
    let CertificateSource::Files {
        certificate: path,
        key,
    } = source
    else {
        return Ok(None);
    };
    let chain = certificates(path)?;
    let leaf = chain.first().map(Leaf::read).unwrap_or(Err("is empty"));
    let leaf = leaf.map_err(|error| unreadable(path, &error))?;
    let certified = key_pair(chain, private_key(key)?, provider)
        .map_err(|error| Exit::usage(format!("{}: {error}", key.display())))?;
    Ok(Some(LoadedCertificate {
        certified: Arc::new(certified),
        leaf,
    }))
}

/// Builds a TLS configuration. The provider's cipher suites for TLS 1.2 and TLS 1.3 are those of
/// Mozilla's "intermediate" recommendation without DHE, those for TLS 1.3 alone "modern"; the order
/// of preference is the client's, as Mozilla recommends.
fn server_config(
    source: &ListenerTlsConfig,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    provider: &Arc<CryptoProvider>,
    selector: &Arc<CertificateSelector>,
) -> Result<ServerConfig, Exit> {
    let versions: &[_] = match source.requires_tls13 {
        true => TLS13_ONLY,
        false => ALL_VERSIONS,
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(versions)
        .map_err(|error| Exit::usage(format!("cannot set up TLS: {error}")))?;
    let builder = match verifier {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier),
    };
    let mut config = builder.with_cert_resolver(Arc::clone(selector) as _);
    config.alpn_protocols = match source.http2 {
        true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        false => vec![b"http/1.1".to_vec()],
    };
    Ok(config)
}

/// Returns the modification times of all files, `None` for one that does not exist.
pub(super) fn modification_times(source: &ListenerTlsConfig) -> Vec<Option<SystemTime>> {
    let mut times = Vec::new();
    for certificate in &source.certificates {
        if let CertificateSource::Files {
            certificate: chain,
            key,
        } = &certificate.source
        {
            times.extend([chain, key].map(|path| modified_at(path)));
        }
        if let Some(client_auth) = &certificate.client_auth {
            times.push(modified_at(&client_auth.ca));
            times.extend(client_auth.crl.as_deref().map(modified_at));
        }
    }
    times
}
