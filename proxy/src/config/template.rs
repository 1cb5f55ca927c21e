//! Texts with variables, such as `{request_id}`.

use std::fmt;

use http::HeaderValue;
use postern_core::decode::Field;
use strum::{EnumString, IntoStaticStr, VariantNames};

use crate::config::PathPattern;

/// A text with variables in braces. `{{` and `}}` stand for braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Literal texts and variables in their order; two literal texts never follow each other.
    pub parts: Vec<TemplatePart>,
}

/// A part of a [`Template`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplatePart {
    /// Text, with braces unescaped.
    Literal(String),
    /// A variable.
    Variable(Variable),
}

/// A variable of a request. A variable without a value is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Variable {
    /// `{principal}`: the subject of the token; empty on public routes.
    Principal,
    /// `{issuer}`: the issuer of the token; empty on public routes.
    Issuer,
    /// `{request_id}`: the id in `X-Request-Id`.
    RequestId,
    /// `{client_address}`: the IP address of the client, as reported by trusted proxies.
    ClientAddress,
    /// `{host}`: the host that the client has requested, in lower case and without a port.
    Host,
    /// `{port}`: the requested port, or that of the scheme.
    Port,
    /// `{path}`: the path that the client has requested, before a rewrite.
    Path,
    /// `{query}`: a question mark and the query; empty without a query.
    Query,
    /// `{method}`: the request method.
    Method,
    /// `{scheme}`: `https` if the client uses TLS, also to a trusted proxy; otherwise `http`.
    Scheme,
    /// `{route}`: the name of the route.
    Route,
    /// `{upstream}`: the name of the upstream; empty before one is chosen.
    Upstream,
    /// `{path.NAME}`: a parameter of the route's path, as the position of its segment. The value is
    /// percent-encoded as in the path.
    #[strum(serialize = "path.NAME")]
    PathParam(usize),
    /// `{path.*}`: the path that `/*` has matched, without its leading slash. Contains the number
    /// of segments before it.
    #[strum(serialize = "path.*")]
    PathRest(usize),
}

impl Template {
    /// Reads the value of a header field. `path` is the path of the route; `None` in `[defaults]`.
    pub(super) fn read(field: Field<'_>, path: Option<&PathPattern>) -> Option<Self> {
        let text = field.text(1..=4096)?;
        let template = match Self::parse(&text, path) {
            Ok(template) => template,
            Err(detail) => return field.fail("invalid_format", detail),
        };
        let mut literals = template.parts.iter().filter_map(TemplatePart::literal);
        if literals.any(|text| HeaderValue::from_str(text).is_err()) {
            return field.fail("invalid_format", "must be ASCII without control characters");
        }
        Some(template)
    }

    /// Parses a text. `path` is the path of the route, whose parameters may be used.
    ///
    /// # Errors
    /// A message for an unmatched brace or an unknown variable.
    pub(crate) fn parse(text: &str, path: Option<&PathPattern>) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let brace = &rest[at..];
            if let Some(after) = brace.strip_prefix("{{") {
                literal.push('{');
                rest = after;
            } else if let Some(after) = brace.strip_prefix("}}") {
                literal.push('}');
                rest = after;
            } else {
                let (name, after) = brace
                    .strip_prefix('{')
                    .and_then(|rest| rest.split_once('}'))
                    .ok_or("has a brace without its counterpart; {{ and }} stand for braces")?;
                if !literal.is_empty() {
                    parts.push(TemplatePart::Literal(std::mem::take(&mut literal)));
                }
                parts.push(TemplatePart::Variable(Variable::parse(name, path)?));
                rest = after;
            }
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(TemplatePart::Literal(literal));
        }
        Ok(Self { parts })
    }

    pub(crate) fn variables(&self) -> impl Iterator<Item = Variable> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Literal(_) => None,
            TemplatePart::Variable(variable) => Some(*variable),
        })
    }
}

impl TemplatePart {
    fn literal(&self) -> Option<&str> {
        match self {
            Self::Literal(text) => Some(text),
            Self::Variable(_) => None,
        }
    }
}

impl Variable {
    fn parse(name: &str, path: Option<&PathPattern>) -> Result<Self, String> {
        let Some(parameter) = name.strip_prefix("path.") else {
            let all = Self::VARIANTS.join(", ");
            let unknown = format!("has the unknown variable {{{name}}}: must be one of {all}");
            return name.parse().map_err(|_| unknown);
        };
        let path =
            path.ok_or_else(|| format!("has the variable {{{name}}}, which only a route can use"))?;
        if parameter == "*" {
            let rest = path.prefix.then_some(Self::PathRest(path.segments.len()));
            return rest.ok_or_else(|| "has {path.*}, but the path has no *".to_owned());
        }
        path.param(parameter)
            .map(Self::PathParam)
            .ok_or_else(|| format!("has {{{name}}}, but the path has no {{{parameter}}}"))
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}}}", <&str>::from(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_is_split_into_literals_and_variables() {
        let path = PathPattern::parse("/v1/{id}/x/*").expect("a path");
        let parse = |text: &str| Template::parse(text, Some(&path)).map(|template| template.parts);
        let literal = |text: &str| TemplatePart::Literal(text.to_owned());
        let variable = TemplatePart::Variable;
        assert_eq!(parse("a{{b}}c"), Ok(vec![literal("a{b}c")]));
        assert_eq!(
            parse("{{{host}}}:{path.id}{path.*}"),
            Ok(vec![
                literal("{"),
                variable(Variable::Host),
                literal("}:"),
                variable(Variable::PathParam(1)),
                variable(Variable::PathRest(3)),
            ])
        );
        for wrong in "{ } a{host host} {} {Host} {path.none}".split(' ') {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(Template::parse("{path.id}", None).is_err());
        let exact = PathPattern::parse("/a").expect("a path");
        assert!(Template::parse("{path.*}", Some(&exact)).is_err());
    }
}
