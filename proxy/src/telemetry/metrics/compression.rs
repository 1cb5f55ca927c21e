//! Metrics of response compression.

use postern_http::compression::{ContentCoding, EncoderMetrics};

metrics! {
    /// Metrics of compression.
    pub(crate) struct CompressionMetrics {
        responses: counters("postern_proxy_compressed_responses_total",
            "Compressed responses by content coding: `encoding` in the access log", &["coding"]),
        bytes_in: counters("postern_proxy_compression_input_bytes_total",
            "Bytes of response bodies before compression", &["coding"]),
        bytes_out: counters("postern_proxy_compression_output_bytes_total",
            "Bytes of response bodies after compression", &["coding"]),
        skipped: counter("postern_proxy_compression_skipped_total",
            "Responses sent uncompressed because the memory of encoders was exhausted"),
    }
}

impl EncoderMetrics for CompressionMetrics {
    fn count_skipped(&self) {
        self.skipped.inc();
    }

    fn count_encoded(&self, coding: ContentCoding, bytes_in: u64, bytes_out: u64) {
        let coding = coding.as_str();
        self.responses.with_label_values(&[coding]).inc();
        self.bytes_in.with_label_values(&[coding]).inc_by(bytes_in);
        self.bytes_out
            .with_label_values(&[coding])
            .inc_by(bytes_out);
    }
}
