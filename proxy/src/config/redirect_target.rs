//! Targets of redirects, which must not lead to a host that a client chooses.

use http::HeaderValue;
use postern_core::decode::Field;
use url::Url;

use crate::config::{RoutePattern, Template, TemplatePart, Variable};

/// A template of `Location`: an absolute URL whose host is fixed or one of the route's `hosts`, or a
/// path on the requested host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectTarget(Template);

impl RedirectTarget {
    pub(super) fn read(field: Field<'_>, pattern: Option<&RoutePattern>) -> Option<Self> {
        let text = field.text(1..=4096)?;
        // Without a valid route, which is reported by itself, its variables are unknown.
        let pattern = pattern?;
        let parsed = Template::parse(&text, Some(&pattern.path));
        let checked = parsed.and_then(|template| {
            check_variables(&template)?;
            check_host(&template, !pattern.hosts.is_empty())?;
            Ok(Self(template))
        });
        match checked {
            Ok(target) => Some(target),
            Err(detail) => field.fail("invalid_format", detail),
        }
    }

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

/// The values of other variables may have characters that a URL must not contain.
fn check_variables(template: &Template) -> Result<(), String> {
    let is_allowed = |variable: &Variable| {
        matches!(
            variable,
            Variable::Host
                | Variable::Path
                | Variable::Query
                | Variable::Scheme
                | Variable::PathParam(_)
                | Variable::PathRest(_)
        )
    };
    match template.variables().find(|variable| !is_allowed(variable)) {
        None => Ok(()),
        Some(variable) => Err(format!(
            "must not use {variable}: a redirect may use {{scheme}}, {{host}}, {{path}}, {{query}} and {{path.NAME}}"
        )),
    }
}

/// Checks that no variable but `{host}`, as a whole, has a part in the host: the target is expanded
/// with two sets of values.
fn check_host(template: &Template, has_hosts: bool) -> Result<(), String> {
    let expanded = ["a", "b"].map(|value| host_of(template, value));
    match &expanded {
        [Some(one), Some(other)] if one == other => Ok(()),
        [Some(one), Some(other)] if one == "a.test" && other == "b.test" => match has_hosts {
            true => Ok(()),
            false => Err(
                "must not use {host} without hosts in the route: the client chooses the host of a \
                 request"
                    .to_owned(),
            ),
        },
        _ => Err(
            "must be a URL that begins with a slash, with {path}, or with a scheme and a host, which \
             is fixed or {host}; then a port, {path}, {query} or a slash may follow"
                .to_owned(),
        ),
    }
}

/// Returns the host of the target for a request to the host `VALUE.test` whose path, parameters and
/// query are `value`; `None` if it is no URL, has user information, or begins with two slashes.
fn host_of(template: &Template, value: &str) -> Option<String> {
    let part = |part: &TemplatePart| match part {
        TemplatePart::Literal(text) => text.clone(),
        TemplatePart::Variable(Variable::Host) => format!("{value}.test"),
        TemplatePart::Variable(Variable::Scheme) => "https".to_owned(),
        TemplatePart::Variable(Variable::Path) => format!("/{value}"),
        TemplatePart::Variable(Variable::Query) => format!("?{value}"),
        TemplatePart::Variable(_) => value.to_owned(),
    };
    let text: String = template.parts.iter().map(part).collect();
    RedirectTarget::location(text.clone().into_bytes())?;
    let rest = text.strip_prefix("https://");
    let rest = rest.or_else(|| text.strip_prefix("http://"));
    let is_target = match rest {
        Some(rest) => !rest.starts_with('/'),
        None => text.starts_with('/') && !text.starts_with("//"),
    };
    let requested = Url::parse("https://requested.test").ok()?;
    let url = requested.join(&text).ok().filter(|_| is_target)?;
    let has_user = !url.username().is_empty() || url.password().is_some();
    url.host_str().filter(|_| !has_user).map(str::to_owned)
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
        check_variables(&template)?;
        check_host(&template, has_hosts)
    }

    #[test]
    fn target_on_a_known_host_is_accepted() {
        let texts = "https://example.com https://example.com:8443{path}{query} \
            https://example.com/{path.id} http://example.com?x={path.id} {path}/{query} \
            /new/{path.*}{query} /{path.id} /{path.*} /{host}";
        for text in texts.split(' ') {
            assert_eq!(check(text, false), Ok(()), "{text}");
        }
        let texts = "https://{host}{path}{query} {scheme}://{host}:8443{path} https://{host} \
            https://{host}/x/{path.*} https://{host}?a";
        for text in texts.split(' ') {
            assert_eq!(check(text, true), Ok(()), "{text}");
            assert!(check(text, false).is_err(), "{text} without hosts");
        }
    }

    #[test]
    fn target_on_a_host_of_the_client_is_rejected() {
        let texts = "{host} {path.id} {path.*} {query} //evil //{host} /{path} https://{path.id} \
            https://{path.id}.example.com/ https://example.com{path.id} \
            https://example.com:{path.id}/ https://example.com@{host} https://user@example.com \
            https:// https:///x https://{host}.evil https://{host}{path.id} https://{host}:x/ \
            https://{host}@evil https://{host}{host} ftp://example.com javascript:alert(1) \
            /{principal} /{method} /{upstream}";
        for text in texts.split(' ').chain(["/a b", "/a\\b"]) {
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
