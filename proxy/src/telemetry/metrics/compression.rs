//! Metrics of response compression.

metrics! {
    pub(crate) struct CompressionMetrics {
        pub(crate) responses: counters("postern_proxy_compressed_responses_total",
            "Compressed responses by content coding: `encoding` in the access log", &["coding"]),
        pub(crate) skipped: counter("postern_proxy_compression_skipped_total",
            "Responses sent uncompressed because the memory of encoders was exhausted"),
    }
}
