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
    /// Unix time from which a further warning about the end of the validity is logged.
    next_warning_at: i64,
}

/// Remaining validity below which a certificate is reported every day, in seconds: 30 days, or a
/// third of its lifetime if that is less.
const EXPIRY_WARNING_S: i64 = 30 * DAY_S;

const DAY_S: i64 = 86_400;

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
        state.next_warning_at = 0;
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

    /// Logs a warning once a day if the certificate expires soon.
    pub(super) fn warn_of_expiry(&self, now: Timestamp) {
        let (mut state, now) = (self.state.lock(), now.unix_seconds());
        let Some(leaf) = state.loaded.as_ref().map(|loaded| &loaded.leaf) else {
            return;
        };
        let (remaining, not_after) = (leaf.not_after - now, leaf.not_after);
        let warns_from = EXPIRY_WARNING_S.min((not_after - leaf.not_before) / 3);
        if remaining > warns_from || now < state.next_warning_at {
            return;
        }
        state.next_warning_at = now + DAY_S;
        drop(state);
        let (certificate, expires_at) = (self.label(), Timestamp::from_unix_seconds(not_after));
        let expires_in_days = remaining.div_euclid(DAY_S);
        if remaining <= 0 {
            tracing::error!(certificate, %expires_at, "certificate expired");
        } else {
            tracing::warn!(certificate, %expires_at, expires_in_days, "certificate expires soon");
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

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs::sign::any_supported_type;
    use rustls::pki_types::PrivateKeyDer;

    use super::*;
    use crate::telemetry::metrics::GatewayMetrics;
    use postern_common::testing::CapturedLog;

    /// Returns a slot whose certificate is valid between these days.
    fn slot(from: i64, until: i64) -> CertificateSlot {
        let made =
            rcgen::generate_simple_self_signed(["a.test".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
        let key = any_supported_type(&key).expect("a signing key");
        let loaded = LoadedCertificate {
            certified: Arc::new(CertifiedKey::new(vec![made.cert.der().clone()], key)),
            leaf: Leaf {
                names: vec!["a.test".to_owned()],
                not_before: from * DAY_S,
                not_after: until * DAY_S,
                ..Leaf::default()
            },
        };
        let slot = CertificateSlot::new(None, "a.pem".to_owned());
        slot.install(
            loaded,
            &GatewayMetrics::new().expect("metrics").certificates,
        );
        slot
    }

    #[test]
    fn certificate_that_expires_soon_is_reported_daily() {
        let (log, _guard) = CapturedLog::start();
        let slot = slot(0, 365);
        let expect = |seconds: i64, count: usize| {
            slot.warn_of_expiry(Timestamp::from_unix_seconds(seconds));
            let words = [
                " WARN ",
                "certificate expires soon",
                "certificate=\"a.test\"",
            ];
            assert_eq!(log.with(&words), count, "{}", log.text());
        };
        expect(335 * DAY_S - 1, 0);
        expect(335 * DAY_S, 1);
        expect(336 * DAY_S - 1, 1);
        expect(336 * DAY_S, 2);
        assert_eq!(log.with(&["expires_in_days=29"]), 1, "{}", log.text());
        slot.warn_of_expiry(Timestamp::from_unix_seconds(366 * DAY_S));
        assert_eq!(
            log.with(&["ERROR", "certificate expired"]),
            1,
            "{}",
            log.text()
        );
    }

    #[test]
    fn short_lived_certificate_is_reported_in_its_last_third() {
        let (log, _guard) = CapturedLog::start();
        let slot = slot(0, 6);
        slot.warn_of_expiry(Timestamp::from_unix_seconds(4 * DAY_S - 1));
        assert_eq!(log.with(&["certificate expires soon"]), 0, "{}", log.text());
        slot.warn_of_expiry(Timestamp::from_unix_seconds(4 * DAY_S));
        assert_eq!(log.with(&["certificate expires soon"]), 1, "{}", log.text());
    }
}
