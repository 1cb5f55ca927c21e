//! References of responses to the upstream's own paths, on routes that rewrite paths.
//!
//! An upstream does not know the prefix under which it is published, so that its `Location` would
//! lead to a path of another route, or to its internal address.

use std::net::SocketAddr;

use http::header::{CONTENT_LOCATION, HeaderName, LOCATION};
use pingora::Result;
use pingora::http::ResponseHeader;

use crate::config::{PathRewrite, UpstreamAddress};

/// The authorities under which an upstream is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpstreamAuthorities<'a> {
    /// The requested authority, which the upstream has received as `Host` or `X-Forwarded-Host`.
    pub(super) public: &'a str,
    /// The `Host` that it receives instead of the requested one.
    pub(super) host: Option<&'a str>,
    /// The configured addresses.
    pub(super) configured: &'a [UpstreamAddress],
    /// The address that the request was sent to.
    pub(super) connected: Option<SocketAddr>,
}

/// The owner of an authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AuthorityOwner {
    Gateway,
    Upstream,
}

const FIELDS: [HeaderName; 2] = [LOCATION, CONTENT_LOCATION];

/// Rewrites `Location` and `Content-Location`. References to other hosts are not changed.
pub(super) fn rewrite_references(
    response: &mut ResponseHeader,
    rewrite: &PathRewrite,
    authorities: &UpstreamAuthorities<'_>,
) -> Result<()> {
    for name in FIELDS {
        let value = response.headers.get(&name);
        let Some(value) = value.and_then(|value| value.to_str().ok()) else {
            continue;
        };
        if let Some(rewritten) = authorities.rewrite(value, rewrite) {
            response.insert_header(name, rewritten)?;
        }
    }
    Ok(())
}

// === impl UpstreamAuthorities ===

impl UpstreamAuthorities<'_> {
    /// Returns the public form of a reference: a path on the requested host. Returns `None` if the
    /// reference must not be changed.
    fn rewrite(&self, reference: &str, rewrite: &PathRewrite) -> Option<String> {
        // As browsers do before they read a reference (WHATWG URL section 4.4).
        let reference = &*reference.replace('\t', "");
        let (owner, path) = match split_authority(reference) {
            Some((default_port, authority, path)) => (self.owner(authority, default_port)?, path),
            None if reference.starts_with('/') => (AuthorityOwner::Gateway, reference),
            // Relative to the requested path, or of another scheme.
            None => return None,
        };
        let path = match path.starts_with('/') {
            true => path.to_owned(),
            false => format!("/{path}"),
        };
        match rewrite.reverse(&path) {
            Some(public) => Some(on_this_host(&public)),
            None if owner == AuthorityOwner::Upstream => Some(on_this_host(&path)),
            None => None,
        }
    }

    /// Returns the owner of an authority; `None` for other hosts.
    fn owner(&self, authority: &str, default_port: Option<u16>) -> Option<AuthorityOwner> {
        if authority.eq_ignore_ascii_case(self.public) {
            return Some(AuthorityOwner::Gateway);
        }
        if self
            .host
            .is_some_and(|own| own.eq_ignore_ascii_case(authority))
        {
            return Some(AuthorityOwner::Upstream);
        }
        let (host, port) = split_port(authority);
        let port = match port {
            Some(port) => Some(port.parse().ok()?),
            None => default_port,
        };
        let host = host.trim_matches(['[', ']']);
        let is_known = |known: &str, known_port: u16| {
            known.eq_ignore_ascii_case(host) && port.is_none_or(|port| port == known_port)
        };
        let is_configured = self
            .configured
            .iter()
            .any(|address| is_known(address.host.trim_matches(['[', ']']), address.port));
        let is_connected = self
            .connected
            .is_some_and(|address| is_known(&address.ip().to_string(), address.port()));
        (is_configured || is_connected).then_some(AuthorityOwner::Upstream)
    }
}

/// Splits an absolute reference, or one that begins with an authority (RFC 3986 section 4.2), into
/// the default port of its scheme, the authority and the rest.
fn split_authority(reference: &str) -> Option<(Option<u16>, &str, &str)> {
    let strip = |prefix: &str| {
        let start = reference.get(..prefix.len())?;
        start
            .eq_ignore_ascii_case(prefix)
            .then(|| &reference[prefix.len()..])
    };
    let (default_port, rest) = None
        .or_else(|| Some((Some(80), strip("http://")?)))
        .or_else(|| Some((Some(443), strip("https://")?)))
        .or_else(|| Some((None, strip("//")?)))?;
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    Some((default_port, authority, path))
}

fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        Some(_) | None => (authority, None),
    }
}

/// Removes further slashes from the beginning of a path: `//name` would be another host. Browsers
/// read a backslash as a slash.
fn on_this_host(path: &str) -> String {
    format!("/{}", path.trim_start_matches(['/', '\\']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite(strip: &str, add: &str, reference: &str) -> Option<String> {
        let configured = [UpstreamAddress {
            host: "orders.internal".to_owned(),
            port: 80,
            weight: 1,
            kind: crate::config::AddressKind::Host,
        }];
        let authorities = UpstreamAuthorities {
            public: "gate:8500",
            host: Some("app.example.net"),
            configured: &configured,
            connected: Some(([10, 0, 0, 5], 8080).into()),
        };
        let rewrite = PathRewrite {
            strip: strip.to_owned(),
            add: add.to_owned(),
            location: true,
        };
        authorities.rewrite(reference, &rewrite)
    }

    #[test]
    fn reference_to_the_upstream_becomes_a_public_path() {
        for (reference, public) in [
            ("/api/x?y#z", "/v1/x?y#z"),
            ("/api", "/v1"),
            ("/api?y", "/v1?y"),
            ("/api/", "/v1/"),
            ("http://gate:8500/api/x", "/v1/x"),
            ("HTTPS://GATE:8500/api/x", "/v1/x"),
            ("//gate:8500/api/x", "/v1/x"),
            ("http://10.0.0.5:8080/api/x", "/v1/x"),
            ("http://orders.internal/api/x", "/v1/x"),
            ("https://App.example.net/api/x", "/v1/x"),
            ("https://app.example.net/other", "/other"),
            ("http://orders.internal:80/api/x", "/v1/x"),
            // Not below the prefix, but the internal address must not be disclosed.
            ("http://orders.internal/other", "/other"),
            ("http://orders.internal", "/"),
            ("http://orders.internal?a", "/?a"),
        ] {
            assert_eq!(
                rewrite("/v1", "/api", reference).as_deref(),
                Some(public),
                "{reference}"
            );
        }
        assert_eq!(rewrite("/v1", "", "/x").as_deref(), Some("/v1/x"));
        assert_eq!(rewrite("/v1", "", "/").as_deref(), Some("/v1/"));
        assert_eq!(rewrite("", "/api", "/api").as_deref(), Some("/"));
        assert_eq!(rewrite("", "/api", "/api/x").as_deref(), Some("/x"));
    }

    #[test]
    fn other_reference_is_not_changed() {
        for reference in [
            "/apis",
            "/other",
            "x/y",
            "?a",
            "#a",
            "",
            "https://example.com/api/x",
            "https://orders.internal/api/x",
            "http://orders.internal:81/api/x",
            "http://orders.internal@evil/api/x",
            "http://10.0.0.5/api/x",
            "//example.com/api",
            "http://gate:8500/other",
            "mailto:a@b",
        ] {
            assert_eq!(rewrite("/v1", "/api", reference), None, "{reference}");
        }
    }

    #[test]
    fn rewritten_reference_stays_on_the_host() {
        for (reference, public) in [
            ("/api//evil.com", "/evil.com"),
            ("/api/\\evil.com", "/evil.com"),
            ("/api/\t/evil.com", "/evil.com"),
            ("/api\t/\\\t/evil.com", "/evil.com"),
            ("ht\ttp://10.0.0.5:8080/\t/evil.com", "/evil.com"),
            ("http://gate:8500/api/\t\\evil.com", "/evil.com"),
            ("/\t/10.0.0.5:8080/api/\t/evil.com", "/evil.com"),
            ("http://10.0.0.5:8080//evil.com", "/evil.com"),
        ] {
            assert_eq!(
                rewrite("", "/api", reference).as_deref(),
                Some(public),
                "{reference}"
            );
        }
    }
}
