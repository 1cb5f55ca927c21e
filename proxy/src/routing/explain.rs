//! The `explain` command: describes the route and the decision of a request.

use std::net::IpAddr;

use http::HeaderMap;
use postern_core::token::Caller;
use postern_http::message::head::{HeadFault, is_authority};
use postern_http::message::target::RequestTarget;

use crate::config::{CallerRules, PathPattern, PathSegment, RoutePolicy, ServiceRule, UserRule};
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
    /// The caller of a verified token.
    Verified(Caller),
    /// A token that was rejected, with the problem code.
    Rejected(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ExplainedRequest<'r> {
    pub(crate) method: &'r str,
    /// The path, or an absolute URL.
    pub(crate) url: &'r str,
    pub(crate) headers: &'r HeaderMap,
    /// The client address; `None` if it is unknown.
    pub(crate) address: Option<IpAddr>,
}

/// An explanation: lines with a label each.
#[derive(Default)]
struct Explanation(String);

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

/// Describes a request as [`explain`] does, with the routes of `table`, whose targets are positions
/// in `upstreams`.
pub(crate) fn explain_in(
    table: &RouteTable,
    upstreams: &[&UpstreamConfig],
    explained: &ExplainedRequest<'_>,
    sender: &CallerSource,
) -> String {
    let mut out = Explanation::default();
    let (host, target) = split_url(explained.url);
    let method = explained.method;
    out.add("request", &format!("{method} {target} (Host: {host})"));
    let target = RequestTarget::parse_ambiguous(target.as_bytes());
    let parsed = target.map_err(HeadFault::Target).and_then(|target| {
        if !is_authority(host.as_bytes()) {
            return Err(HeadFault::Host);
        }
        let request = RouteRequest {
            host,
            path: target.path,
            query: target.query,
            method,
            headers: explained.headers,
        };
        let found = table.find_target(&request, &target);
        Ok((request, found.map_err(HeadFault::Target)?))
    });
    let (request, found) = match parsed {
        Ok(parsed) => parsed,
        Err(fault) => {
            out.add("decision", &format!("400 {}", fault.code().as_str()));
            out.add("why", fault.detail());
            return out.0;
        }
    };
    if let Some((_, route)) = Outcome::of_preflight(table, &request, found) {
        match route {
            Some(index) => out.add_route(upstreams, &table.routes[index], request.path),
            None => out.add("route", "none of the announced request"),
        }
        out.add(
            "decision",
            "respond 204 preflight request, no caller is asked",
        );
        return out.0;
    }
    match found {
        RouteMatch::Route(index) => out.add_route(upstreams, &table.routes[index], request.path),
        RouteMatch::MethodNotAllowed { allow, .. } => {
            let allow = allow.allow();
            out.add(
                "route",
                &format!("none: the path is known, for {allow} only"),
            );
        }
        RouteMatch::NotFound => out.add("route", "none: no path matches"),
    }
    out.add_access(table, found, explained.address);
    let variables = request.explained(explained.url.starts_with("https://"), explained.address);
    out.add_decision(table, found, &variables, sender);
    out.0
}

impl Explanation {
    fn add(&mut self, label: &str, text: &str) {
        self.0.push_str(&format!("{label:<11}{text}\n"));
    }

    fn add_route(&mut self, upstreams: &[&UpstreamConfig], route: &Route, path: &str) {
        let (name, pattern) = (&route.name, &route.pattern);
        let (methods, template) = (pattern.methods, &pattern.path.template);
        self.add("route", &format!("{name}: {methods} {template}"));
        let matched = describe_match(&pattern.path, path);
        self.add("why", &format!("the most specific match: {matched}"));
        for condition in pattern.headers.iter().chain(&pattern.queries) {
            self.add("", &format!("with {}", condition.name));
        }
        self.add("policy", &describe_policy(&route.policy));
        for target in &route.targets {
            let upstream = upstreams[target.upstream];
            let addresses = upstream.addresses.iter().map(ToString::to_string);
            let addresses = addresses.collect::<Vec<_>>().join(", ");
            let host = upstream.host.as_ref().and_then(|host| host.to_str().ok());
            let host = host.map_or(String::new(), |host| format!(", Host {host}"));
            let (name, weight) = (&upstream.name, target.weight);
            let text = format!("{name} (weight {weight}): {addresses}{host}");
            self.add("upstream", &text);
        }
        if let Some(rewrite) = &route.rewrite {
            let forwarded = rewrite.apply(path.as_bytes());
            self.add("forwarded", &String::from_utf8_lossy(&forwarded));
        }
        self.add("limits", &listing::limits(route).join(", "));
    }

    fn add_access(&mut self, table: &RouteTable, found: RouteMatch, address: Option<IpAddr>) {
        let Some(list) = access_list(table, found) else {
            return;
        };
        let client = match address {
            Some(address) => address.to_string(),
            None => "an unknown address (see --client-address)".to_owned(),
        };
        let verb = match list.accepts(address) {
            true => "accepts",
            false => "refuses",
        };
        self.add("access", &format!("{list}: {verb} {client}"));
    }

    fn add_decision(
        &mut self,
        table: &RouteTable,
        found: RouteMatch,
        variables: &RequestVariables<'_>,
        sender: &CallerSource,
    ) {
        // No token is verified.
        let is_public = is_public(table, found);
        let caller = match sender {
            _ if is_public => None,
            CallerSource::Assumed(token) => caller_for(token),
            CallerSource::Verified(caller) => Some(caller.clone()),
            CallerSource::Rejected(code) => {
                self.add("caller", "the token is refused");
                self.add("decision", &format!("401 {code}"));
                return;
            }
        };
        let described = match &caller {
            None if is_public => "not asked: the route is public".to_owned(),
            None => "no token".to_owned(),
            Some(Caller::User(user)) => format!("user {}", user.subject),
            Some(Caller::Service(service)) => format!("service {}", service.service_id),
        };
        self.add("caller", &described);
        let (at, mut reported) = ((found, variables.path), None);
        let address = variables.client_address;
        let decision = decide(table, at, caller.as_ref(), address, &mut reported);
        if let Some(code) = reported {
            let (status, name) = (code.status().as_u16(), code.as_str());
            let text = format!("{status} {name}: counted and logged, not rejected");
            self.add("reported", &text);
        }
        match Outcome::of(table, variables, &decision) {
            Outcome::Forwarded => {
                self.add("decision", "allow");
                self.add("adds", &added_headers(caller.as_ref()));
            }
            Outcome::Answered(answer, location) => {
                let (kind, status) = (answer.decision(), answer.status().as_u16());
                let detail = location.unwrap_or_else(|| describe_response(answer));
                self.add("decision", &format!("{kind} {status} {detail}"));
            }
            Outcome::Preflight => {}
            Outcome::Rejected(code) => {
                let (status, name, title) = (code.status().as_u16(), code.as_str(), code.title());
                self.add("decision", &format!("{status} {name}: {title}"));
            }
        }
    }
}

fn describe_match(pattern: &PathPattern, path: &str) -> String {
    let parts = pattern.segments.iter().zip(path[1..].split('/'));
    let parts = parts.map(|(segment, text)| match segment {
        PathSegment::Literal(literal) => format!("\"{literal}\""),
        PathSegment::Param(name) => format!("{{{name}}} is {text}"),
    });
    let mut all = parts.collect::<Vec<_>>().join(", ");
    if pattern.prefix {
        all.push_str(" and everything below");
    }
    if pattern.ignore_case {
        all.push_str(", in any case");
    }
    all
}

pub(super) fn describe_policy(policy: &RoutePolicy) -> String {
    let RoutePolicy::Protected(CallerRules { users, services }) = policy else {
        return "public".to_owned();
    };
    let users = users.as_ref().map(describe_users);
    let services = services.as_ref().map(describe_services);
    let all: Vec<String> = users.into_iter().chain(services).collect();
    all.join(" or ")
}

fn describe_users(rule: &UserRule) -> String {
    let mut text = "users".to_owned();
    if let Some(owner) = &rule.owner {
        text.push_str(&format!(" whose subject is {{{}}}", owner.param));
    }
    if !rule.groups.is_empty() {
        let or = if rule.owner.is_some() { " or" } else { "" };
        text.push_str(&format!(
            "{or} in one of the groups {}",
            rule.groups.join(", ")
        ));
    }
    text.push_str(&describe_scopes(&rule.scopes));
    for (name, value) in &rule.claims {
        text.push_str(&format!(" with {name} = {value}"));
    }
    text
}

fn describe_services(rule: &ServiceRule) -> String {
    let names = rule.allow.as_ref().map(|allow| allow.join(", "));
    let names = names.unwrap_or_else(|| "any".to_owned());
    format!("services: {names}{}", describe_scopes(&rule.scopes))
}

fn describe_scopes(scopes: &[String]) -> String {
    match scopes {
        [] => String::new(),
        scopes => format!(" with the scopes {}", scopes.join(", ")),
    }
}

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
    let Some(caller) = caller else {
        return always.to_owned();
    };
    let kind = match caller {
        Caller::User(_) => "user".to_owned(),
        Caller::Service(service) => format!("service, X-Postern-Service: {}", service.service_id),
    };
    let (subject, issuer) = (caller.subject(), caller.issuer());
    format!(
        "X-Postern-Kind: {kind}, X-Postern-Subject: {subject}, X-Postern-Issuer: {issuer}, \
         X-Postern-Scopes, {always}"
    )
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
        let holds = output.contains("decision   403 insufficient_scope");
        assert!(holds, "{output}");
        assert!(explain("GET", "/a/../b", &user).contains("400 invalid_target"));
        assert!(explain("GET", "http://a..b/actors/42", &user).contains("400 invalid_header"));
        assert!(explain("GET", "/actors/43", &user).contains("decision   404 not_found"));
        let refused = CallerSource::Rejected("token_expired");
        assert!(explain("GET", "/auth/me", &refused).contains("401 token_expired"));
        assert!(explain("POST", "/auth/login", &refused).contains("decision   allow"));
    }
}
