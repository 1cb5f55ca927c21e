//! `addresses` of an upstream.

use std::fmt;

use postern_core::decode::Field;
use postern_http::message::head::is_authority;
use serde_json::json;

/// A host and port, or a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamAddress {
    /// An IP address, a name, or a path.
    pub host: String,
    /// The port; 0 for Unix sockets.
    pub port: u16,
    /// What `host` is.
    pub kind: AddressKind,
}

/// The kind of an [`UpstreamAddress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressKind {
    /// An IP address, or a DNS name that is resolved in the background.
    Host,
    /// The path of a Unix socket, written as `unix:/path`.
    Unix,
}

/// The prefix of an address that is the path of a Unix socket.
const UNIX_SCHEME: &str = "unix:";

/// Maximum bytes of the path of a Unix socket (unix(7)).
const MAX_SOCKET_PATH_BYTES: usize = 107;

impl UpstreamAddress {
    /// Reads `"host:port"` or `"unix:/path"`.
    pub(super) fn read(field: Field<'_>) -> Option<Self> {
        let form = || json!({ "type": "string", "pattern": "^(unix:/.+|.+:[0-9]+)$" });
        let parsed = Self::parse(field.string_as(form)?);
        parsed.map_or_else(|detail| field.fail("invalid_format", detail), Some)
    }

    const FORMAT: &str =
        "must be an address such as 127.0.0.1:8501, auth.internal:8501 or unix:/run/auth.sock";

    /// Parses `host:port` or `unix:/path`.
    ///
    /// # Errors
    /// A description of the mistake.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let address = |kind, host: &str, port| Self {
            host: host.to_owned(),
            port,
            kind,
        };
        if let Some(path) = text.strip_prefix(UNIX_SCHEME) {
            let is_path = path.starts_with('/') && path.len() <= MAX_SOCKET_PATH_BYTES;
            let address = is_path.then(|| address(AddressKind::Unix, path, 0));
            return address.ok_or("must have an absolute path of at most 107 bytes after unix:");
        }
        if text.contains("://") {
            return Err(
                "must be host:port, without a scheme: TLS is on with the table tls of the upstream",
            );
        }
        let (host, port) = match text.rsplit_once(':') {
            _ if !is_authority(text.as_bytes()) => return Err(Self::FORMAT),
            Some((host, port)) if !port.ends_with(']') => (host, port),
            Some(_) | None => return Err("must have a port, such as 127.0.0.1:8501"),
        };
        let port = port.parse().ok().filter(|port| *port > 0);
        let port = port.ok_or("must have a port from 1 to 65535")?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(address(AddressKind::Host, host, port))
    }

    /// Returns the name that a certificate of the address must have, unless another one is
    /// configured.
    #[must_use]
    pub fn server_name(&self) -> &str {
        match self.kind {
            AddressKind::Host => &self.host,
            AddressKind::Unix => "localhost",
        }
    }
}

impl fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            AddressKind::Unix => write!(f, "{UNIX_SCHEME}{}", self.host),
            AddressKind::Host if self.host.contains(':') => {
                write!(f, "[{}]:{}", self.host, self.port)
            }
            AddressKind::Host => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        for (text, host, port, kind) in [
            ("127.0.0.1:80", "127.0.0.1", 80, AddressKind::Host),
            ("[::1]:80", "::1", 80, AddressKind::Host),
            ("name.internal:80", "name.internal", 80, AddressKind::Host),
            ("unix:/run/app.sock", "/run/app.sock", 0, AddressKind::Unix),
        ] {
            let address = UpstreamAddress::parse(text).expect(text);
            assert_eq!((address.host.as_str(), address.port), (host, port));
            assert_eq!(address.kind, kind);
            assert_eq!(address.to_string(), text);
        }
        for (text, wrong) in [
            ("srv://a", "without a scheme"),
            ("a", "must have a port"),
            ("[::1]", "must have a port"),
            ("a:0", "1 to 65535"),
            ("a:b", "an address such as"),
            (":80", "an address such as"),
            ("http://10.0.0.5:3000", "without a scheme"),
            ("unix:app.sock", "absolute path"),
            ("unix:", "absolute path"),
        ] {
            let said = UpstreamAddress::parse(text).expect_err(text);
            assert!(said.contains(wrong), "{text}: {said}");
        }
    }
}
