//! Nodes of forwarding fields (RFC 7239 section 6), which balancers also write into
//! `X-Forwarded-For`.

use std::net::IpAddr;

/// Parses a node: an address with an optional port, `unknown`, or an obfuscated
/// identifier. Returns `None` if it is none of them.
pub(super) fn parse(text: &str) -> Option<Option<IpAddr>> {
    if text.eq_ignore_ascii_case("unknown") || is_obfuscated(text) {
        return Some(None);
    }
    let (host, port) = match text.rfind(']') {
        Some(end) => text.split_at(end + 1),
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let is_port = match port.strip_prefix(':') {
        Some(port) => is_obfuscated(port) || port.parse::<u16>().is_ok(),
        None => port.is_empty(),
    };
    let bracketed = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let address = match bracketed {
        Some(host) => host.parse().map(IpAddr::V6).ok(),
        None => host.parse().map(IpAddr::V4).ok(),
    };
    match host.to_ascii_lowercase().as_str() {
        "unknown" if is_port => Some(None),
        _ if is_obfuscated(host) && is_port => Some(None),
        _ => address.filter(|_| is_port).map(Some),
    }
}

/// Returns whether the text is an obfuscated identifier: `_` and letters, digits, `.`, `_`, `-`.
fn is_obfuscated(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.len() > 1 && text.starts_with('_') && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_addresses_with_ports_or_no_addresses() {
        let parsed = |text: &str| parse(text).map(|address| address.map(|it| it.to_string()));
        for (text, expected) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("192.0.2.1:80", Some("192.0.2.1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("[2001:db8::1]:8080", Some("2001:db8::1")),
            ("[2001:db8::1]:_x", Some("2001:db8::1")),
            ("unknown", None),
            ("unknown:80", None),
            ("_hidden", None),
        ] {
            assert_eq!(parsed(text), Some(expected.map(str::to_owned)), "{text}");
        }
        for text in [
            "",
            "2001:db8::1",
            "[192.0.2.1]",
            "[2001:db8::1",
            "192.0.2.1:99999",
            "host.example",
            "_",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
