//! TLS towards clients: certificates that can be read again without a restart.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use postern_common::exit::Exit;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::Tls;

/// The files of one listener and what was made of them.
pub(crate) struct TlsFiles {
    source: Tls,
    current: ArcSwap<ServerConfig>,
    /// When the files were written, as far as they were tried.
    tried: Mutex<Vec<Option<SystemTime>>>,
}

impl TlsFiles {
    /// # Errors
    /// Status 64 with the file that is not good.
    pub(crate) fn load(source: Tls) -> Result<Self, Exit> {
        let current = ArcSwap::new(Arc::new(server_config(&source)?));
        let tried = Mutex::new(written(&source));
        Ok(Self { source, current, tried })
    }

    /// Reads the files again if one of them was written since they were tried last, or in any case.
    ///
    /// # Errors
    /// As [`TlsFiles::load`].
    pub(crate) fn refresh(&self, forced: bool) -> Result<(), Exit> {
        let now = written(&self.source);
        let before =
            std::mem::replace(&mut *self.tried.lock().unwrap_or_else(PoisonError::into_inner), now.clone());
        if forced || before != now { self.reload() } else { Ok(()) }
    }

    /// Reads the files again; what was live stays live if they are not good.
    ///
    /// # Errors
    /// As [`TlsFiles::load`].
    fn reload(&self) -> Result<(), Exit> {
        self.current.store(Arc::new(server_config(&self.source)?));
        Ok(())
    }

    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.current.load_full()).accept(stream).await
    }
}

fn server_config(source: &Tls) -> Result<ServerConfig, Exit> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Exit::usage(format!("cannot set up TLS: {error}")))?;
    let builder = match &source.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(|error| bad(path, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| bad(path, &error))?)
        }
    };
    let key = PrivateKeyDer::from_pem_file(&source.key).map_err(|error| bad(&source.key, &error))?;
    let mut config = builder
        .with_single_cert(certificates(&source.certificate)?, key)
        .map_err(|error| bad(&source.certificate, &error))?;
    config.alpn_protocols = if source.http2 { vec![b"h2".to_vec()] } else { Vec::new() };
    config.alpn_protocols.push(b"http/1.1".to_vec());
    Ok(config)
}

fn written(source: &Tls) -> Vec<Option<SystemTime>> {
    let files = [Some(&source.certificate), Some(&source.key), source.client_ca.as_ref()];
    files
        .into_iter()
        .flatten()
        .map(|path| std::fs::metadata(path).and_then(|file| file.modified()).ok())
        .collect()
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Exit> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(Exit::usage(format!("{}: holds no certificate", path.display()))),
        Err(error) => Err(bad(path, &error)),
    }
}

fn bad(path: &Path, error: &dyn std::fmt::Display) -> Exit {
    Exit::usage(format!("{}: {error}", path.display()))
}
