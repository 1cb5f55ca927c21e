//! Requests: those of all gateways in one list, the past ones and those that arrive, and the details of
//! one.
//!
//! The rows and the chart are written by `requests.js`. The details are rendered here, from the event
//! that the browser sends back and the explanation of a gateway.

use maud::{Markup, html};
use serde_json::{Value, json};

use super::gateway::explanation;
use super::request_outcome::notices;
use super::route_test::{principal, route_test};
use super::{Context, heading, query_string};
use crate::config::{ProcessKind::Gateway, TraceLink};
use crate::processes::Call;
use crate::widgets::{Tone, badge, duration, facts, mono, number, plain, time};

/// The filters: parameter, label and placeholder.
const FILTERS: [(&str, &str, &str); 6] = [
    ("route", "Route", ""),
    ("status", "Status", "5xx or 503"),
    ("code", "Outcome", "ok or token_expired"),
    ("principal", "Caller", "user id or service:NAME"),
    ("address", "Address", "192.0.2.0/24"),
    ("path", "Path begins with", "/"),
];

/// Returns the page, which follows the requests that its query selects.
pub(super) fn render(context: &Context<'_>) -> Markup {
    html! {
        (heading("Requests"))
        div.toolbar {
            (chips(context))
            button.chip type="button" #tail-time hidden { "Time " strong {} span.remove aria-hidden="true" { "×" } span.hidden { ", remove" } }
            details.menu #add-filter {
                summary.button { "Add a filter" }
                form.panel.stack #tail-filters action="/requests" {
                    @for (name, label, placeholder) in FILTERS {
                        label { (label) input name=(name) placeholder=(placeholder) autocomplete="off"
                            spellcheck="false" value=(context.parameter(name)); }
                    }
                    button type="submit" { "Filter" }
                }
            }
            button type="button" #tail-pause { "Pause" }
            button type="button" #tail-clear { "Clear" }
        }
        figure.panel #tail-chart {
            svg viewBox="0 0 60 40" preserveAspectRatio="none" aria-hidden="true" { path.ok {} path.warn {} path.bad {} rect y="0" height="40" {} }
            @for (label, place) in [("Time from", "0"), ("Time until", "60")] { input type="range" min="0" max="60" value=(place) aria-label=(label); }
            figcaption {}
            p.legend { span.key.ok { "below 400" } span.key.warn { "4xx" } span.key.bad { "5xx" } " Drag over the chart, or move its ends by the arrow keys, to see a part of the time." }
        }
        ul.chips #tail-frequent aria-label="Most frequent" {}
        p.muted { span #tail-state role="status" { "Connecting." } " " span #tail-counts {} }
        div.split {
            section.panel { div.scroll tabindex="0" role="region" aria-label="Requests" { table {
                thead { tr {
                    @for title in ["Time", "Request", "Status", "Route", "Caller"] { th scope="col" { (title) } }
                    th.num scope="col" { "Duration" } th scope="col" { "Gateway" }
                } }
                tbody #tail {}
            } } }
            section.panel #request-details aria-label="Details of a request" hidden {}
        }
    }
}

/// Returns the filters that are set, each as a link to the page without it.
fn chips(context: &Context<'_>) -> Markup {
    let set = FILTERS.map(|(name, label, _)| (name, label, context.parameter(name)));
    let set = set.iter().filter(|(.., value)| !value.is_empty());
    html! {
        ul.chips aria-label="Filters" { @for (name, label, value) in set.clone() {
            @let others: Vec<_> = set.clone().filter(|(other, ..)| other != name).map(|(name, _, value)| (*name, *value)).collect();
            li { a.chip.set href={ "/requests?" (query_string(&others)) } { (label) " " strong { (value) } span.remove aria-hidden="true" { "×" } span.hidden { ", remove" } } }
        } }
    }
}

/// Returns the details of a request. `event` is its event in the live tail, with the name of its
/// `gateway`.
pub(crate) async fn details(context: &Context<'_>, event: &Value) -> Markup {
    let text = |name: &str| plain(&event[name]);
    let explained = match question(event) {
        Some(question) => Some(explain(context, question, &text("gateway")).await),
        None => None,
    };
    let decision = explained.as_ref().and_then(|answer| answer.as_ref().ok());
    html! {
        div.details-head {
            h2 tabindex="-1" { (mono(&format!("{} {}", text("method"), text("path")))) " " (status(event)) }
            button type="button" data-close { "Close" }
        }
        h3 { "Why" }
        (notices(event, decision))
        @match &explained {
            None => p.muted { "The request was rejected before it was routed." },
            Some(Err(message)) => (message),
            Some(Ok(answer)) => (explanation(answer)),
        }
        div.buttons { (links(event, context.state.trace_link.as_ref())) }
        h3 { "Request" } (summary(event))
        details #make-test {
            summary { "Make a route test" }
            @match route_test(event, decision) {
                None => p.muted { "None: the request was not decided." },
                Some(test) => {
                    p.muted { "For the file of the gateway. Query and header fields are not in the event: add those that the route needs." }
                    pre.code #route-test tabindex="0" { code { (test) } }
                    div.buttons { button type="button" data-copy="route-test" { "Copy the test" } a.button href="/configuration" { "Open the configuration" } }
                }
            }
        }
    }
}

fn status(event: &Value) -> Markup {
    let status = event["status"].as_u64().unwrap_or_default();
    let tone = match status {
        500.. => Tone::Bad,
        400.. => Tone::Warn,
        _ => Tone::Ok,
    };
    let code = event["code"].as_str().filter(|code| *code != "ok");
    let text = format!("{status} {}", code.unwrap_or_default());
    badge(tone, text.trim_end())
}

/// Returns what the event knows. Numbers of an event are milliseconds, or bytes.
fn summary(event: &Value) -> Markup {
    let text = |name: &str| plain(&event[name]);
    let known = |name: &str| match text(name).as_str() {
        "" => html! {},
        value => mono(value),
    };
    // The event has no member for an empty list.
    let rights = |name: &str| match (text("kind").as_str(), text(name).as_str()) {
        ("user", "") => html! { "none" },
        (_, values) => html! { (values) },
    };
    let seconds = |name: &str| event[name].as_f64().map(|millis| millis / 1000.0);
    let size = |name: &str| Some(format!("{} bytes", number(event[name].as_f64()?)));
    html! {
        (facts(&[
            ("Time", time(&text("timestamp"))),
            ("Caller", html! { @if let Some(caller) = caller(event) { (text("kind")) " " (filtered("principal", &caller)) } }),
            ("Route", filtered("route", &text("route"))),
            ("Decision", html! { (text("decision")) }), ("Cause", known("cause")), ("Report only", known("report_only")),
            ("Groups", rights("groups")), ("Scopes", rights("scopes")), ("Issuer", known("issuer")),
            ("Client", known("client")), ("Host", known("host")), ("Protocol", known("protocol")),
            ("Whole duration", html! { @if let Some(total) = seconds("duration_ms") { (duration(total)) } }),
            ("Until the upstream's head", html! { @if let Some(upstream) = seconds("upstream_ms") { (duration(upstream)) } }),
            ("Request body", html! { @if let Some(size) = size("request_bytes") { (size) } }),
            ("Response body", html! { @if let Some(size) = size("response_bytes") { (size) } }),
            ("Upstream", known("upstream")), ("Last attempt at", known("upstream_address")),
            ("Attempts", html! { (text("attempts")) }), ("Content coding", html! { (text("encoding")) }),
            ("Gateway", known("gateway")), ("Request id", known("request_id")), ("Trace id", known("trace_id")),
        ]))
    }
}

/// Returns the value of the filter `principal` that selects the caller of an event.
fn caller(event: &Value) -> Option<String> {
    let service = event["caller_service"].as_str();
    let service = service.map(|name| format!("service:{name}"));
    service.or_else(|| Some(event["subject"].as_str()?.to_owned()))
}

/// Returns a value as a link to the requests that have it.
fn filtered(name: &str, value: &str) -> Markup {
    html! { @if !value.is_empty() { a.mono href={ "/requests?" (query_string(&[(name, value)])) } { (value) } } }
}

/// Returns the links to the time lines of the request and its user and, if it is configured, to the
/// trace.
fn links(event: &Value, link: Option<&TraceLink>) -> Markup {
    let text = |name: &str| plain(&event[name]);
    let trace = link.and_then(|link| link.of(&text("trace_id")));
    let user = (event["kind"] == "user").then(|| text("subject"));
    html! {
        @for (kind, id, title) in [("request", Some(text("request_id")), "Time line"), ("user", user, "What happened to this user")] {
            @if let Some(id) = id.filter(|id| !id.is_empty()) { a.button href={ "/search?" (query_string(&[("kind", kind), ("q", id.as_str())])) } { (title) } }
        }
        @if let Some(trace) = trace { a.button href=(trace) target="_blank" rel="noopener noreferrer" { "Trace" } }
    }
}

/// Returns the body of `POST /admin/explain`; `None` if the target of the request is not known.
fn question(event: &Value) -> Option<Value> {
    let (method, path) = (event["method"].as_str()?, event["path"].as_str()?);
    let request = format!("{method} {path}");
    let mut question = json!({ "request": request, "principal": principal(event) });
    for (name, member) in [("host", "host"), ("client", "clientAddress")] {
        if event[name].is_string() {
            question[member] = event[name].clone();
        }
    }
    Some(question)
}

/// Asks the gateway that served the request, or any if it is gone.
async fn explain(context: &Context<'_>, question: Value, gateway: &str) -> Result<Value, Markup> {
    let call = Call::post("/admin/explain", question);
    let replicas = context.state.directory.of(Gateway);
    let Some(process) = replicas.iter().find(|process| process.name == gateway) else {
        return context.send(Gateway, &call).await;
    };
    let reply = context.state.directory.call(process, &call).await;
    Context::read(Gateway, &call.path, reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_has_what_the_event_knows() {
        let event = json!({
            "method": "GET", "path": "/a", "host": "gate", "client": "192.0.2.0",
            "kind": "user", "subject": "ada", "groups": ["admin"],
        });
        let expected = json!({
            "request": "GET /a", "host": "gate", "clientAddress": "192.0.2.0",
            "principal": { "subject": "ada", "groups": ["admin"], "scopes": [] },
        });
        assert_eq!(question(&event), Some(expected));
        assert_eq!(question(&json!({ "method": "GET" })), None);
    }

    #[test]
    fn rights_of_a_user_are_shown_also_if_there_are_none() {
        let shown = summary(&json!({ "kind": "user", "scopes": ["read"] })).into_string();
        for expected in ["Groups</dt><dd>none", "Scopes</dt><dd>read"] {
            assert!(shown.contains(expected), "{expected} is missing in {shown}");
        }
        let shown = summary(&json!({ "code": "token_expired" })).into_string();
        assert!(!shown.contains("Groups"), "{shown}");
    }
}
