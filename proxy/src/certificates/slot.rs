//! One configured certificate: what is loaded, and the warnings about its expiry.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use postern_core::clock::Timestamp;
use rustls::sign::CertifiedKey;

use crate::certificates::leaf::Leaf;
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
    current: ArcSwapOption<LoadedCertificate>,
    /// Unix time from which a further warning about the end of the validity is logged.
    next_warning_at: AtomicI64,
}

/// Remaining validity below which a certificate is reported every day, in seconds: 30 days, or a
/// third of its lifetime if that is less.
const EXPIRY_WARNING_S: i64 = 30 * DAY_S;

const DAY_S: i64 = 86_400;

impl CertificateSlot {
    /// Creates an empty slot. Without a configured name, `path` is the label until a certificate is
    /// installed.
    pub(super) fn new(configured_name: Option<&String>, path: String) -> Self {
        Self {
            label: Mutex::new(configured_name.cloned().unwrap_or(path)),
            has_configured_name: configured_name.is_some(),
            current: ArcSwapOption::empty(),
            next_warning_at: AtomicI64::default(),
        }
    }

    /// Returns the label in logs and metrics.
    pub(super) fn label(&self) -> String {
        self.label.lock().clone()
    }

    /// Returns the certificate for handshakes.
    pub(super) fn current(&self) -> Option<Arc<CertifiedKey>> {
        let current = self.current.load();
        current.as_ref().map(|loaded| Arc::clone(&loaded.certified))
    }

    /// Replaces the certificate.
    pub(super) fn install(&self, loaded: LoadedCertificate, metrics: &CertificateMetrics) {
        let name = loaded.leaf.names.first();
        let name = name.filter(|_| !self.has_configured_name);
        let label = name.cloned().unwrap_or_else(|| self.label());
        let before = std::mem::replace(&mut *self.label.lock(), label.clone());
        if before != label {
            metrics.forget(&before);
        }
        metrics.note_expiry(&label, loaded.leaf.not_after);
        self.current.store(Some(Arc::new(loaded)));
        self.next_warning_at.store(0, Ordering::Relaxed);
    }

    /// Returns why a certificate must not replace the current one, which is valid: it is not, or it
    /// lacks one of the configured names, or else of its own names, that the current one has.
    pub(super) fn reason_to_keep(
        &self,
        new: &Leaf,
        names: &[String],
        now: Timestamp,
    ) -> Option<String> {
        let (current, now) = (self.current.load(), now.unix_seconds());
        let current = &current.as_ref()?.leaf;
        if !(current.not_before..current.not_after).contains(&now) {
            return None;
        }
        let at = Timestamp::from_unix_seconds;
        if new.not_after <= now {
            return Some(format!("expired at {}", at(new.not_after)));
        }
        if new.not_before > now {
            return Some(format!("is not valid before {}", at(new.not_before)));
        }
        let mut served = match names {
            [] => current.names.iter(),
            _ => names.iter(),
        };
        let lost = served.find(|name| current.covers(name) && !new.covers(name))?;
        Some(format!("lacks the name {lost}, which the current one has"))
    }

    /// Logs a warning once a day if the certificate expires soon.
    pub(super) fn warn_of_expiry(&self, now: Timestamp) {
        let (current, now) = (self.current.load(), now.unix_seconds());
        let Some(leaf) = current.as_ref().map(|loaded| &loaded.leaf) else {
            return;
        };
        let (remaining, not_after) = (leaf.not_after - now, leaf.not_after);
        let warns_from = EXPIRY_WARNING_S.min((not_after - leaf.not_before) / 3);
        if remaining > warns_from || now < self.next_warning_at.load(Ordering::Relaxed) {
            return;
        }
        self.next_warning_at.store(now + DAY_S, Ordering::Relaxed);
        let (certificate, expires_at) = (self.label(), Timestamp::from_unix_seconds(not_after));
        let expires_in_days = remaining.div_euclid(DAY_S);
        if remaining <= 0 {
            tracing::error!(certificate, %expires_at, "certificate expired");
        } else {
            tracing::warn!(certificate, %expires_at, expires_in_days, "certificate expires soon");
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs::sign::any_supported_type;
    use rustls::pki_types::PrivateKeyDer;

    use super::*;
    use crate::telemetry::metrics::GatewayMetrics;
    use postern_core::testing::CapturedLog;

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
    fn valid_certificate_is_replaced_by_none_that_is_worse() {
        let valid = slot(0, 100);
        let new = |from: i64, until: i64, names: &[&str]| Leaf {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            not_before: from * DAY_S,
            not_after: until * DAY_S,
            ..Leaf::default()
        };
        let (configured, day) = (["x.test".to_owned()], |day: i64| {
            Timestamp::from_unix_seconds(day * DAY_S)
        });
        for (leaf, names, reason) in [
            (new(0, 200, &["a.test", "b.test"]), &[][..], None),
            (new(0, 200, &["*.test"]), &[], None),
            (new(0, 50, &["a.test"]), &[], Some("expired at")),
            (new(51, 200, &["a.test"]), &[], Some("is not valid before")),
            (new(0, 200, &["b.test"]), &[], Some("lacks the name a.test")),
            (new(0, 200, &["b.test"]), &configured, None),
        ] {
            let found = valid.reason_to_keep(&leaf, names, day(50));
            let matches = match (&found, reason) {
                (Some(found), Some(reason)) => found.contains(reason),
                (found, reason) => found.is_none() && reason.is_none(),
            };
            assert!(matches, "{leaf:?}: {found:?}");
        }
        let expired = new(0, 50, &["a.test"]);
        // None is valid.
        assert_eq!(valid.reason_to_keep(&expired, &[], day(101)), None);
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
