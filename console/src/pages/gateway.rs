//! Routes and upstreams.

use maud::{Markup, html};
use serde_json::{Value, json};

use super::{Context, heading, items, query_string};
use crate::charts::Unit;
use crate::config::ProcessKind::Gateway;
use crate::processes::Call;
use crate::sampling::Monitor;
use crate::traffic::{Interval, ROUTE};
use crate::widgets::Cell::{Mono, Number, NumberOf, Of, Text};
use crate::widgets::{
    Column, Tone, badge, duration, members, mono, notice, percent, plain, table, with,
};

/// Fraction of 5xx that the service level objective permits.
pub(super) const ERROR_OBJECTIVE: f64 = 0.001;

const ROUTE_COLUMNS: &[Column] = &[
    ("Route", Text("name")),
    ("Methods", Mono("methods")),
    ("Path", Of(path)),
    ("Policy", Text("policy")),
    ("Target", Text("target")),
    ("Limits", Text("limits")),
    // Of the last minute, see [`with_traffic`].
    ("Requests", NumberOf(requests)),
    ("4xx", NumberOf(|row| share(row, "4xx"))),
    ("5xx", NumberOf(|row| share(row, "5xx"))),
    ("p99", Number("p99")),
];

/// Adds the traffic of the last minute to the row of a route.
fn with_traffic(row: &Value, minute: &Interval) -> Value {
    let traffic = minute.part(ROUTE, &plain(&row["name"]));
    let rate = minute.per_second(Gateway, &traffic);
    let traffic = json!({
        "rate": rate.map_or("–".to_owned(), |rate| Unit::PerSecond.text(rate)),
        "4xx": traffic.rejection_ratio(),
        "5xx": traffic.error_ratio(),
        "p99": traffic.quantile(0.99).map_or("–".to_owned(), duration),
    });
    with(row, &traffic)
}

/// Returns the rate of a route, with a link to its requests.
fn requests(row: &Value) -> Markup {
    let name = plain(&row["name"]);
    let query = query_string(&[("route", name.as_str())]);
    html! { a href={ "/requests?" (query) } { (plain(&row["rate"])) } }
}

/// Returns the share of responses of a class, with a link to the requests that got one.
fn share(row: &Value, class: &str) -> Markup {
    let name = plain(&row["name"]);
    let query = query_string(&[("route", name.as_str()), ("status", class)]);
    let ratio = row[class].as_f64();
    let text = ratio.map_or("–".to_owned(), percent);
    let is_bad = class == "5xx" && ratio.is_some_and(|ratio| ratio > ERROR_OBJECTIVE);
    html! {
        @if ratio.unwrap_or(0.0) == 0.0 { (text) }
        @else { a href={ "/requests?" (query) } { @if is_bad { (badge(Tone::Bad, &text)) } @else { (text) } } }
    }
}

fn path(row: &Value) -> Markup {
    html! { (mono(&plain(&row["path"]))) @for name in ["hosts", "conditions"] { @if !row[name].is_null() { br; small.muted { (plain(&row[name])) } } } }
}

pub(super) async fn routes(context: &Context<'_>) -> Markup {
    let answer = context.ask(Gateway, "/admin/routes").await;
    let wanted = context.parameter("q").to_lowercase();
    let explained = explain(context).await;
    let minute = context.state.sampler.read(Monitor::minute);
    html! {
        (heading("Routes"))
        form.filters action="/routes" {
            label { "Name, path, policy or target" input type="search" name="q" value=(context.parameter("q")); }
            button type="submit" { "Search" }
        }
        @match answer {
            Err(message) => (message),
            Ok(answer) => {
                @let all = items(&answer);
                @let shown = all.iter().filter(|row| row.to_string().to_lowercase().contains(&wanted));
                @let shown: Vec<Value> = shown.map(|row| with_traffic(row, &minute)).collect();
                section.panel { h2 { (shown.len()) " of " (all.len()) " routes, first match first, with their last minute" }
                    (table("Routes", &shown, ROUTE_COLUMNS, "No route matches.")) }
            }
        }
        section.panel #explain {
            h2 { "Explain a request" }
            p.muted { "Which route a request takes, and why it would be accepted or rejected. Nothing is sent to an upstream." }
            form.filters action="/routes" {
                label.grow { "Request" input.mono name="request" required placeholder="GET /actors/42" value=(context.parameter("request")); }
                label { "Host" input name="host" value=(context.parameter("host")); }
                label { "Caller" input name="principal" placeholder="as in a [[test]]" value=(context.parameter("principal")); }
                button type="submit" { "Explain" }
            }
            (explained)
        }
    }
}

async fn explain(context: &Context<'_>) -> Markup {
    let request = context.parameter("request");
    if request.is_empty() {
        return html! {};
    }
    let body = ["request", "host", "principal"].map(|name| (name, context.parameter(name)));
    let body = body.into_iter().filter(|(_, value)| !value.is_empty());
    let call = Call::post("/admin/explain", body.collect());
    match context.send(Gateway, &call).await {
        Err(message) => message,
        Ok(answer) => explanation(&answer),
    }
}

/// Returns the members of an explanation in the order of `postern-proxy explain`; others follow.
pub(super) fn explanation(answer: &Value) -> Markup {
    const ORDER: [&str; 8] = [
        "request", "route", "why", "policy", "upstream", "limits", "caller", "decision",
    ];
    let known = ORDER.map(|name| (name, &answer[name])).into_iter();
    let others = answer.as_object().into_iter().flatten();
    let others = others.map(|(name, value)| (name.as_str(), value));
    let others = others.filter(|(name, _)| !ORDER.contains(name));
    let members = known.chain(others).filter(|(_, value)| !value.is_null());
    html! { ul.tree { @for (name, value) in members { li { span.muted { (name) } " " (tree(value, 1)) } } } }
}

/// Returns a decision tree as nested lists.
fn tree(value: &Value, depth: usize) -> Markup {
    const MAX_DEPTH: usize = 12;
    let (members, values) = (value.as_object(), value.as_array());
    html! {
        @if depth >= MAX_DEPTH { strong { (plain(value)) } }
        @else if let Some(members) = members {
            ul.tree { @for (name, value) in members { @if !value.is_null() { li { span.muted { (name) } " " (tree(value, depth + 1)) } } } }
        } @else if let Some(values) = values { ol.tree { @for value in values { li { (tree(value, depth + 1)) } } } }
        @else { strong { (plain(value)) } }
    }
}

pub(super) async fn upstreams(context: &Context<'_>) -> Markup {
    let directory = &context.state.directory;
    let all = directory.ask_all(Gateway, "/admin/upstreams").await;
    let wanted = context.parameter("q");
    html! {
        (heading("Upstreams"))
        @if !wanted.is_empty() { p { "Upstreams with " (mono(wanted)) " in their names. " a href="/upstreams" { "Show all" } } }
        @for (process, answer) in &all {
            @match answer {
                Err(error) => (notice(Tone::Bad, &process.name, error)),
                Ok(answer) => section.panel { h2 { "As " (mono(&process.name)) " sees them" } (table(&format!("Upstreams of {}", process.name), &endpoint_rows(answer, wanted), UPSTREAM_COLUMNS, "There is no such upstream.")) },
            }
        }
    }
}

/// Returns the addresses of the upstreams with a text in their names, those that are not used first. An
/// upstream without addresses has a row too.
fn endpoint_rows(answer: &Value, wanted: &str) -> Vec<Value> {
    let mut rows = Vec::new();
    let upstreams = items(&answer["upstreams"]).iter();
    for upstream in upstreams.filter(|it| plain(&it["name"]).contains(wanted)) {
        let more = json!({ "upstream": upstream["name"] });
        let endpoints = items(&upstream["endpoints"]);
        rows.extend(endpoints.iter().map(|endpoint| with(endpoint, &more)));
        if endpoints.is_empty() {
            rows.push(with(&json!({ "healthy": false }), &more));
        }
    }
    rows.sort_by_key(is_used);
    rows
}

/// Returns whether new requests are sent to an address.
fn is_used(endpoint: &Value) -> bool {
    endpoint["healthy"] != false && endpoint["ejected"].is_null()
}

const UPSTREAM_COLUMNS: &[Column] = &[
    ("Upstream", Text("upstream")),
    ("Address", Mono("address")),
    ("State", Of(endpoint_state)),
    ("In flight", Number("inFlight")),
    ("More", Of(more)),
];

fn endpoint_state(endpoint: &Value) -> Markup {
    let is_ejected = endpoint["ejected"].is_object();
    html! {
        @if endpoint["address"].is_null() { (badge(Tone::Bad, "no address")) }
        @else if endpoint["healthy"] == false { (badge(Tone::Bad, "unhealthy")) " " }
        @else if endpoint["healthy"] == true && !is_ejected { (badge(Tone::Ok, "healthy")) " " }
        @if is_ejected { (badge(Tone::Warn, "ejected")) " " }
    }
}

fn more(endpoint: &Value) -> Markup {
    const SHOWN: &[&str] = &["address", "healthy", "inFlight", "latencyUs", "upstream"];
    let latency = endpoint["latencyUs"].as_f64().filter(|us| *us > 0.0);
    html! { span.why {
        @if let Some(us) = latency { span.member { "latency " span.value { (duration(us / 1e6)) } } " " }
        (members(endpoint, SHOWN))
    } }
}

#[cfg(test)]
mod tests {
    use postern_core::clock::Timestamp;

    use super::*;

    #[test]
    fn addresses_that_are_not_used_are_shown_first() {
        let endpoint = |address: &str, ejected: Value| json!({ "address": address, "healthy": true, "ejected": ejected });
        let ejected = endpoint("c", json!({ "cause": "tls_failed" }));
        let answer = json!({ "upstreams": [
            { "name": "good", "endpoints": [endpoint("a", Value::Null)] },
            { "name": "bad", "endpoints": [endpoint("b", Value::Null), ejected] },
            { "name": "empty", "endpoints": [] },
        ] });
        let rows = endpoint_rows(&answer, "");
        let rows: Vec<String> = rows
            .iter()
            .map(|row| format!("{} {}", plain(&row["upstream"]), plain(&row["address"])))
            .collect();
        assert_eq!(rows, ["bad c", "empty ", "good a", "bad b"]);
        assert_eq!(endpoint_rows(&answer, "go").len(), 1);
        let shown = endpoint_state(&answer["upstreams"][1]["endpoints"][1]).into_string();
        assert!(!shown.contains("healthy"), "{shown}");
    }

    #[test]
    fn explanation_is_in_the_order_of_the_command() {
        let answer = json!({ "decision": "allow", "adds": "x", "request": "GET /", "caller": "none", "route": "a" });
        let shown = explanation(&answer).into_string();
        let at = |name: &str| shown.find(&format!(">{name}<")).expect("a member");
        let order = ["request", "route", "caller", "decision", "adds"].map(at);
        assert!(order.is_sorted(), "{shown}");
    }

    #[test]
    fn shares_of_a_route_link_to_its_requests() {
        let row = json!({ "name": "a&b", "4xx": 0.25, "5xx": 0.0 });
        let shown = share(&row, "4xx").into_string();
        let expected = "<a href=\"/requests?route=a%26b&amp;status=4xx\">25 %</a>";
        assert_eq!(shown, expected);
        assert_eq!(share(&row, "5xx").into_string(), "0 %");
        let idle = with_traffic(&row, &Interval::new(Timestamp(0)));
        assert_eq!(share(&idle, "5xx").into_string(), "–");
    }
}
