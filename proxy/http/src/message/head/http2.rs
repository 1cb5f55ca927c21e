//! The check of an HTTP/2 request head (RFC 9113 section 8), with the same rules as for HTTP/1.

use http::header::{CONTENT_LENGTH, COOKIE, HOST};
use http::request::Parts;

use crate::message::head::canonical::is_same_authority;
use crate::message::head::{HeadFault, HeadLimits, is_authority, is_server_options};
use crate::message::headers;

/// Checks a head that the HTTP/2 layer has decoded. That layer rejects connection-specific fields.
///
/// # Errors
/// The first fault.
pub fn check(head: &Parts, limits: &HeadLimits) -> Result<(), HeadFault> {
    // The parts of a split cookie (section 8.2.3) count as one field.
    let crumbs = head
        .headers
        .get_all(COOKIE)
        .iter()
        .count()
        .saturating_sub(1);
    if head.headers.len() - crumbs > limits.fields || size(head) > limits.bytes {
        return Err(HeadFault::TooLarge);
    }
    let method = head.method.as_str().as_bytes();
    if method == b"CONNECT" || method.len() > 32 || !headers::is_token(method) {
        return Err(HeadFault::RequestLine);
    }
    let target = head
        .uri
        .path_and_query()
        .map(|target| target.as_str())
        .unwrap_or_default();
    if target.len() > limits.target {
        return Err(HeadFault::TargetTooLong);
    }
    if !is_server_options(method, target.as_bytes()) {
        limits.check_target(target.as_bytes())?;
    }
    check_scheme(head)?;
    check_authority(head)?;
    check_fields(head)
}

/// Returns the size of the head in HTTP/1 representation, in bytes.
fn size(head: &Parts) -> usize {
    let target = head
        .uri
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    let host = head
        .uri
        .authority()
        .map_or(0, |authority| "host: \r\n".len() + authority.as_str().len());
    let fields = head
        .headers
        .iter()
        .map(|(name, value)| name.as_str().len() + ": \r\n".len() + value.len());
    head.method.as_str().len() + target + "  HTTP/1.1\r\n\r\n".len() + host + fields.sum::<usize>()
}

/// Checks that the scheme is `http` or `https` (section 8.3.1). The HTTP/2 layer drops the scheme
/// of a head without `:authority`.
fn check_scheme(head: &Parts) -> Result<(), HeadFault> {
    let is_http = |scheme: &str| {
        ["http", "https"]
            .iter()
            .any(|known| scheme.eq_ignore_ascii_case(known))
    };
    if head.uri.scheme_str().is_none_or(is_http) {
        Ok(())
    } else {
        Err(HeadFault::Scheme)
    }
}

/// Checks that there is one authority, in `:authority` or in `Host`; if both are present, they must
/// be the same (section 8.3.1).
fn check_authority(head: &Parts) -> Result<(), HeadFault> {
    let authority = head
        .uri
        .authority()
        .map(|authority| authority.as_str().as_bytes());
    let mut hosts = head
        .headers
        .get_all(HOST)
        .iter()
        .map(|host| host.as_bytes());
    let (host, more) = (hosts.next(), hosts.next());
    let only = authority.or(host).ok_or(HeadFault::Host)?;
    if more.is_some() || !is_authority(only) {
        return Err(HeadFault::Host);
    }
    let default_port = match head.uri.scheme_str() {
        Some("http") => ":80",
        Some(_) | None => ":443",
    };
    match host {
        Some(host) if !is_same_authority(host, only, default_port) => Err(HeadFault::Authority),
        Some(_) | None => Ok(()),
    }
}

fn check_fields(head: &Parts) -> Result<(), HeadFault> {
    if !head
        .headers
        .keys()
        .all(|name| headers::is_token(name.as_str().as_bytes()))
    {
        return Err(HeadFault::Field);
    }
    let mut lengths = head
        .headers
        .get_all(CONTENT_LENGTH)
        .iter()
        .map(|length| length.as_bytes());
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(()),
        (Some(one), None)
            if (1..=18).contains(&one.len()) && one.iter().all(u8::is_ascii_digit) =>
        {
            Ok(())
        }
        (Some(_), _) => Err(HeadFault::Framing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    const LIMITS: HeadLimits = HeadLimits {
        bytes: 4096,
        fields: 8,
        target: 64,
        ambiguous_paths: false,
    };

    fn verdict(method: &str, uri: &str, fields: &[(&str, &str)]) -> Result<(), HeadFault> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("a request");
        check(&request.into_parts().0, &LIMITS)
    }

    #[test]
    fn ambiguous_authority_or_target_is_rejected() {
        use HeadFault::{Authority, Host, RequestLine, Scheme};
        for (method, uri, hosts, expected) in [
            ("GET", "https://a.b:85/x?y", &["A.b:85"][..], Ok(())),
            ("GET", "/x", &["a"], Ok(())),
            ("GET", "https://a:443/x", &["a"], Ok(())),
            ("GET", "https://a:80/x", &["a"], Err(Authority)),
            ("GET", "/x", &[], Err(Host)),
            ("GET", "https://u@a/x", &[], Err(Host)),
            ("GET", "https://a..b/x", &[], Err(Host)),
            ("GET", "https://.a/x", &[], Err(Host)),
            ("GET", "https://a/x", &["a", "a"], Err(Host)),
            ("GET", "https://a/x", &["b"], Err(Authority)),
            ("CONNECT", "a:443", &[], Err(RequestLine)),
            ("GET", "ftp://a/x", &[], Err(Scheme)),
            ("OPTIONS", "*", &["a"], Ok(())),
        ] {
            let fields: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            assert_eq!(verdict(method, uri, &fields), expected, "{method} {uri}");
        }
        let targets = "* https://a/x//y https://a/%2e%2e/x https://a/x;y https://a/%6fpen";
        for target in targets.split(' ') {
            let host = [("host", "a")];
            let found = verdict("GET", target, &host);
            assert!(matches!(found, Err(HeadFault::Target(_))), "{target}");
        }
    }

    #[test]
    fn cookies_are_one_field_and_lengths_are_strict() {
        let crumb = "c".repeat(100);
        // Parts of one cookie field.
        assert_eq!(
            verdict("GET", "https://a/", &[("cookie", "a=b"); 40]),
            Ok(())
        );
        let crumbs = verdict("GET", "https://a/", &[("cookie", crumb.as_str()); 41]);
        assert_eq!(crumbs, Err(HeadFault::TooLarge));
        let length = [("content-length", "12")];
        assert_eq!(verdict("GET", "https://a/", &length), Ok(()));
        for lengths in ["1|1", "1, 1", "+1", "", "9999999999999999999"] {
            let fields = lengths.split('|').map(|length| ("content-length", length));
            let found = verdict("POST", "https://a/", &fields.collect::<Vec<_>>());
            assert_eq!(found, Err(HeadFault::Framing), "{lengths}");
        }
    }
}
