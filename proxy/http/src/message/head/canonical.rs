//! The canonical form of an HTTP/1 head, which is the only one that later stages read: the target
//! in origin form, one `Host`, and none of the fields that `Connection` names.

use std::net::SocketAddr;
use std::ops::Range;

use bytes::BytesMut;
use memchr::memchr;

use crate::message::head::{
    HeadFault, HeadLimits, HeadLines, RequestHead, is_authority, is_server_options,
};
use crate::message::headers;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckedTarget {
    /// Byte range of the `http://authority` or `https://authority` prefix of an absolute target;
    /// empty for any other target.
    prefix: Range<usize>,
    /// Bytes of the scheme with `://`.
    scheme_len: usize,
    /// The path if that of an absolute target is empty: `/`, or `*` for `OPTIONS` without a query
    /// (RFC 9112 section 3.2.4).
    missing_path: &'static str,
}

impl CheckedTarget {
    /// Checks a target in origin form, asterisk form or absolute form (RFC 9112 section 3.2). The
    /// authority of an absolute target must be the same as `Host`.
    pub(super) fn check(
        limits: &HeadLimits,
        line: &[u8],
        range: Range<usize>,
        host: Option<&[u8]>,
    ) -> Result<Self, HeadFault> {
        let (method, target) = (&line[..range.start - 1], &line[range.clone()]);
        let mut checked = Self {
            prefix: range.start..range.start,
            scheme_len: 0,
            missing_path: "",
        };
        if is_server_options(method, target) {
            return Ok(checked);
        }
        if target.starts_with(b"/") {
            limits.check_target(target)?;
            return Ok(checked);
        }
        let (scheme, default_port) = [("http://", ":80"), ("https://", ":443")]
            .into_iter()
            .find(|(scheme, _)| {
                let start = target.get(..scheme.len());
                start.is_some_and(|start| start.eq_ignore_ascii_case(scheme.as_bytes()))
            })
            .ok_or(HeadFault::RequestLine)?;
        let rest = &target[scheme.len()..];
        let is_end = |byte: &u8| matches!(byte, b'/' | b'?');
        let (authority, path) = rest.split_at(rest.iter().position(is_end).unwrap_or(rest.len()));
        match host {
            Some(host) if !is_same_authority(authority, host, default_port) => {
                return Err(HeadFault::Authority);
            }
            None if !is_authority(authority) => return Err(HeadFault::Host),
            Some(_) | None => {}
        }
        checked.scheme_len = scheme.len();
        checked.prefix.end += scheme.len() + authority.len();
        checked.missing_path = match path.first() {
            Some(b'/') => "",
            None if method == b"OPTIONS" => "*",
            Some(_) | None => "/",
        };
        if checked.missing_path != "*" {
            let path = [checked.missing_path.as_bytes(), path].concat();
            limits.check_target(&path)?;
        }
        Ok(checked)
    }
}

/// Returns whether two authorities are the same: the port may be absent or empty if it is that of
/// the scheme (RFC 9110 section 4.2.3).
pub(super) fn is_same_authority(one: &[u8], other: &[u8], default_port: &str) -> bool {
    let [one, other] = [one, other].map(|it| {
        let shortened = it.strip_suffix(default_port.as_bytes());
        shortened.or(it.strip_suffix(b":")).unwrap_or(it)
    });
    one.eq_ignore_ascii_case(other)
}

impl RequestHead {
    /// Returns the canonical form of the checked head; `None` for most, which have it already. A
    /// request without `Host`, which HTTP/1.0 allows, is for the local address of the connection (RFC
    /// 9112 section 3.3).
    pub(crate) fn canonical_form(
        &self,
        head: &[u8],
        local: impl FnOnce() -> Option<SocketAddr>,
    ) -> Option<BytesMut> {
        let prefix = &self.target.prefix;
        if prefix.is_empty() && self.has_host && !self.names_fields {
            return None;
        }
        let mut lines = HeadLines(head);
        let line = lines.next()?;
        let mut canonical = BytesMut::with_capacity(head.len() + 64);
        canonical.extend_from_slice(&line[..prefix.start]);
        canonical.extend_from_slice(self.target.missing_path.as_bytes());
        canonical.extend_from_slice(&line[prefix.end..]);
        if !self.has_host {
            // Without the scope of an IPv6 address, which `Host` cannot have.
            let address = |it: SocketAddr| SocketAddr::new(it.ip(), it.port()).to_string();
            let host = match &line[prefix.start + self.target.scheme_len..prefix.end] {
                b"" => local()
                    .map_or_else(|| "localhost".into(), address)
                    .into_bytes(),
                authority => authority.to_vec(),
            };
            headers::append_field(&mut canonical, "host", &host);
        }
        let named = named_fields(head);
        for line in lines {
            let name = &line[..memchr(b':', line).unwrap_or(0)];
            if !named.iter().any(|named| named.eq_ignore_ascii_case(name)) {
                canonical.extend_from_slice(line);
            }
        }
        Some(canonical)
    }
}

/// Returns the names of fields that `Connection` lists.
fn named_fields(head: &[u8]) -> Vec<&[u8]> {
    let fields = HeadLines(head).filter_map(|line| line.split_at_checked(memchr(b':', line)?));
    fields
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"connection"))
        .flat_map(|(_, value)| headers::options(&value[1..]))
        .filter(|option| !headers::is_known_option(option))
        .collect()
}
