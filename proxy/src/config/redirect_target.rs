//! Targets of redirects, which must not lead to a host that a client chooses.

use http::HeaderValue;
use postern_core::decode::Field;
use postern_http::message::head::is_authority;

use crate::config::{RoutePattern, Template, TemplatePart, Variable};

/// A template of `Location`: an absolute URL whose host is fixed or one of the route's `hosts`, or a
/// path on the requested host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectTarget(Template);

// === impl RedirectTarget ===

impl RedirectTarget {
    pub(super) fn read(field: Field<'_>, pattern: Option<&RoutePattern>) -> Option<Self> {
        let text = field.text(1..=4096)?;
        // Without a valid route, which is reported by itself, its variables are unknown.
        let pattern = pattern?;
        let parsed = Template::parse(&text, Some(&pattern.path));
        let checked = parsed.and_then(|template| {
            check_characters(&template)?;
            check_variables(&template)?;
            check_host(&template, !pattern.hosts.is_empty())?;
            Ok(Self(template))
        });
        match checked {
            Ok(target) => Some(target),
            Err(detail) => field.fail("invalid_format", detail),
        }
    }

    /// Returns the template.
    pub(crate) fn template(&self) -> &Template {
        &self.0
    }

    /// Returns the field value for an expanded template; `None` if it is neither a path on the
    /// requested host nor an absolute URL. Variables without a value may leave two slashes at the
    /// beginning of a path, which would lead to another host: they are joined.
    pub(crate) fn location(mut expanded: Vec<u8>) -> Option<HeaderValue> {
        let slashes = expanded.iter().take_while(|byte| **byte == b'/').count();
        expanded.drain(..slashes.saturating_sub(1));
        let starts_with = |prefix: &str| expanded.starts_with(prefix.as_bytes());
        let is_reference = starts_with("/") || starts_with("https://") || starts_with("http://");
        // Browsers read a backslash as a slash, except in the query.
        let mut parts = expanded.splitn(2, |byte| *byte == b'?');
        let has_backslash = parts.next().unwrap_or_default().contains(&b'\\');
        let is_uri = expanded.iter().all(|byte| (0x21..0x7f).contains(byte)) && !has_backslash;
        (is_reference && is_uri)
            .then(|| HeaderValue::from_maybe_shared(bytes::Bytes::from(expanded)).ok())
            .flatten()
    }
}

/// Literal text may have the characters of a URI only (RFC 3986 section 2).
fn check_characters(template: &Template) -> Result<(), String> {
    let is_uri_byte =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte);
    let is_good = |part: &TemplatePart| match part {
        TemplatePart::Literal(text) => text.bytes().all(is_uri_byte),
        TemplatePart::Variable(_) => true,
    };
    match template.parts.iter().all(is_good) {
        true => Ok(()),
        false => Err("may contain characters of a URL only".to_owned()),
    }
}

/// The values of other variables may have characters that a URL must not contain.
fn check_variables(template: &Template) -> Result<(), String> {
    let is_allowed = |variable: &Variable| match variable {
        Variable::Host
        | Variable::Path
        | Variable::Query
        | Variable::Scheme
        | Variable::PathParam(_)
        | Variable::PathRest(_) => true,
        Variable::Principal
        | Variable::Issuer
        | Variable::RequestId
        | Variable::ClientAddress
        | Variable::Port
        | Variable::Method
        | Variable::Route
        | Variable::Upstream => false,
    };
    match template.variables().find(|variable| !is_allowed(variable)) {
        None => Ok(()),
        Some(variable) => Err(format!(
            "must not use {variable}: a redirect may use {{scheme}}, {{host}}, {{path}}, {{query}} and {{path.NAME}}"
        )),
    }
}

/// Checks that only the configuration decides on the host. `has_hosts` if the route accepts certain
/// hosts only.
fn check_host(template: &Template, has_hosts: bool) -> Result<(), String> {
    let parts = template.parts.as_slice();
    let (scheme, rest) = match parts {
        [TemplatePart::Variable(Variable::Path), ..] => return Ok(()),
        [TemplatePart::Literal(text), ..] if text.starts_with('/') => return check_path(parts),
        [
            TemplatePart::Variable(Variable::Scheme),
            TemplatePart::Literal(text),
            rest @ ..,
        ] => (text.strip_prefix("://"), rest),
        [TemplatePart::Literal(text), rest @ ..] => {
            let after = text.strip_prefix("https://");
            (after.or_else(|| text.strip_prefix("http://")), rest)
        }
        _ => (None, parts),
    };
    let after_scheme = scheme
        .ok_or("must begin with https://, http://, {scheme}:// or a slash, or with {path}")?;
    if after_scheme.is_empty() {
        return match rest {
            [TemplatePart::Variable(Variable::Host), after @ ..] if has_hosts => check_port(after),
            [TemplatePart::Variable(Variable::Host), ..] => Err(
                "must not use {host} without hosts in the route: the client chooses the host of a \
                 request"
                    .to_owned(),
            ),
            _ => Err("must have a fixed host or {host} after ://".to_owned()),
        };
    }
    let (authority, is_complete) = match after_scheme.find(['/', '?', '#']) {
        Some(end) => (&after_scheme[..end], true),
        None => (after_scheme, false),
    };
    if !is_authority(authority.as_bytes()) {
        return Err("must have a host with an optional port after ://".to_owned());
    }
    match is_complete || starts_path(rest) {
        true => Ok(()),
        false => Err("may have {path}, {query}, a slash or nothing after the host".to_owned()),
    }
}

/// A path must not begin with two slashes, which would be a reference to another host.
fn check_path(parts: &[TemplatePart]) -> Result<(), String> {
    let leaves = match parts {
        [
            TemplatePart::Literal(text),
            TemplatePart::Variable(variable),
            ..,
        ] if text == "/" => {
            matches!(variable, Variable::Path)
        }
        [TemplatePart::Literal(text), ..] => text.starts_with("//"),
        _ => false,
    };
    match leaves {
        true => Err("must not begin with two slashes; {path} has one already".to_owned()),
        false => Ok(()),
    }
}

/// Checks what follows `{host}`: an optional port, and then a path, a query or nothing.
fn check_port(after: &[TemplatePart]) -> Result<(), String> {
    let wrong =
        || Err("may have a port, {path}, {query}, a slash or nothing after {host}".to_owned());
    let (text, rest) = match after {
        [TemplatePart::Literal(text), rest @ ..] => (text.as_str(), rest),
        rest => ("", rest),
    };
    let (port, is_complete) = match text.find(['/', '?', '#']) {
        Some(end) => (&text[..end], true),
        None => (text, false),
    };
    if !port.is_empty() && (!port.starts_with(':') || !is_authority(format!("h{port}").as_bytes()))
    {
        return wrong();
    }
    match is_complete || starts_path(rest) {
        true => Ok(()),
        false => wrong(),
    }
}

/// Returns whether the authority ends here.
fn starts_path(rest: &[TemplatePart]) -> bool {
    matches!(
        rest,
        [] | [TemplatePart::Variable(Variable::Path | Variable::Query), ..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HostPattern, MethodSet, PathPattern};

    fn check(text: &str, has_hosts: bool) -> Result<(), String> {
        let pattern = RoutePattern {
            hosts: has_hosts
                .then(|| HostPattern::Exact("a".to_owned()))
                .into_iter()
                .collect(),
            path: PathPattern::parse("/{id}/*").expect("a path"),
            methods: MethodSet::ALL,
            headers: Vec::new(),
            queries: Vec::new(),
        };
        let template = Template::parse(text, Some(&pattern.path))?;
        check_characters(&template)?;
        check_variables(&template)?;
        check_host(&template, has_hosts)
    }

    #[test]
    fn target_on_a_known_host_is_accepted() {
        for text in [
            "https://example.com",
            "https://example.com:8443{path}{query}",
            "https://example.com/{path.id}",
            "http://example.com?x={path.id}",
            "{path}/{query}",
            "/new/{path.*}{query}",
            "/{path.id}",
            "/{path.*}",
            "/{host}",
        ] {
            assert_eq!(check(text, false), Ok(()), "{text}");
        }
        for text in [
            "https://{host}{path}{query}",
            "{scheme}://{host}:8443{path}",
            "https://{host}",
            "https://{host}/x/{path.*}",
            "https://{host}?a",
        ] {
            assert_eq!(check(text, true), Ok(()), "{text}");
            assert!(check(text, false).is_err(), "{text} without hosts");
        }
    }

    #[test]
    fn target_on_a_host_of_the_client_is_rejected() {
        for text in [
            "{host}",
            "{path.id}",
            "{path.*}",
            "{query}",
            "//evil",
            "//{host}",
            "/{path}",
            "https://{path.id}",
            "https://{path.id}.example.com/",
            "https://example.com{path.id}",
            "https://example.com:{path.id}/",
            "https://example.com@{host}",
            "https://user@example.com",
            "https://",
            "https:///x",
            "https://{host}.evil",
            "https://{host}{path.id}",
            "https://{host}:x/",
            "https://{host}@evil",
            "https://{host}{host}",
            "ftp://example.com",
            "javascript:alert(1)",
            "/a b",
            "/a\\b",
            "/{principal}",
            "/{method}",
            "/{upstream}",
        ] {
            assert!(check(text, true).is_err(), "{text}");
        }
    }

    #[test]
    fn location_does_not_leave_the_host() {
        for (text, location) in [
            ("/a", Some("/a")),
            ("https://a/b?c=d", Some("https://a/b?c=d")),
            ("//evil", Some("/evil")),
            ("///evil//b", Some("/evil//b")),
            ("a", None),
            ("/\\evil", None),
            ("/a\\b?c", None),
            ("/a?b\\c^`", Some("/a?b\\c^`")),
            ("/a\r\nX: y", None),
            ("/\u{e9}", None),
            ("/a b", None),
        ] {
            let found = RedirectTarget::location(text.as_bytes().to_vec());
            let found = found.as_ref().and_then(|value| value.to_str().ok());
            assert_eq!(found, location, "{text}");
        }
    }
}
