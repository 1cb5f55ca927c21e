//! The metrics of an HTTP server.

use std::time::Duration;

use http::{Method, StatusCode};
use prometheus::{HistogramVec, IntCounterVec, IntGauge};

use postern_core::trace::known_method;

/// Upper bounds of the buckets of all latencies, in seconds. Above one second they are close enough
/// that a quantile tells a slow dependency from a deadline.
pub const LATENCY_BUCKETS_S: [f64; 19] = [
    0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0,
    7.5, 10.0, 30.0, 60.0,
];

postern_core::metrics! {
    /// The requests of a server by method, route and status. Clones share the metrics.
    pub struct HttpMetrics {
        /// HTTP requests by method, route template and status.
        requests: IntCounterVec = "postern_http_requests_total" ["method", "route", "status"];
        /// Time from the head of a request to the head of its response.
        duration: HistogramVec = "postern_http_request_duration_seconds" ["method", "route"] in LATENCY_BUCKETS_S.to_vec();
        /// HTTP requests that have no response yet.
        in_flight: IntGauge = "postern_http_requests_in_flight" [];
    }
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct RequestInFlight<'a>(&'a HttpMetrics);

impl HttpMetrics {
    /// Counts a request in progress until the guard is dropped.
    pub(super) fn start(&self) -> RequestInFlight<'_> {
        self.in_flight.inc();
        RequestInFlight(self)
    }

    /// Records a response. `route` is the template of the matched route, or `none`.
    pub(super) fn record(
        &self,
        method: &Method,
        route: &str,
        status: StatusCode,
        elapsed: Duration,
    ) {
        let method = match known_method(method) {
            "_OTHER" => "other",
            known => known,
        };
        let labels = [method, route, status.as_str()];
        self.requests.with_label_values(&labels).inc();
        let duration = self.duration.with_label_values(&labels[..2]);
        duration.observe(elapsed.as_secs_f64());
    }
}

impl Drop for RequestInFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.dec();
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder, Registry, TextEncoder};

    use super::*;

    #[test]
    fn requests_are_counted_by_closed_sets_of_labels() {
        let registry = Registry::new();
        let metrics = HttpMetrics::new(&registry).expect("registered");
        let hostile = Method::from_bytes(b"X-1234").expect("a token");
        {
            let _in_flight = metrics.start();
            assert_eq!(metrics.in_flight.get(), 1);
            let elapsed = Duration::from_millis(3);
            metrics.record(&Method::GET, "/a/{id}", StatusCode::OK, elapsed);
            metrics.record(&hostile, "none", StatusCode::NOT_FOUND, elapsed);
        }
        assert_eq!(metrics.in_flight.get(), 0);
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&registry.gather(), &mut text)
            .expect("text");
        let text = String::from_utf8(text).expect("UTF-8");
        for line in [
            r#"postern_http_requests_total{method="GET",route="/a/{id}",status="200"} 1"#,
            r#"postern_http_requests_total{method="other",route="none",status="404"} 1"#,
            r#"postern_http_request_duration_seconds_bucket{method="GET",route="/a/{id}",le="0.005"} 1"#,
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(!text.contains("X-1234"));
    }
}
