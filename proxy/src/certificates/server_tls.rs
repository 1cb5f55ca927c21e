//! The TLS configuration of a listener, which is reloaded when its files change.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use postern_core::Clock;
use postern_core::clock::Timestamp;
use postern_core::exit::Exit;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ClientHello;
use rustls::server::danger::ClientCertVerifier;

use crate::certificates::acme::PendingChallenges;
use crate::certificates::loading::{
    ListenerState, LoadedFiles, file_name, load_files, modification_times, new_slots,
};
use crate::certificates::slot::{CertificateSlot, LoadedCertificate};
use crate::config::{CertificateSource, ClientAuthConfig, ListenerTlsConfig};
use crate::telemetry::certificate_metrics::CertificateMetrics;

/// The certificates of a listener and the TLS configurations that were built from them.
#[derive(Debug)]
pub(crate) struct ServerTls {
    source: ListenerTlsConfig,
    slots: Vec<Arc<CertificateSlot>>,
    pub(super) current: ArcSwap<ListenerState>,
    /// Modification times of the files at the last load attempt, and why they were rejected; then
    /// they are tried again, because a certificate becomes valid without a change of its file.
    last_attempt: Mutex<(Vec<Option<SystemTime>>, Option<String>)>,
    clock: Clock,
    metrics: Arc<CertificateMetrics>,
    /// The challenges of names for which certificates are obtained from the ACME server.
    challenges: OnceLock<Arc<PendingChallenges>>,
}

#[derive(Debug)]
pub(crate) struct TlsClientAuthentication {
    pub(super) policy: Arc<ClientAuthConfig>,
    listener: Arc<ServerTls>,
    /// The position of the certificate in the configuration.
    certificate: usize,
    /// The verifier that has accepted the client's certificate.
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ServerTls {
    /// Loads the files.
    ///
    /// # Errors
    /// Status 64 with the file that is invalid.
    pub(crate) fn load(
        source: ListenerTlsConfig,
        clock: Clock,
        metrics: Arc<CertificateMetrics>,
    ) -> Result<Self, Exit> {
        let slots = new_slots(&source);
        let last_attempt = Mutex::new((modification_times(&source), None));
        let files = load_files(&source, &slots)?;
        let current = ArcSwap::from_pointee(files.state);
        let tls = Self {
            source,
            slots,
            current,
            last_attempt,
            clock,
            metrics,
            challenges: OnceLock::new(),
        };
        tls.install(files.certificates);
        tls.warn_of_expiry();
        Ok(tls)
    }

    /// Reloads the files if one of them was modified since the last attempt, or if `forced`. On
    /// failure the previous configuration stays active.
    ///
    /// # Errors
    /// As [`ServerTls::load`], also if a certificate is worse than the valid one in use; once for each
    /// reason, unless `forced`.
    pub(crate) fn refresh(&self, forced: bool) -> Result<(), Exit> {
        self.warn_of_expiry();
        let now = modification_times(&self.source);
        let mut last_attempt = self.last_attempt.lock();
        let (modified_at, rejection) = &mut *last_attempt;
        if !forced && *modified_at == now && rejection.is_none() {
            return Ok(());
        }
        *modified_at = now;
        let loaded = load_files(&self.source, &self.slots);
        let loaded = loaded.and_then(|files| self.check_replaced(&files).map(|()| files));
        for slot in &self.slots {
            let reload = self
                .metrics
                .reload_successful
                .with_label_values(&[slot.label()]);
            reload.set(i64::from(loaded.is_ok()));
        }
        match loaded {
            Ok(files) => {
                *rejection = None;
                self.install(files.certificates);
                self.current.store(Arc::new(files.state));
                self.warn_of_expiry();
                Ok(())
            }
            Err(exit) => {
                let before = rejection.replace(exit.message().to_owned());
                let is_known = before.as_deref() == Some(exit.message());
                if is_known && !forced {
                    Ok(())
                } else {
                    Err(exit)
                }
            }
        }
    }

    /// Rejects a certificate that would make handshakes fail which succeed now. A restart uses it.
    fn check_replaced(&self, files: &LoadedFiles) -> Result<(), Exit> {
        let new = files.certificates.iter().zip(&self.source.certificates);
        for (slot, (loaded, config)) in self.slots.iter().zip(new) {
            let leaf = loaded.as_ref().map(|loaded| &loaded.leaf);
            let now = self.clock.now();
            if let Some(reason) = leaf.and_then(|leaf| slot.reason_to_keep(leaf, now)) {
                let file = file_name(config);
                return Err(Exit::usage(format!("{file}: the new certificate {reason}")));
            }
        }
        Ok(())
    }

    /// Reports certificates of files that expire soon, each once a day. Those of an ACME server are
    /// renewed before, and a failed renewal is reported.
    fn warn_of_expiry(&self) {
        for (slot, source) in self.slots.iter().zip(&self.source.certificates) {
            match source.source {
                CertificateSource::Files { .. } => slot.warn_of_expiry(self.clock.now()),
                CertificateSource::Acme(_) => {}
            }
        }
    }

    fn install(&self, certificates: Vec<Option<LoadedCertificate>>) {
        for (slot, loaded) in self.slots.iter().zip(certificates) {
            if let Some(loaded) = loaded {
                slot.install(loaded, &self.metrics);
            }
        }
    }

    /// Returns the TLS configuration for a handshake, and the client authentication that it
    /// performs. A configuration refuses the handshake if there is no certificate for the name.
    pub(crate) fn select(
        self: &Arc<Self>,
        hello: &ClientHello<'_>,
    ) -> (Arc<ServerConfig>, Option<TlsClientAuthentication>) {
        let current = self.current.load();
        let selected = current.selector.select(hello.server_name());
        let client_auth = self.client_authentication(&current, selected);
        (Arc::clone(&current.configs[selected]), client_auth)
    }

    pub(super) fn client_authentication(
        self: &Arc<Self>,
        current: &ListenerState,
        certificate: usize,
    ) -> Option<TlsClientAuthentication> {
        let policy = self.source.certificates[certificate].client_auth.as_ref()?;
        Some(TlsClientAuthentication {
            policy: Arc::clone(policy),
            listener: Arc::clone(self),
            certificate,
            verifier: current.verifiers[certificate].clone()?,
        })
    }

    /// Sets the challenges that handshakes of this listener answer.
    pub(crate) fn set_challenges(&self, challenges: Arc<PendingChallenges>) {
        let _once = self.challenges.set(challenges);
    }

    /// Returns the TLS configuration that answers a challenge; `None` for any other handshake.
    pub(crate) async fn challenge(&self, hello: &ClientHello<'_>) -> Option<Arc<ServerConfig>> {
        let challenges = self.challenges.get()?;
        let protocols = hello.alpn()?;
        challenges.tls_config(hello.server_name(), protocols).await
    }

    /// Returns the names for which certificates are obtained from the ACME server, with their
    /// slots.
    pub(crate) fn acme_slots(&self) -> impl Iterator<Item = (String, Arc<CertificateSlot>)> {
        let certificates = self.slots.iter().zip(&self.source.certificates);
        certificates.filter_map(|(slot, certificate)| match &certificate.source {
            CertificateSource::Acme(domain) => Some((domain.clone(), Arc::clone(slot))),
            CertificateSource::Files { .. } => None,
        })
    }

    pub(super) fn authenticates_clients(&self) -> bool {
        let mut certificates = self.source.certificates.iter();
        certificates.any(|certificate| certificate.client_auth.is_some())
    }

    /// Returns the client authentication of a host name in lower case, or of the closest domain that
    /// a certificate has as a wildcard.
    pub(super) fn client_auth_of(&self, host: &str) -> Option<&Arc<ClientAuthConfig>> {
        let current = self.current.load();
        let at = current.selector.closest(host)?;
        self.source.certificates[at].client_auth.as_ref()
    }
}

impl TlsClientAuthentication {
    /// Returns whether a chain that the handshake has verified is still accepted, after a reload of
    /// the authorities and revocation lists. A client without a certificate always is.
    pub(super) fn accepts(&mut self, chain: &[CertificateDer<'_>], now: Timestamp) -> bool {
        let current = self.listener.current.load().verifiers[self.certificate].clone();
        let (Some(current), Some((certificate, rest))) = (current, chain.split_first()) else {
            return true;
        };
        if Arc::ptr_eq(&current, &self.verifier) {
            return true;
        }
        let seconds = u64::try_from(now.unix_seconds()).unwrap_or(0);
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let is_accepted = current.verify_client_cert(certificate, rest, now).is_ok();
        if is_accepted {
            self.verifier = current;
        }
        is_accepted
    }
}
