//! The `explain` command: describes the route and the decision of a request.

use std::fmt::Write;
use std::net::IpAddr;

use http::HeaderMap;
use postern_core::token::{Caller, User};
use postern_http::message::head::{HeadFault, is_authority};
use postern_http::message::target::RequestTarget;

use crate::certificates::principal_caller;
use crate::config::{CallerRules, RoutePolicy};
use crate::config::{CertificatePrincipal, PathPattern, PathSegment};
use crate::config::{Config, Route, RouteAnswer, TestToken, UpstreamConfig};
use crate::routing::decision::{access_list, decide, is_public};
use crate::routing::listing;
use crate::routing::outcome::Outcome;
use crate::routing::route_tests::caller_for;
use crate::routing::router::RouteRequest;
use crate::routing::table::{RouteMatch, RouteTable};
use crate::routing::variables::RequestVariables;

/// The caller of the request to explain.
#[derive(Clone, Debug)]
pub enum CallerSource {
    /// An assumed caller, as in a route test.
    Assumed(TestToken),
    /// The service of a client certificate, without a token.
    Certificate(CertificatePrincipal),
    /// The caller of a verified token.
    Verified(Caller),
    /// A token that was rejected, with the problem code.
    Rejected(&'static str),
}

/// Describes the route of a request, the reason for the match, the policy decision and the
/// forwarded request. `address` is that of the client; `None` if it is unknown.
#[must_use]
pub fn explain(
    config: &Config,
    method: &str,
    url: &str,
    headers: &HeaderMap,
    sender: &CallerSource,
    address: Option<IpAddr>,
) -> String {
    let table = RouteTable::new(config.routes.clone());
    let upstreams: Vec<&UpstreamConfig> = config.upstreams.iter().collect();
    let request = ExplainedRequest {
        method,
        url,
        headers,
        address,
    };
    explain_in(&table, &upstreams, &request, sender)
}

/// A request to explain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExplainedRequest<'r> {
    /// The method.
    pub(crate) method: &'r str,
    /// The path, or an absolute URL.
    pub(crate) url: &'r str,
    /// The header fields.
    pub(crate) headers: &'r HeaderMap,
    /// The client address; `None` if it is unknown.
    pub(crate) address: Option<IpAddr>,
}

/// Describes a request as [`explain`] does, with the routes of `table`, whose targets are positions
/// in `upstreams`.
pub(crate) fn explain_in(
    table: &RouteTable,
    upstreams: &[&UpstreamConfig],
    explained: &ExplainedRequest<'_>,
    sender: &CallerSource,
) -> String {
    let ExplainedRequest {
        method,
        url,
        headers,
        address,
    } = *explained;
    let mut out = String::new();
    let (host, target) = split_url(url);
    let _memory_only = writeln!(out, "request    {method} {target} (Host: {host})");
    let target = RequestTarget::parse_ambiguous(target.as_bytes());
    let parsed = target.map_err(HeadFault::Target).and_then(|target| {
        is_host(host)?;
        let request = RouteRequest {
            host,
            path: target.path,
            query: target.query,
            method,
            headers,
        };
        let found = table.find_target(&request, &target);
        Ok((request, found.map_err(HeadFault::Target)?))
    });
    let (request, found) = match parsed {
        Ok(parsed) => parsed,
        Err(fault) => {
            let (code, why) = (fault.code().as_str(), fault.detail());
            let _memory_only = writeln!(out, "decision   400 {code}\nwhy        {why}");
            return out;
        }
    };
    if let Some((_, route)) = Outcome::of_preflight(table, &request, found) {
        match route {
            Some(index) => write_route(&mut out, upstreams, &table.routes[index], request.path),
            None => out.push_str("route      none of the announced request\n"),
        }
        out.push_str("decision   respond 204 preflight request, no caller is asked\n");
        return out;
    }
    match found {
        RouteMatch::Route(index) => {
            write_route(&mut out, upstreams, &table.routes[index], request.path);
        }
        RouteMatch::MethodNotAllowed { allow, .. } => {
            let allow = allow.allow();
            let _memory_only =
                writeln!(out, "route      none: the path is known, for {allow} only");
        }
        RouteMatch::NotFound => out.push_str("route      none: no path matches\n"),
    }
    write_access(&mut out, table, found, address);
    let variables = request.explained(url.starts_with("https://"), address);
    write_decision(&mut out, table, found, &variables, sender);
    out
}

fn write_route(out: &mut String, upstreams: &[&UpstreamConfig], route: &Route, path: &str) {
    let _memory_only = writeln!(
        out,
        "route      {}: {} {}",
        route.name, route.pattern.methods, route.pattern.path.template
    );
    let matched = describe_match(&route.pattern.path, path);
    let _memory_only = writeln!(out, "why        the most specific match: {matched}");
    for condition in route.pattern.headers.iter().chain(&route.pattern.queries) {
        let _memory_only = writeln!(out, "           with {}", condition.name);
    }
    let _memory_only = writeln!(out, "policy     {}", describe_policy(&route.policy));
    for target in &route.targets {
        let upstream = upstreams[target.upstream];
        let addresses: Vec<String> = upstream.addresses.iter().map(ToString::to_string).collect();
        let host = upstream.host.as_ref().and_then(|host| host.to_str().ok());
        let _memory_only = writeln!(
            out,
            "upstream   {} (weight {}): {}{}",
            upstream.name,
            target.weight,
            addresses.join(", "),
            host.map_or(String::new(), |host| format!(", Host {host}"))
        );
    }
    if let Some(mirror) = &route.mirror {
        let (name, percent) = (&upstreams[mirror.upstream].name, mirror.share * 100.0);
        let _memory_only = writeln!(out, "mirror     {name} ({percent} % of the requests)");
    }
    if let Some(rewrite) = &route.rewrite {
        let forwarded = rewrite.apply(path.as_bytes());
        let _memory_only = writeln!(out, "forwarded  {}", String::from_utf8_lossy(&forwarded));
    }
    for (name, changes) in [
        ("request ", &route.settings.request_headers),
        ("response", &route.settings.response_headers),
    ] {
        if let Some(changes) = changes {
            let _memory_only = writeln!(out, "headers    {name}: {changes}");
        }
    }
    if let Some(cors) = &route.settings.cors {
        let origins: Vec<String> = cors.origins.iter().map(ToString::to_string).collect();
        let _memory_only = writeln!(out, "origins    {}", origins.join(", "));
    }
    let _memory_only = writeln!(out, "limits     {}", listing::limits(route).join(", "));
}

fn describe_match(pattern: &PathPattern, path: &str) -> String {
    let parts = pattern.segments.iter().zip(path[1..].split('/'));
    let parts = parts.map(|(segment, text)| describe_segment(segment, text));
    let mut all = parts.collect::<Vec<_>>().join(", ");
    if pattern.prefix {
        all.push_str(" and everything below");
    }
    if pattern.ignore_case {
        all.push_str(", in any case");
    }
    all
}

fn describe_segment(segment: &PathSegment, text: &str) -> String {
    match segment {
        PathSegment::Literal(literal) => format!("\"{literal}\""),
        PathSegment::Param(name) => format!("{{{name}}} is {text}"),
    }
}

/// Describes the policy of a route.
pub(super) fn describe_policy(policy: &RoutePolicy) -> String {
    let RoutePolicy::Protected(CallerRules {
        users,
        services,
        report_only,
    }) = policy
    else {
        return "public".to_owned();
    };
    let mut all = Vec::new();
    if let Some(rule) = users {
        all.push("users".to_owned());
        all.extend(
            rule.owner
                .as_ref()
                .map(|owner| format!("whose subject is {{{}}}", owner.param)),
        );
        all.extend((!rule.groups.is_empty()).then(|| {
            let or = if rule.owner.is_some() { "or " } else { "" };
            format!("{or}in one of the groups {}", rule.groups.join(", "))
        }));
        all.extend(
            (!rule.scopes.is_empty())
                .then(|| format!("with the scopes {}", rule.scopes.join(", "))),
        );
        all.extend(
            rule.claims
                .iter()
                .map(|(name, value)| format!("with {name} = {value}")),
        );
    }
    if let Some(rule) = services {
        let names = rule
            .allow
            .as_ref()
            .map_or_else(|| "any".to_owned(), |allow| allow.join(", "));
        all.push(format!(
            "{}services: {names}",
            if users.is_some() { "or " } else { "" }
        ));
        all.extend(
            (!rule.scopes.is_empty())
                .then(|| format!("with the scopes {}", rule.scopes.join(", "))),
        );
    }
    if *report_only {
        all.push("(report only)".to_owned());
    }
    all.join(" ")
}

fn write_access(out: &mut String, table: &RouteTable, found: RouteMatch, address: Option<IpAddr>) {
    let Some(list) = access_list(table, found) else {
        return;
    };
    let client = match address {
        Some(address) => address.to_string(),
        None => "an unknown address (see --client-address)".to_owned(),
    };
    let verb = if list.accepts(address) {
        "accepts"
    } else {
        "refuses"
    };
    let _memory_only = writeln!(out, "access     {list}: {verb} {client}");
}

fn write_decision(
    out: &mut String,
    table: &RouteTable,
    found: RouteMatch,
    variables: &RequestVariables<'_>,
    sender: &CallerSource,
) {
    let caller = match sender {
        // No token is verified.
        _ if is_public(table, found) => None,
        CallerSource::Assumed(token) => caller_for(token),
        CallerSource::Certificate(principal) => Some(principal_caller(principal, i64::MAX)),
        CallerSource::Verified(caller) => Some(caller.clone()),
        CallerSource::Rejected(code) => {
            let _memory_only = writeln!(
                out,
                "caller     the token is refused\ndecision   401 {code}"
            );
            return;
        }
    };
    let _memory_only = match &caller {
        None if is_public(table, found) => {
            writeln!(out, "caller     not asked: the route is public")
        }
        None => writeln!(out, "caller     no token"),
        Some(Caller::User(user)) => writeln!(out, "caller     user {}", user.subject),
        Some(Caller::Service(service)) => {
            writeln!(out, "caller     service {}", service.service_id)
        }
    };
    let address = variables.client_address;
    let (at, mut reported) = ((found, variables.path), None);
    let decision = decide(table, at, caller.as_ref(), address, |refused| {
        reported.get_or_insert(refused.code);
    });
    if let Some(code) = reported {
        let _memory_only = writeln!(
            out,
            "reported   {} {}: counted and logged, not rejected",
            code.status().as_u16(),
            code.as_str()
        );
    }
    let _memory_only = match Outcome::of(table, variables, &decision) {
        Outcome::Forwarded => writeln!(
            out,
            "decision   allow\nadds       {}",
            added_headers(caller.as_ref())
        ),
        Outcome::Answered(answer, location) => writeln!(
            out,
            "decision   {} {} {}",
            answer.decision(),
            answer.status().as_u16(),
            location.unwrap_or_else(|| describe_response(answer))
        ),
        Outcome::Preflight => Ok(()),
        Outcome::Rejected(code) => writeln!(
            out,
            "decision   {} {}: {}",
            code.status().as_u16(),
            code.as_str(),
            code.title()
        ),
    };
}

/// Describes the body of a fixed response.
fn describe_response(answer: &RouteAnswer) -> String {
    let RouteAnswer::Respond(response) = answer else {
        return String::new();
    };
    let content_type = response.content_type.as_ref();
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or("no body");
    format!("{content_type}, {} bytes", response.body.len())
}

/// Returns the header fields that the gateway adds for this caller.
fn added_headers(caller: Option<&Caller>) -> String {
    let always = "X-Request-Id, X-Forwarded-For, X-Forwarded-Host, X-Forwarded-Proto, \
                  traceparent, CDN-Loop";
    match caller {
        None => always.to_owned(),
        Some(Caller::User(user)) => {
            let User {
                subject, issuer, ..
            } = &**user;
            format!(
                "X-Postern-Kind: user, X-Postern-Subject: {subject}, X-Postern-Issuer: {issuer}, X-Postern-Scopes, \
                 {always}"
            )
        }
        Some(Caller::Service(service)) => format!(
            "X-Postern-Kind: service, X-Postern-Subject: {}, X-Postern-Issuer: {}, X-Postern-Service: {}, \
             X-Postern-Scopes, {always}",
            service.subject, service.issuer, service.service_id
        ),
    }
}

fn is_host(host: &str) -> Result<(), HeadFault> {
    match is_authority(host.as_bytes()) {
        true => Ok(()),
        false => Err(HeadFault::Host),
    }
}

/// Splits an absolute URL into host and target; for a path, the host is `localhost`.
fn split_url(url: &str) -> (&str, &str) {
    let rest = url
        .strip_prefix("http://")
        .or_else(|| url.strip_prefix("https://"));
    match rest.map(|rest| rest.split_at(rest.find('/').unwrap_or(rest.len()))) {
        Some((host, "")) => (host, "/"),
        Some((host, target)) => (host, target),
        None => ("localhost", url),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::read_config;

    #[test]
    fn explain_describes_route_and_decision() {
        let text = include_str!("../../../conf/proxy.toml");
        let config = read_config(text).expect("reads");
        let user = CallerSource::Assumed(TestToken::user("42"));
        let explain =
            |method, url, sender| explain(&config, method, url, &HeaderMap::new(), sender, None);
        let output = explain("GET", "http://gate/actors/42?a=b", &user);
        for line in [
            "route      actor: GET /actors/{id}",
            "why        the most specific match: \"actors\", {id} is 42",
            "policy     users whose subject is {id} or services: any",
            "caller     user 42",
            "decision   allow",
            "adds       X-Postern-Kind: user, X-Postern-Subject: 42, X-Postern-Issuer: test, X-Postern-Scopes, \
             X-Request-Id",
        ] {
            assert!(output.contains(line), "{line} is missing:\n{output}");
        }
        let output = explain("PUT", "/admin/features/x", &user);
        assert!(
            output.contains("decision   403 insufficient_scope"),
            "{output}"
        );
        assert!(explain("GET", "/a/../b", &user).contains("400 invalid_target"));
        assert!(explain("GET", "http://a..b/actors/42", &user).contains("400 invalid_header"));
        assert!(explain("GET", "/actors/43", &user).contains("decision   404 not_found"));
        let refused = CallerSource::Rejected("token_expired");
        assert!(explain("GET", "/auth/me", &refused).contains("401 token_expired"));
        assert!(explain("POST", "/auth/login", &refused).contains("decision   allow"));
    }
}
