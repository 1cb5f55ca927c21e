//! The public API as a reference, from `conf/openapi.json`.

use maud::{Markup, html};
use serde_json::Value;
use std::sync::LazyLock;

use super::{Context, heading};
use crate::widgets::{Tone, badge, json_block, mono, plain};

/// The document of this version.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../../conf/openapi.json")).unwrap_or_default()
});

pub(super) fn render(context: &Context<'_>) -> Markup {
    let wanted = context.parameter("q").to_lowercase();
    let paths = DOCUMENT["paths"].as_object();
    let operations = paths.into_iter().flatten().flat_map(|(path, methods)| {
        let methods = methods.as_object().into_iter().flatten();
        methods.map(move |(method, operation)| (path.as_str(), method.to_uppercase(), operation))
    });
    let operations = operations.filter(|(_, _, operation)| operation["operationId"].is_string());
    let operations: Vec<_> = operations
        .filter(|(path, method, operation)| {
            let text = format!(
                "{method} {path} {} {}",
                plain(&operation["summary"]),
                plain(&operation["tags"])
            );
            text.to_lowercase().contains(&wanted)
        })
        .collect();
    html! {
        (heading(&format!("{} API {}", plain(&DOCUMENT["info"]["title"]), plain(&DOCUMENT["info"]["version"]))))
        p.muted { (plain(&DOCUMENT["info"]["description"])) }
        form.filters action="/api" {
            label.grow { "Method, path, summary or tag" input type="search" name="q" value=(context.parameter("q")); }
            button type="submit" { "Search" }
        }
        (access_token(context))
        p.muted { (operations.len()) " operations" }
        @for (path, method, operation) in &operations { (operation_panel(context, path, method, operation)) }
    }
}

/// The token of requests that the page sends. A session of the one-time link has none.
fn access_token(context: &Context<'_>) -> Markup {
    html! {
        div.panel.stack {
            label { "Access token for requests of this page"
                input.secret #try-token type="text" autocomplete="off" spellcheck="false" aria-describedby="try-token-hint";
            }
            p.muted #try-token-hint {
                @if context.person.is_local {
                    "Required: your session is of the console only. " (mono("postern token")) " prints one."
                } @else { "Default: the token with which you signed in." }
                " It stays on this page."
            }
        }
    }
}

fn operation_panel(context: &Context<'_>, path: &str, method: &str, operation: &Value) -> Markup {
    let body = &operation["requestBody"]["content"]["application/json"];
    let example = serde_json::to_string_pretty(&body["example"]).unwrap_or_default();
    let has_body = body.is_object();
    let can_try = method == "GET" || context.is_operator();
    html! {
        details.panel.operation {
            summary { (badge(Tone::Plain, method)) " " (mono(path)) " " span.muted { (plain(&operation["summary"])) } }
            @if operation["description"].is_string() { p { (plain(&operation["description"])) } }
            (parameters(operation))
            @if has_body { h2 { "Body" } (json_block(&resolve(&body["schema"]))) }
            h2 { "Responses" }
            dl.facts { @for (status, response) in operation["responses"].as_object().into_iter().flatten() {
                div { dt { (status) } dd { (plain(&resolve(response)["description"])) } }
            } }
            h2 { "Try it" }
            form.stack.try data-method=(method) {
                label { "Path" input.mono name="path" value=(path); }
                @if has_body { label { "Body" textarea.mono name="body" rows="6" spellcheck="false" { @if !body["example"].is_null() { (example) } } } }
                div.buttons {
                    @if can_try { button type="submit" { "Send" } } @else { span.muted { "Sending changes requires the role operator." } }
                    button type="button" data-copy-curl { "Copy as curl" }
                }
                pre.code.try-result tabindex="0" role="status" hidden {}
            }
        }
    }
}

fn parameters(operation: &Value) -> Markup {
    let list = operation["parameters"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let list: Vec<Value> = list.iter().map(resolve).collect();
    html! { @if !list.is_empty() {
        h2 { "Parameters" }
        dl.facts { @for parameter in &list { div {
            dt { (mono(&plain(&parameter["name"]))) " " span.muted { (plain(&parameter["in"])) } @if parameter["required"] == true { " " (badge(Tone::Plain, "required")) } }
            dd { (plain(&parameter["description"])) }
        } } }
    } }
}

/// Follows a reference within the document, once.
fn resolve(value: &Value) -> Value {
    let pointer = value["$ref"]
        .as_str()
        .and_then(|reference| reference.strip_prefix('#'));
    let target = pointer.and_then(|pointer| DOCUMENT.pointer(pointer));
    target.unwrap_or(value).clone()
}
