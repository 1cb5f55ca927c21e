//! One configured certificate: what is loaded, and the OCSP response that is stapled to it.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use postern_common::clock::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use crate::certificates::leaf::Leaf;
use crate::certificates::ocsp::Staple;
use crate::telemetry::certificate_metrics::CertificateMetrics;

/// A certificate with its key and evaluated parts.
#[derive(Clone, Debug)]
pub(super) struct LoadedCertificate {
    pub(super) certified: Arc<CertifiedKey>,
    pub(super) leaf: Leaf,
}

/// A configured certificate. It is empty until a certificate is installed.
#[derive(Debug)]
pub(crate) struct CertificateSlot {
    /// The first configured name, or else that of the certificate: its label in logs and metrics.
    label: Mutex<String>,
    has_configured_name: bool,
    state: Mutex<SlotState>,
    /// What handshakes use: the certificate with its stapled response.
    current: ArcSwapOption<CertifiedKey>,
}

#[derive(Debug, Default)]
struct SlotState {
    loaded: Option<LoadedCertificate>,
    staple: Option<Staple>,
}

impl LoadedCertificate {
    /// Returns the certificate of the issuer, if the chain contains it.
    pub(super) fn issuer(&self) -> Option<&CertificateDer<'static>> {
        self.certified.cert.get(1)
    }

    fn end_entity(&self) -> Option<&CertificateDer<'static>> {
        self.certified.cert.first()
    }
}

impl CertificateSlot {
    /// Creates an empty slot. Without a configured name, `path` is the label until a certificate is
    /// installed.
    pub(super) fn new(configured_name: Option<&String>, path: String) -> Self {
        Self {
            label: Mutex::new(configured_name.cloned().unwrap_or(path)),
            has_configured_name: configured_name.is_some(),
            state: Mutex::default(),
            current: ArcSwapOption::empty(),
        }
    }

    /// Returns the label in logs and metrics.
    pub(super) fn label(&self) -> String {
        self.label.lock().clone()
    }

    /// Returns the certificate for handshakes.
    pub(super) fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.current.load_full()
    }

    /// Returns what is loaded.
    pub(super) fn loaded(&self) -> Option<LoadedCertificate> {
        self.state.lock().loaded.clone()
    }

    /// Replaces the certificate. A stapled response stays if it is for the same certificate.
    pub(super) fn install(&self, loaded: LoadedCertificate, metrics: &CertificateMetrics) {
        let mut state = self.state.lock();
        let is_same = state
            .loaded
            .as_ref()
            .and_then(LoadedCertificate::end_entity)
            == loaded.end_entity();
        if !is_same {
            state.staple = None;
        }
        let name = loaded.leaf.names.first();
        let name = name.filter(|_| !self.has_configured_name);
        let label = name.cloned().unwrap_or_else(|| self.label());
        let before = std::mem::replace(&mut *self.label.lock(), label.clone());
        if before != label {
            metrics.forget(&before);
        }
        metrics.note_expiry(&label, loaded.leaf.not_after);
        state.loaded = Some(loaded);
        self.publish(&state);
    }

    /// Staples a response to the certificate.
    pub(super) fn set_staple(&self, staple: Staple, metrics: &CertificateMetrics) {
        let mut state = self.state.lock();
        metrics.note_staple(&self.label(), staple.next_update);
        state.staple = Some(staple);
        self.publish(&state);
    }

    /// Removes a stapled response that has expired.
    pub(super) fn expire_staple(&self, now: Timestamp) {
        let mut state = self.state.lock();
        let is_expired = |staple: &Staple| staple.next_update <= now.unix_seconds();
        if state.staple.as_ref().is_some_and(is_expired) {
            state.staple = None;
            self.publish(&state);
            tracing::warn!(certificate = self.label(), "stapled OCSP response expired");
        }
    }

    fn publish(&self, state: &SlotState) {
        let Some(loaded) = &state.loaded else { return };
        let certified = match &state.staple {
            None => Arc::clone(&loaded.certified),
            Some(staple) => {
                let mut certified = CertifiedKey::new(
                    loaded.certified.cert.clone(),
                    Arc::clone(&loaded.certified.key),
                );
                certified.ocsp = Some(staple.der.clone());
                Arc::new(certified)
            }
        };
        self.current.store(Some(certified));
    }
}
