//! Requests: the live tail of all gateways, and the details of one request.
//!
//! The rows are written by `requests.js`. The details are rendered here, from the event that the
//! browser sends back and the explanation of a gateway.

use maud::{Markup, html};
use serde_json::{Map, Value, json};

use super::gateway::explanation;
use super::request_outcome::notices;
use super::route_test::{Principal, route_test};
use super::{Context, heading, query_string};
use crate::config::{ProcessKind::Gateway, TraceLink};
use crate::processes::Call;
use crate::widgets::{Tone, badge, bytes, duration, facts, mono, notice, plain, time};

/// The form fields of the filter: parameter, label and placeholder.
const FILTERS: [(&str, &str, &str); 6] = [
    ("route", "Route", ""),
    ("status", "Status", "5xx or 503"),
    ("code", "Code", ""),
    ("principal", "Caller", "subject or service:NAME"),
    ("address", "Address", "192.0.2.0/24"),
    ("path", "Path begins with", "/"),
];

/// Returns the page, which follows the requests that its query selects.
pub(super) fn render(context: &Context<'_>) -> Markup {
    html! {
        (heading("Requests"))
        form.filters #tail-filters action="/requests" {
            @for (name, label, placeholder) in FILTERS {
                label { (label) input name=(name) placeholder=(placeholder) autocomplete="off"
                    spellcheck="false" value=(context.parameter(name)); }
            }
            button.primary type="submit" { "Filter" }
        }
        div.buttons {
            button type="button" #tail-pause { "Pause" }
            button type="button" #tail-clear { "Clear" }
        }
        p #tail-state role="status" { "Connecting." }
        p.muted #tail-counts {}
        section.panel #request-details aria-label="Details of a request" hidden {}
        section.panel { div.scroll tabindex="0" role="region" aria-label="Requests" { table {
            thead { tr {
                @for title in ["Time", "Request", "Status", "Route", "Caller"] { th scope="col" { (title) } }
                th.num scope="col" { "Duration" } th scope="col" { "Gateway" }
            } }
            tbody #tail {}
        } } }
    }
}

/// Returns the details of a request. `event` is its event in the live tail, with the name of its
/// `gateway`.
pub(crate) async fn details(
    context: &Context<'_>,
    event: &Value,
    link: Option<&TraceLink>,
) -> Markup {
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
        (notices(event, decision))
        (summary(event))
        div.buttons { (links(event, link)) }
        h3 { "Timings" } (timings(event))
        h3 { "Upstream" } (upstream(event))
        h3 { "Identity headers" } (identity_headers(event))
        h3 { "Decision" }
        @match &explained {
            None => p.muted { "None: the request was rejected before it was routed." },
            Some(Err(message)) => (message),
            Some(Ok(answer)) => { (differences(event, answer)) div.explained { (explanation(answer)) } },
        }
        h3 { "Route test" }
        @match route_test(event, decision) {
            None => p.muted { "None: the request was not decided." },
            Some(test) => {
                p.muted { "For the file of the gateway. Query and header fields are not in the event: add those that the route needs." }
                pre.code #route-test tabindex="0" { code { (test) } }
                div.buttons { button type="button" data-copy="route-test" { "Copy the test" } }
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
    let code = plain(&event["code"]);
    match code.as_str() {
        "" | "ok" => badge(tone, &status.to_string()),
        code => badge(tone, &format!("{status} {code}")),
    }
}

fn summary(event: &Value) -> Markup {
    let text = |name: &str| plain(&event[name]);
    let known = |name: &str| match text(name).as_str() {
        "" => html! {},
        value => mono(value),
    };
    let caller = match text("caller_service").as_str() {
        "" => text("subject"),
        service => format!("{service} ({})", text("subject")),
    };
    // The event has no member for an empty list.
    let rights = |name: &str| match (text("kind").as_str(), text(name).as_str()) {
        ("user", "") => html! { "none" },
        (_, values) => html! { (values) },
    };
    facts(&[
        ("Time", time(&text("timestamp"))),
        ("Request", known("request_id")),
        ("Trace", known("trace_id")),
        ("Gateway", known("gateway")),
        ("Host", known("host")),
        ("Protocol", known("protocol")),
        ("Client", known("client")),
        (
            "Caller",
            match text("kind").as_str() {
                "" => html! {},
                kind => html! { (kind) " " (mono(&caller)) },
            },
        ),
        ("Groups", rights("groups")),
        ("Scopes", rights("scopes")),
        ("Route", known("route")),
        ("Decision", html! { (text("decision")) }),
        ("Cause", known("cause")),
        ("Report only", known("report_only")),
    ])
}

/// Returns the links to the time line and, if it is configured, to the trace.
fn links(event: &Value, link: Option<&TraceLink>) -> Markup {
    let id = plain(&event["request_id"]);
    let trace = link.and_then(|link| link.of(&plain(&event["trace_id"])));
    html! {
        @if !id.is_empty() {
            a.button href={ "/search?" (query_string(&[("kind", "request"), ("q", id.as_str())])) } { "Time line" }
        }
        @if let Some(trace) = trace { " " a.button href=(trace) target="_blank" rel="noopener noreferrer" { "Trace" } }
    }
}

/// Returns the durations. Numbers of an event are milliseconds.
fn timings(event: &Value) -> Markup {
    let seconds = |name: &str| event[name].as_f64().map(|millis| millis / 1000.0);
    let shown = |seconds: Option<f64>| match seconds {
        Some(seconds) => html! { (duration(seconds)) },
        None => html! {},
    };
    let (total, upstream) = (seconds("duration_ms"), seconds("upstream_ms"));
    let rest = total
        .zip(upstream)
        .map(|(total, upstream)| (total - upstream).max(0.0));
    let size = |name: &str| match event[name].as_f64() {
        Some(count) if count < 1_048_576.0 => html! { (crate::widgets::number(count)) " bytes" },
        Some(count) => html! { (bytes(count)) },
        None => html! {},
    };
    facts(&[
        ("From the head to the end of the response", shown(total)),
        ("Upstream, until the head of its response", shown(upstream)),
        ("Gateway, client and body", shown(rest)),
        ("Request body, received", size("request_bytes")),
        ("Response body", size("response_bytes")),
    ])
}

fn upstream(event: &Value) -> Markup {
    let text = |name: &str| plain(&event[name]);
    if text("upstream").is_empty() {
        return html! { p.muted { "The request was not sent to an upstream." } };
    }
    facts(&[
        ("Upstream", mono(&text("upstream"))),
        (
            "Address of the last attempt",
            mono(&text("upstream_address")),
        ),
        ("Attempts", html! { (text("attempts")) }),
        (
            "Content coding of the gateway",
            html! { (text("encoding")) },
        ),
    ])
}

/// Returns the header fields that tell the upstream who is calling.
fn identity_headers(event: &Value) -> Markup {
    let text = |name: &str| plain(&event[name]);
    if event["decision"] != "forwarded" {
        return html! { p.muted { "None: the request was not forwarded." } };
    }
    let scopes = event["scopes"].as_array().into_iter().flatten();
    let scopes: Vec<String> = scopes.map(plain).collect();
    let fields = [
        ("X-Postern-Kind", text("kind")),
        ("X-Postern-Subject", text("subject")),
        ("X-Postern-Issuer", text("issuer")),
        ("X-Postern-Service", text("caller_service")),
        ("X-Postern-Scopes", scopes.join(" ")),
        ("X-Request-Id", text("request_id")),
    ];
    let fields = fields.iter().filter(|(_, value)| !value.is_empty());
    html! { pre.code tabindex="0" { code { @for (name, value) in fields { (name) ": " (value) "\n" } } } }
}

/// Says if the explanation is of another route: it knows no query and no header fields.
fn differences(event: &Value, answer: &Value) -> Markup {
    let explained = plain(&answer["route"]);
    let explained = explained.split(':').next().unwrap_or_default();
    let actual = plain(&event["route"]);
    if actual.is_empty() || explained == actual {
        return html! {};
    }
    let text = format!(
        "The request took the route {actual}. The explanation knows neither query nor header fields, and uses the configuration in force now."
    );
    notice(Tone::Warn, "Another route", &text)
}

/// Returns the body of `POST /admin/explain`; `None` if the target of the request is not known.
fn question(event: &Value) -> Option<Value> {
    let (method, path) = (event["method"].as_str()?, event["path"].as_str()?);
    let mut question = Map::new();
    question.insert("request".to_owned(), json!(format!("{method} {path}")));
    for (name, member) in [("host", "host"), ("client", "clientAddress")] {
        if let Some(value) = event[name].as_str() {
            question.insert(member.to_owned(), json!(value));
        }
    }
    let principal = Principal::of(event).to_json();
    question.insert("principal".to_owned(), principal);
    Some(Value::Object(question))
}

/// Asks the gateway that served the request, or any if it is gone.
async fn explain(context: &Context<'_>, question: Value, gateway: &str) -> Result<Value, Markup> {
    let call = Call::post("/admin/explain", question);
    let replicas = context.directory.of(Gateway);
    let Some(process) = replicas.iter().find(|process| process.name == gateway) else {
        return context.send(Gateway, &call).await;
    };
    let reply = context.directory.call(process, &call).await;
    match reply {
        Ok(reply) if reply.is_success() => Ok(reply.json()),
        Ok(reply) => Err(notice(Tone::Bad, &process.name, &reply.problem())),
        Err(error) => Err(notice(Tone::Bad, &process.name, &error.to_string())),
    }
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
