//! Host names: one form in which those of requests, routes and certificates are compared.

use std::borrow::Cow;

/// Maximum length of a host name in bytes, without the final dot (RFC 1035 section 2.3.4).
const MAX_NAME_BYTES: usize = 253;

/// Maximum length of a label in bytes (RFC 1035 section 2.3.4).
const MAX_LABEL_BYTES: usize = 63;

/// Returns whether the text is a host name: labels that are not empty, with or without the final
/// dot of the root. A name that only some servers correct, such as `a..`, could leave the routes of
/// its domain.
pub fn is_host_name(text: &[u8]) -> bool {
    let is_label = |label: &[u8]| {
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && label
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let name = text.strip_suffix(b".").unwrap_or(text);
    name.len() <= MAX_NAME_BYTES && name.split(|byte| *byte == b'.').all(is_label)
}

/// Returns the host of an authority in the form in which hosts are compared: in lower case, without
/// the port and the final dot.
pub fn host_name(authority: &str) -> Cow<'_, str> {
    let host = match authority.rfind(':') {
        Some(colon) if !authority[colon..].contains(']') => &authority[..colon],
        Some(_) | None => authority,
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    match host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(host.to_ascii_lowercase()),
        false => Cow::Borrowed(host),
    }
}

/// Returns the domains that contain a host, the closest first: `b.test` and `test` for `a.b.test`.
/// `*.b.test` of a route means every host below `b.test`.
pub fn domains(host: &str) -> impl Iterator<Item = &str> {
    host.match_indices('.')
        .map(move |(dot, _)| &host[dot + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_name_is_without_port_case_and_final_dot() {
        for (authority, expected) in [
            ("Example.COM", "example.com"),
            ("example.com:8443", "example.com"),
            ("example.com.:8443", "example.com"),
            ("a:", "a"),
            ("[::1]:8443", "[::1]"),
            ("[::1]", "[::1]"),
            ("", ""),
        ] {
            assert_eq!(host_name(authority), expected, "{authority}");
        }
    }

    #[test]
    fn text_that_is_no_host_name_is_refused() {
        let label = "a".repeat(63);
        let name = format!("{label}.{label}.{label}.{}", &label[..61]);
        let long = format!("{name}.");
        for good in ["a", "a.", "A-1.b_c.test", "10.0.0.1", &name, &long] {
            assert!(is_host_name(good.as_bytes()), "{good}");
        }
        let bad = format!("|.|..|.a|a..|a..b|a.b..|a b|a@b|a/b|*.a|é|{label}a|{name}a|{name}a.");
        for bad in bad.split('|') {
            assert!(!is_host_name(bad.as_bytes()), "{bad}");
        }
    }
}
