//! The values of the variables of a [`Template`].

use std::io::Write;
use std::net::IpAddr;

use postern_core::token::Caller;
use postern_http::message::host::host_name;
use uuid::Uuid;

use crate::config::{Template, TemplatePart, Variable};

/// A request, as far as variables refer to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestVariables<'a> {
    pub(crate) request_id: Uuid,
    pub(crate) client_address: Option<IpAddr>,
    /// The requested authority, with or without a port.
    pub(crate) authority: &'a str,
    pub(crate) path: &'a str,
    /// The query without the `?`.
    pub(crate) query: Option<&'a str>,
    pub(crate) method: &'a str,
    pub(crate) is_tls: bool,
    pub(crate) route: &'a str,
    /// The name of the upstream; empty before one is chosen.
    pub(crate) upstream: &'a str,
    pub(crate) caller: Option<&'a Caller>,
}

impl RequestVariables<'_> {
    /// Returns the text of a template. It may contain any byte that the subject of a token can
    /// contain; the caller must check it.
    pub(crate) fn expand(&self, template: &Template) -> Vec<u8> {
        let mut text = Vec::new();
        for part in &template.parts {
            match part {
                TemplatePart::Literal(literal) => text.extend_from_slice(literal.as_bytes()),
                TemplatePart::Variable(variable) => self.append(*variable, &mut text),
            }
        }
        text
    }

    fn append(&self, variable: Variable, text: &mut Vec<u8>) {
        let value = match variable {
            Variable::Principal => self.caller.map_or("", Caller::subject),
            Variable::Issuer => self.caller.map_or("", Caller::issuer),
            Variable::RequestId => {
                let mut id = Uuid::encode_buffer();
                let id = self.request_id.hyphenated().encode_lower(&mut id);
                text.extend_from_slice(id.as_bytes());
                return;
            }
            Variable::ClientAddress => {
                if let Some(address) = self.client_address {
                    let _memory_only = write!(text, "{address}");
                }
                return;
            }
            Variable::Host => {
                text.extend_from_slice(host_name(self.authority).as_bytes());
                return;
            }
            Variable::Port => match self.authority.rsplit_once(':') {
                Some((_, port)) if !port.is_empty() && !port.contains(']') => port,
                Some(_) | None if self.is_tls => "443",
                Some(_) | None => "80",
            },
            Variable::Path => self.path,
            Variable::Query => {
                let Some(query) = self.query else { return };
                text.push(b'?');
                query
            }
            Variable::Method => self.method,
            Variable::Scheme if self.is_tls => "https",
            Variable::Scheme => "http",
            Variable::Route => self.route,
            Variable::Upstream => self.upstream,
            Variable::PathParam(at) => {
                let mut segments = self.path.split('/').skip(1);
                segments.nth(at).unwrap_or_default()
            }
            Variable::PathRest(count) => self
                .path
                .splitn(count + 2, '/')
                .nth(count + 1)
                .unwrap_or_default(),
        };
        text.extend_from_slice(value.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PathPattern;

    fn expand(text: &str, pattern: &str, path: &str) -> String {
        let variables = RequestVariables {
            request_id: Uuid::nil(),
            client_address: Some(IpAddr::from([10, 0, 0, 7])),
            authority: "Example.COM:8443",
            path,
            query: Some("a=b"),
            method: "GET",
            is_tls: true,
            route: "one",
            upstream: "two",
            caller: None,
        };
        let pattern = PathPattern::parse(pattern).expect("a path");
        let template = Template::parse(text, Some(&pattern)).expect("a template");
        String::from_utf8(variables.expand(&template)).expect("text")
    }

    #[test]
    fn variables_have_the_values_of_the_request() {
        for (text, pattern, path, expanded) in [
            ("[{principal}{issuer}]", "/*", "/", "[]"),
            ("{host}:{port}", "/*", "/", "example.com:8443"),
            (
                "{path.id}-{path.*}",
                "/v/{id}/*",
                "/v/%C3%A9/b/c/",
                "%C3%A9-b/c/",
            ),
            ("{path.*}", "/v/*", "/v/", ""),
            ("{path.*}", "/*", "/", ""),
            ("{path.*}", "/*", "/x", "x"),
        ] {
            assert_eq!(expand(text, pattern, path), expanded, "{text}");
        }
    }
}
