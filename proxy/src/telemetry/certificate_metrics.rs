//! Metrics of certificates, by their first name.

use crate::telemetry::metrics::metrics;

metrics! {
    /// The metrics of the certificates of listeners.
    pub(crate) struct CertificateMetrics {
        expiry: gauges("postern_tls_certificate_expiry_timestamp_seconds",
            "End of the validity of a certificate, in Unix time", &["certificate"]),
        reload_successful: gauges("postern_tls_certificate_reload_successful",
            "1, or 0 if the files of the listener were rejected when they changed", &["certificate"]),
        renewal_failures: counters("postern_tls_certificate_renewal_failures_total",
            "Failed orders for a certificate at the ACME server", &["certificate"]),
    }
}

impl CertificateMetrics {
    /// Records the end of the validity of a certificate, in Unix seconds.
    pub(crate) fn note_expiry(&self, certificate: &str, at: i64) {
        self.expiry.with_label_values(&[certificate]).set(at);
    }

    /// Records whether the changed files of a listener are in use.
    pub(crate) fn note_reload(&self, certificate: &str, is_successful: bool) {
        let gauge = self.reload_successful.with_label_values(&[certificate]);
        gauge.set(i64::from(is_successful));
    }

    /// Counts a failed order for a certificate.
    pub(crate) fn note_renewal_failure(&self, certificate: &str) {
        let counter = self.renewal_failures.with_label_values(&[certificate]);
        counter.inc();
    }

    /// Removes a certificate that is no longer used.
    pub(crate) fn forget(&self, certificate: &str) {
        let labels = &[certificate];
        let _absent = self.expiry.remove_label_values(labels);
        let _absent = self.reload_successful.remove_label_values(labels);
    }
}
