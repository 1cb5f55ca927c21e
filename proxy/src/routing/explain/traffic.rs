//! The upstreams and traffic rules of an explained route.

use postern_http::message::proxy_protocol::ProxyProtocolVersion;
use std::fmt::Write;

use crate::config::{Route, UpstreamConfig};

/// Describes the upstreams.
pub(super) fn write_targets(out: &mut String, upstreams: &[&UpstreamConfig], route: &Route) {
    for target in &route.targets {
        let upstream = upstreams[target.upstream];
        let addresses: Vec<String> = upstream.addresses.iter().map(ToString::to_string).collect();
        let weight = target.weight;
        let addresses = addresses.join(", ");
        let header = match upstream.proxy_protocol {
            Some(ProxyProtocolVersion::V1) => ", PROXY protocol v1",
            Some(ProxyProtocolVersion::V2) => ", PROXY protocol v2",
            None => "",
        };
        let host = upstream.host.as_ref().and_then(|host| host.to_str().ok());
        let host = host.map_or(String::new(), |host| format!(", Host {host}"));
        let _memory_only = writeln!(
            out,
            "upstream   {} (weight {weight}): {addresses}{header}{host}",
            upstream.name,
        );
    }
}

/// Describes compression, mirroring and rate limits.
pub(super) fn write_traffic_rules(out: &mut String, upstreams: &[&UpstreamConfig], route: &Route) {
    if let Some(compression) = &route.settings.compression {
        let codings: Vec<&str> = compression
            .algorithms
            .iter()
            .map(|it| it.as_str())
            .collect();
        let _memory_only = writeln!(
            out,
            "compress   {} from {} bytes{}",
            codings.join(", "),
            compression.min_bytes,
            match compression.authenticated {
                true => "",
                false => ", without credentials",
            }
        );
    }
    if let Some(mirror) = &route.mirror {
        let (name, percent) = (&upstreams[mirror.upstream].name, mirror.share * 100.0);
        let _memory_only = writeln!(out, "mirror     {name} ({percent} % of the requests)");
    }
    for limit in &route.settings.limits {
        let _memory_only = writeln!(
            out,
            "rate       {} requests per {:?} by {}{}",
            limit.requests,
            limit.per,
            limit.by.as_str(),
            match limit.report_only {
                true => " (report only)",
                false => "",
            }
        );
    }
}
