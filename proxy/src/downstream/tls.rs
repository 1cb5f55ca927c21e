//! TLS on listeners, with certificates that can be reloaded.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use postern_common::exit::Exit;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::{ListenerTlsConfig, UpstreamTlsConfig};
use crate::downstream::read_ahead::ReadAhead;

/// The TLS files of a listener and the configuration that was loaded from them.
pub(crate) struct ReloadableTls {
    source: ListenerTlsConfig,
    current: ArcSwap<ServerConfig>,
    /// Modification times of the files at the last load attempt.
    last_attempt: Mutex<Vec<Option<SystemTime>>>,
}

impl ReloadableTls {
    /// # Errors
    /// Status 64 with the file that is invalid.
    pub(crate) fn load(source: ListenerTlsConfig) -> Result<Self, Exit> {
        let current = ArcSwap::new(Arc::new(server_config(&source)?));
        let last_attempt = Mutex::new(modification_times(&source));
        Ok(Self {
            source,
            current,
            last_attempt,
        })
    }

    /// Reloads the files if one of them was modified since the last attempt, or if `forced`.
    ///
    /// # Errors
    /// As [`ReloadableTls::load`].
    pub(crate) fn refresh(&self, forced: bool) -> Result<(), Exit> {
        let now = modification_times(&self.source);
        let before = std::mem::replace(&mut *self.last_attempt.lock(), now.clone());
        if forced || before != now {
            self.reload()
        } else {
            Ok(())
        }
    }

    /// Reloads the files. On failure the previous configuration stays active.
    ///
    /// # Errors
    /// As [`ReloadableTls::load`].
    fn reload(&self) -> Result<(), Exit> {
        self.current.store(Arc::new(server_config(&self.source)?));
        Ok(())
    }

    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<ReadAhead>> {
        TlsAcceptor::from(self.current.load_full())
            .accept(ReadAhead::new(stream))
            .await
    }
}

/// Checks the files of a listener. Returns for each mistake the key below `listen.tls`, with a
/// leading dot, and the reason; the key is empty if the files do not match each other.
pub(crate) fn check_listener_files(source: &ListenerTlsConfig) -> Vec<(&'static str, String)> {
    let wrong = [
        (".certificate", certificates(&source.certificate).err()),
        (".key", private_key(&source.key).err()),
        (
            ".client_ca",
            source
                .client_ca
                .as_deref()
                .and_then(|path| authorities(path).err()),
        ),
    ];
    let wrong = collect_mistakes(wrong);
    match server_config(source) {
        Err(exit) if wrong.is_empty() => vec![("", exit.message().to_owned())],
        Err(_) | Ok(_) => wrong,
    }
}

/// Checks the files of an upstream, as [`check_listener_files`] does.
pub(crate) fn check_upstream_files(source: &UpstreamTlsConfig) -> Vec<(&'static str, String)> {
    let certificate = source.certificate.as_deref().map(certificates);
    let key = source.key.as_deref().map(private_key);
    let (ca, own) = (
        source.ca.as_deref().map(authorities),
        certificate.as_ref().and_then(|all| all.as_ref().err()),
    );
    let wrong = collect_mistakes([
        (".ca", ca.and_then(Result::err)),
        (".certificate", own.map(|exit| Exit::usage(exit.message()))),
        (
            ".key",
            key.as_ref()
                .and_then(|key| key.as_ref().err())
                .map(|exit| Exit::usage(exit.message())),
        ),
    ]);
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    match (certificate, key) {
        (Some(Ok(certificate)), Some(Ok(key))) => {
            match CertifiedKey::from_der(certificate, key, &provider) {
                Err(error) => vec![("", format!("certificate and key: {error}"))],
                Ok(_) => wrong,
            }
        }
        _ => wrong,
    }
}

fn collect_mistakes<const N: usize>(
    wrong: [(&'static str, Option<Exit>); N],
) -> Vec<(&'static str, String)> {
    wrong
        .into_iter()
        .filter_map(|(key, exit)| Some((key, exit?.message().to_owned())))
        .collect()
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Exit> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| unreadable(path, &error))
}

fn authorities(path: &Path) -> Result<RootCertStore, Exit> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(path)? {
        roots
            .add(authority)
            .map_err(|error| unreadable(path, &error))?;
    }
    Ok(roots)
}

fn server_config(source: &ListenerTlsConfig) -> Result<ServerConfig, Exit> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Exit::usage(format!("cannot set up TLS: {error}")))?;
    let builder = match &source.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| unreadable(path, &error))?)
        }
    };
    let mut config = builder
        .with_single_cert(
            certificates(&source.certificate)?,
            private_key(&source.key)?,
        )
        .map_err(|error| unreadable(&source.certificate, &error))?;
    config.alpn_protocols = if source.http2 {
        vec![b"h2".to_vec()]
    } else {
        Vec::new()
    };
    config.alpn_protocols.push(b"http/1.1".to_vec());
    Ok(config)
}

fn modification_times(source: &ListenerTlsConfig) -> Vec<Option<SystemTime>> {
    let files = [
        Some(&source.certificate),
        Some(&source.key),
        source.client_ca.as_ref(),
    ];
    files
        .into_iter()
        .flatten()
        .map(|path| {
            std::fs::metadata(path)
                .and_then(|file| file.modified())
                .ok()
        })
        .collect()
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Exit> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(Exit::usage(format!(
            "{}: holds no certificate",
            path.display()
        ))),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Exit {
    Exit::usage(format!("{}: cannot read: {error}", path.display()))
}
