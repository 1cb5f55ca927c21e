//! One configured certificate: what is loaded, and the warnings about its expiry.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
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
    /// The path of the certificate, or the name that the ACME server certifies.
    file_name: String,
    /// The first name of the first certificate: the label in logs and metrics.
    label: OnceLock<String>,
    current: ArcSwapOption<LoadedCertificate>,
    /// Unix time from which a further warning about the end of the validity is logged.
    next_warning_at: AtomicI64,
}

const DAY_S: i64 = 86_400;

impl CertificateSlot {
    /// Creates an empty slot. `file_name` is the label of a certificate without names.
    pub(super) fn new(file_name: String) -> Self {
        Self {
            file_name,
            label: OnceLock::new(),
            current: ArcSwapOption::empty(),
            next_warning_at: AtomicI64::default(),
        }
    }

    pub(super) fn label(&self) -> &str {
        self.label.get().unwrap_or(&self.file_name)
    }

    pub(super) fn current(&self) -> Option<Arc<CertifiedKey>> {
        let current = self.current.load();
        current.as_ref().map(|loaded| Arc::clone(&loaded.certified))
    }

    pub(super) fn install(&self, loaded: LoadedCertificate, metrics: &CertificateMetrics) {
        if let Some(name) = loaded.leaf.names.first() {
            self.label.get_or_init(|| name.clone());
        }
        let expiry = metrics.expiry.with_label_values(&[self.label()]);
        expiry.set(loaded.leaf.not_after);
        self.current.store(Some(Arc::new(loaded)));
        self.next_warning_at.store(0, Ordering::Relaxed);
    }

    /// Returns why a certificate must not replace the current one, which is valid: it is not, or it
    /// lacks one of the names of the current one.
    pub(super) fn reason_to_keep(&self, new: &Leaf, now: Timestamp) -> Option<String> {
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
        let lost = current.names.iter().find(|name| !new.covers(name))?;
        Some(format!("lacks the name {lost}, which the current one has"))
    }

    /// Logs a warning once a day if the certificate expires soon.
    pub(super) fn warn_of_expiry(&self, now: Timestamp) {
        let (current, now) = (self.current.load(), now.unix_seconds());
        let Some(leaf) = current.as_ref().map(|loaded| &loaded.leaf) else {
            return;
        };
        let (remaining, not_after) = (leaf.not_after - now, leaf.not_after);
        if remaining > leaf.renewal_window() || now < self.next_warning_at.load(Ordering::Relaxed) {
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
            },
        };
        let slot = CertificateSlot::new("a.pem".to_owned());
        let metrics = GatewayMetrics::new().expect("metrics");
        slot.install(loaded, &metrics.certificates);
        slot
    }

    #[test]
    fn certificate_that_expires_soon_is_reported_daily() {
        let (log, _guard) = CapturedLog::start();
        let (long, short) = (slot(0, 365), slot(0, 6));
        // A short-lived one in its last third.
        for (slot, seconds, count) in [
            (&long, 335 * DAY_S - 1, 0),
            (&long, 335 * DAY_S, 1),
            (&long, 336 * DAY_S - 1, 1),
            (&long, 336 * DAY_S, 2),
            (&short, 4 * DAY_S - 1, 2),
            (&short, 4 * DAY_S, 3),
        ] {
            slot.warn_of_expiry(Timestamp::from_unix_seconds(seconds));
            let name = "certificate=\"a.test\"";
            let words = [" WARN ", "certificate expires soon", name];
            assert_eq!(log.with(&words), count, "{}", log.text());
        }
        assert_eq!(log.with(&["expires_in_days=29"]), 1, "{}", log.text());
        long.warn_of_expiry(Timestamp::from_unix_seconds(366 * DAY_S));
        let actual = log.with(&["ERROR", "certificate expired"]);
        assert_eq!(actual, 1, "{}", log.text());
    }

    #[test]
    fn valid_certificate_is_replaced_by_none_that_is_worse() {
        let valid = slot(0, 100);
        let new = |from: i64, until: i64, names: &[&str]| Leaf {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            not_before: from * DAY_S,
            not_after: until * DAY_S,
        };
        let day = |day: i64| Timestamp::from_unix_seconds(day * DAY_S);
        for (leaf, reason) in [
            (new(0, 200, &["a.test", "b.test"]), None),
            (new(0, 200, &["*.test"]), None),
            (new(0, 50, &["a.test"]), Some("expired at")),
            (new(51, 200, &["a.test"]), Some("is not valid before")),
            (new(0, 200, &["b.test"]), Some("lacks the name a.test")),
        ] {
            let found = valid.reason_to_keep(&leaf, day(50));
            let matches = match (&found, reason) {
                (Some(found), Some(reason)) => found.contains(reason),
                (found, reason) => found.is_none() && reason.is_none(),
            };
            assert!(matches, "{leaf:?}: {found:?}");
        }
        let expired = new(0, 50, &["a.test"]);
        // None is valid.
        assert_eq!(valid.reason_to_keep(&expired, day(101)), None);
    }
}
