//! Metrics of certificates, by their first name.

use crate::telemetry::metrics::metrics;

metrics! {
    pub(crate) struct CertificateMetrics {
        pub(crate) expiry: gauges("postern_tls_certificate_expiry_timestamp_seconds",
            "End of the validity of a certificate, in Unix time", &["certificate"]),
        pub(crate) reload_successful: gauges("postern_tls_certificate_reload_successful",
            "1, or 0 if the files of the listener were rejected when they changed", &["certificate"]),
        pub(crate) renewal_failures: counters("postern_tls_certificate_renewal_failures_total",
            "Failed orders for a certificate at the ACME server", &["certificate"]),
    }
}
