//! `[route.mirror]`: copies of requests to a second upstream.

use std::time::Duration;

use postern_core::settings;

use crate::config::upstream::find_upstream;
use crate::config::{UpstreamConfig, memory_size, nonzero_duration};

settings! {
    /// [Copies](../manual/gateway.md#mirroring) of requests.
    ///
    /// Their responses are discarded.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct MirrorConfig(table, upstreams: &[UpstreamConfig]) {
        /// The upstream, without `http2`.
        ///
        /// Its position in [`super::Config::upstreams`].
        pub upstream: usize => |field| {
            let name = field.typed("name").text(1..=100)?;
            let at = find_upstream(upstreams, &name, field)?;
            if upstreams[at].http2 {
                let detail = "must be an upstream of HTTP/1.1, without http2";
                return field.fail("invalid_choice", detail);
            }
            Some(at)
        },
        /// Fraction of the requests.
        pub share: f64 = 1.0 => |field| field.number(0.0..=1.0),
        /// Longer bodies are not mirrored.
        pub body_bytes: usize = "64KiB" => memory_size,
        /// Time for a copy.
        ///
        /// From the choice of an address to the end of the response.
        pub timeout: Duration = "5s" => nonzero_duration,
        /// Copies at a time; beyond half, one client address has an eighth.
        ///
        /// Including those whose body is being received. Requests beyond it are not mirrored.
        pub in_flight: usize = 100 => |field| field.integer(1..=100_000),
    }
}
