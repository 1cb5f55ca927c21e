//! `[route.mirror]`: copies of requests to a second upstream.

use std::time::Duration;

use postern_core::decode::Object;

use crate::config::upstream::find_upstream;
use crate::config::{UpstreamConfig, memory_size, nonzero_duration};

/// Copies of the requests of a route, whose responses are discarded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MirrorConfig {
    /// Position in [`super::Config::upstreams`]; an upstream of HTTP/1.1.
    pub upstream: usize,
    /// Fraction of the requests that are mirrored; default 1.
    pub share: f64,
    /// Maximum bytes of a request body; default 64 KiB. A request with a longer body is not
    /// mirrored.
    pub body_bytes: usize,
    /// Time from the choice of an address to the end of the response; default 5 s.
    pub timeout: Duration,
    /// Maximum mirrored requests at a time, including those whose body is being received; default
    /// 100. Requests beyond it are not mirrored.
    pub in_flight: usize,
}

impl MirrorConfig {
    pub(super) fn read(section: &Object<'_>, upstreams: &[UpstreamConfig]) -> Option<Self> {
        let upstream = section.required("upstream", |field| {
            let name = field.text(1..=100)?;
            let at = find_upstream(upstreams, &name, field)?;
            if upstreams[at].http2 {
                let detail = "must be an upstream of HTTP/1.1, without http2";
                return field.fail("invalid_choice", detail);
            }
            Some(at)
        });
        Some(Self {
            share: section.or("share", 1.0, |field| field.number(0.0..=1.0)),
            body_bytes: section.or("body_bytes", 64 << 10, memory_size),
            timeout: section.or("timeout", Duration::from_secs(5), nonzero_duration),
            in_flight: section.or("in_flight", 100, |field| field.integer(1..=100_000)),
            upstream: upstream?,
        })
    }
}
