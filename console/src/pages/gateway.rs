//! Routes, upstreams, keys and tokens.

use maud::{Markup, html};
use serde_json::{Map, Value, json};

use super::{Context, heading, items, query_string};
use crate::config::ProcessKind::Gateway;
use crate::processes::Call;
use crate::widgets::{
    Column, Tone, action, badge, duration, members, mono, notice, number, plain, state, table, time,
};

const ROUTE_COLUMNS: &[Column] = &[
    Column::new("Route", |row| html! { strong { (plain(&row["name"])) } }),
    Column::new("Methods", |row| mono(&plain(&row["methods"]))),
    Column::new(
        "Path",
        |row| html! { (mono(&plain(&row["path"]))) @if !row["hosts"].is_null() { br; small.muted { (plain(&row["hosts"])) } } @if !row["conditions"].is_null() { br; small.muted { (plain(&row["conditions"])) } } },
    ),
    Column::new("Policy", |row| html! { (plain(&row["policy"])) }),
    Column::new("Target", |row| html! { (plain(&row["target"])) }),
    Column::new("Limits", |row| html! { (plain(&row["limits"])) }),
    Column::number("Requests", |row| requests_link(row, "")),
    Column::number("4xx", |row| requests_link(row, "4xx")),
    Column::number("5xx", |row| requests_link(row, "5xx")),
];

/// Returns requests of a route, all or of one class, if the process counts them.
fn class_sum(row: &Value, class: &str) -> String {
    let Some(counts) = row["requests"].as_object() else {
        return "–".to_owned();
    };
    let of_class = counts.iter();
    let of_class = of_class.filter(|(name, _)| class.is_empty() || *name == class);
    number(of_class.filter_map(|(_, count)| count.as_f64()).sum())
}

/// Returns the requests of a route, all or of one class, with a link to the live tail of them.
fn requests_link(row: &Value, class: &str) -> Markup {
    let (sum, name) = (class_sum(row, class), plain(&row["name"]));
    let query = query_string(&[("route", name.as_str()), ("status", class)]);
    html! { @if sum == "–" { (sum) } @else { a href={ "/requests?" (query) } { (sum) } } }
}

pub(super) async fn routes(context: &Context<'_>) -> Markup {
    let answer = context.ask(Gateway, "/admin/routes").await;
    let wanted = context.parameter("q").to_lowercase();
    let explained = explain(context).await;
    html! {
        (heading("Routes"))
        form.filters action="/routes" {
            label { "Name, path, policy or target" input type="search" name="q" value=(context.parameter("q")); }
            button type="submit" { "Search" }
        }
        @match answer {
            Err(message) => (message),
            Ok(answer) => {
                @let all = items(&answer, &["routes"]);
                @let shown: Vec<Value> = all.iter().filter(|row| row.to_string().to_lowercase().contains(&wanted)).cloned().collect();
                section.panel { h2 { (shown.len()) " of " (all.len()) " routes, first match first" }
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
    let mut body = Map::new();
    for name in ["request", "host", "principal"] {
        if !context.parameter(name).is_empty() {
            body.insert(name.to_owned(), json!(context.parameter(name)));
        }
    }
    let call = Call::post("/admin/explain", Value::Object(body));
    match context.send(Gateway, &call).await {
        Err(message) => message,
        Ok(answer) => html! { div.explained { (explanation(&answer)) } },
    }
}

/// Returns the members of an explanation in the order of `postern-proxy explain`; others follow.
pub(super) fn explanation(answer: &Value) -> Markup {
    const ORDER: [&str; 8] = [
        "request", "route", "why", "policy", "upstream", "limits", "caller", "decision",
    ];
    let Some(members) = answer.as_object() else {
        return tree(answer, 0);
    };
    let known = ORDER.iter().filter_map(|name| members.get_key_value(*name));
    let others = members.iter();
    let others = others.filter(|(name, _)| !ORDER.contains(&name.as_str()));
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
    let all = context.directory.ask_all(Gateway, "/admin/upstreams").await;
    html! {
        (heading("Upstreams"))
        @for (process, answer) in &all {
            @match answer {
                Err(error) => (notice(Tone::Bad, &process.name, error)),
                Ok(answer) => section.panel { h2 { "As " (mono(&process.name)) " sees them" } (upstream_table(context, answer)) },
            }
        }
        @if all.is_empty() { (notice(Tone::Warn, "Nothing to show", "no process of the kind gateway is configured")) }
    }
}

/// Returns the addresses by upstream, those that are not used first. An upstream without addresses has
/// a row too.
fn endpoint_rows(answer: &Value) -> Vec<(String, Option<&Value>)> {
    let mut rows: Vec<(String, Option<&Value>)> = Vec::new();
    for upstream in items(answer, &["upstreams"]) {
        let (name, endpoints) = (plain(&upstream["name"]), items(upstream, &["endpoints"]));
        if endpoints.is_empty() {
            rows.push((name.clone(), None));
        }
        let named = endpoints.iter().map(|it| (name.clone(), Some(it)));
        rows.extend(named);
    }
    rows.sort_by_key(|(_, endpoint)| endpoint.is_some_and(is_used));
    rows
}

/// Returns whether new requests are sent to an address.
fn is_used(endpoint: &Value) -> bool {
    endpoint["healthy"] != false && endpoint["ejected"].is_null() && endpoint["draining"] != true
}

fn upstream_table(context: &Context<'_>, answer: &Value) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Upstreams" { table {
            thead { tr { th scope="col" { "Upstream" } th scope="col" { "Address" } th scope="col" { "State" } th.num scope="col" { "In flight" } th scope="col" { "More" } th scope="col" { "Actions" } } }
            tbody { @for (name, endpoint) in endpoint_rows(answer) { @match endpoint {
                None => tr { td { (name) } td colspan="5" { (badge(Tone::Bad, "no address")) } },
                Some(endpoint) => tr {
                    @let address = plain(&endpoint["address"]);
                    td { (name) }
                    td { (mono(&address)) }
                    td { (endpoint_state(endpoint)) }
                    td.num { (plain(&endpoint["inFlight"])) }
                    td { (more(endpoint)) }
                    td { @if context.is_operator() { (upstream_buttons(&name, &address)) } }
                }
            } } }
        } }
    }
}

fn endpoint_state(endpoint: &Value) -> Markup {
    let (ejected, draining) = (
        endpoint["ejected"].is_object(),
        endpoint["draining"] == true,
    );
    html! {
        @if endpoint["healthy"] == false { (badge(Tone::Bad, "unhealthy")) " " }
        @else if endpoint["healthy"] == true && !ejected && !draining { (badge(Tone::Ok, "healthy")) " " }
        @if ejected { (badge(Tone::Warn, "ejected")) " " }
        @if draining { (badge(Tone::Warn, "draining")) }
    }
}

fn more(endpoint: &Value) -> Markup {
    let shown = "address state healthy inFlight draining latencyUs";
    let shown: Vec<&str> = shown.split(' ').collect();
    let latency = endpoint["latencyUs"].as_f64().filter(|us| *us > 0.0);
    html! { span.why {
        @if let Some(us) = latency { span.member { "latency " span.value { (duration(us / 1e6)) } } " " }
        (members(endpoint, &shown))
    } }
}

fn upstream_buttons(name: &str, address: &str) -> Markup {
    let fields = [("target", name), ("address", address)];
    html! { div.buttons {
        (action("upstream.eject", "Eject", &fields, &format!("Send no requests of any gateway to {address} for 5 minutes?"), Tone::Bad))
        (action("upstream.drain", "Drain", &fields, &format!("Send no new requests to {address} until it is restored?"), Tone::Plain))
        (action("upstream.restore", "Restore", &fields, &format!("Use {address} again?"), Tone::Plain))
    } }
}

pub(super) async fn tokens(context: &Context<'_>) -> Markup {
    let answer = context.ask(Gateway, "/admin/keys").await;
    let keys = answer.as_ref().map(Value::to_string).unwrap_or_default();
    html! {
        (heading("Keys and tokens"))
        section.panel #token-check data-keys=(keys) {
            h2 { "Check a token" }
            p.muted { "The token is checked in this browser, with WebCrypto and the public keys below. It is not sent anywhere." }
            form.stack { label { "Token" textarea.mono name="token" rows="4" required spellcheck="false" autocomplete="off" {} }
                button.primary type="submit" { "Check" } }
            div #token-result role="status" {}
        }
        @match &answer {
            Err(message) => (message),
            Ok(answer) => @for issuer in items(answer, &["issuers"]) { (issuer_panel(issuer)) },
        }
    }
}

fn issuer_panel(issuer: &Value) -> Markup {
    const COLUMNS: &[Column] = &[
        Column::new("Key", |row| mono(&plain(&row["kid"]))),
        Column::new("Algorithm", |row| html! { (plain(&row["alg"])) }),
        Column::new("Type", |row| html! { (plain(&row["kty"])) }),
        Column::new("Use", |row| html! { (plain(&row["use"])) }),
        Column::new("First seen", |row| time(&plain(&row["firstSeen"]))),
    ];
    let error = plain(&issuer["lastError"]);
    html! {
        section.panel {
            h2 { (plain(&issuer["issuer"])) " " (state(&plain(&issuer["kind"]))) }
            p.muted { "read " (time(&plain(&issuer["lastRefresh"]))) " next " (time(&plain(&issuer["nextRefresh"]))) }
            @if !error.is_empty() { (notice(Tone::Bad, "The keys could not be read", &error)) }
            (table(&format!("Keys of {}", plain(&issuer["issuer"])), items(issuer, &["keys"]), COLUMNS, "No key is known."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_not_used_are_shown_first() {
        let endpoint = |address: &str, ejected: Value, draining: bool| json!({ "address": address, "healthy": true, "ejected": ejected, "draining": draining });
        let ejected = endpoint("c", json!({ "cause": "tls_failed" }), false);
        let drained = endpoint("d", Value::Null, true);
        let answer = json!({ "upstreams": [
            { "name": "good", "endpoints": [endpoint("a", Value::Null, false)] },
            { "name": "bad", "endpoints": [endpoint("b", Value::Null, false), ejected, drained] },
            { "name": "empty", "endpoints": [] },
        ] });
        let rows = endpoint_rows(&answer);
        let rows: Vec<String> = rows
            .iter()
            .map(|(name, row)| {
                format!(
                    "{name} {}",
                    row.map_or(String::new(), |row| plain(&row["address"]))
                )
            })
            .collect();
        assert_eq!(rows, ["bad c", "bad d", "empty ", "good a", "bad b"]);
        for excluded in [
            &answer["upstreams"][1]["endpoints"][1],
            &answer["upstreams"][1]["endpoints"][2],
        ] {
            let shown = endpoint_state(excluded).into_string();
            assert!(!shown.contains("healthy"), "{shown}");
        }
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
    fn counts_of_a_route_link_to_its_requests() {
        let row = json!({ "name": "a&b", "requests": { "2xx": 3, "4xx": 2 } });
        let shown = requests_link(&row, "4xx").into_string();
        assert!(
            shown.contains("href=\"/requests?route=a%26b&amp;status=4xx\">2<"),
            "{shown}"
        );
        let shown = requests_link(&row, "").into_string();
        assert!(
            shown.contains("href=\"/requests?route=a%26b\">5<"),
            "{shown}"
        );
    }
}
