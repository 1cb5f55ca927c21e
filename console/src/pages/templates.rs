//! Templates with preview, and the suppression list.

use std::collections::BTreeSet;

use maud::{Markup, html};
use serde_json::{Map, Value, json};

use super::notifications::rendered;
use super::{Context, heading, items, next_page, options};
use crate::actions::path_segment;
use crate::config::ProcessKind::Notify;
use crate::processes::Call;
use crate::widgets::{CHANNELS, Column, Tone, action, first, members, mono, plain, table, time};

const COLUMNS: &[Column] = &[
    Column::new("Template", |row| {
        let name = plain(&row["name"]);
        html! { a href={ "/templates/" (path_segment(&name)) } { (name) } }
    }),
    Column::new(
        "Version",
        |row| html! { (plain(first(row, &["version", "versions"]))) " " (mono(plain(&row["hash"]).get(..8).unwrap_or_default())) },
    ),
    Column::new("Channels", |row| html! { (of_variants(row, "channel")) }),
    Column::new("Locales", |row| html! { (of_variants(row, "locale")) }),
    Column::new(
        "Variables",
        |row| html! { span.mono { (of_variants(row, "variables")) } },
    ),
];

/// Returns the values that a member has in the variants of a template, each once.
fn of_variants(template: &Value, member: &str) -> String {
    let variants = template["variants"].as_array().into_iter().flatten();
    let values = variants.flat_map(|variant| {
        let value = &variant[member];
        let several = value
            .as_array()
            .map(|values| values.iter().map(plain).collect());
        several.unwrap_or_else(|| vec![plain(value)])
    });
    let values: BTreeSet<String> = values.filter(|value| !value.is_empty()).collect();
    values.into_iter().collect::<Vec<_>>().join(", ")
}

pub(super) async fn list(context: &Context<'_>) -> Markup {
    let answer = context.ask(Notify, "/admin/templates").await;
    html! {
        (heading("Templates"))
        @match answer {
            Err(message) => (message),
            Ok(answer) => section.panel { (table("Templates", items(&answer, &["templates"]), COLUMNS, "There is no template.")) },
        }
    }
}

/// Returns the channels of a template, and a sample of its variables.
async fn sample(context: &Context<'_>, name: &str) -> (Vec<String>, String) {
    let answer = context.ask(Notify, "/admin/templates").await;
    let answer = answer.unwrap_or_default();
    let mut templates = items(&answer, &["templates"]).iter();
    let template = templates.find(|template| template["name"] == name);
    let template = template.cloned().unwrap_or_default();
    let list = |member| {
        let values = of_variants(&template, member);
        let values = values.split(", ").filter(|value| !value.is_empty());
        values.map(str::to_owned).collect::<Vec<_>>()
    };
    let variables = list("variables").into_iter().map(|variable| {
        let value = variable.replace('_', " ");
        (variable, Value::from(value))
    });
    let variables = Value::Object(variables.collect());
    (list("channel"), format!("{variables:#}"))
}

pub(super) async fn one(context: &Context<'_>, name: &str) -> Markup {
    let (channels, variables) = sample(context, name).await;
    let chosen = |parameter, default| match context.parameter(parameter) {
        "" => default,
        text => text,
    };
    let variables = chosen("variables", variables.as_str());
    let channel = chosen("channel", channels.first().map_or("", String::as_str));
    let locale = context.parameter("locale");
    html! {
        (heading(&format!("Template {name}")))
        section.panel {
            h2 { "Preview" }
            form.stack action={ "/templates/" (path_segment(name)) } {
                div.filters {
                    label { "Channel" select name="channel" { (options(&CHANNELS, channel)) } }
                    label { "Locale" input name="locale" placeholder="en" value=(locale); }
                }
                label { "Variables (JSON)" textarea.mono name="variables" rows="5" spellcheck="false" { (variables) } }
                button type="submit" { "Preview" }
            }
            @if !channel.is_empty() { (preview(context, name, channel, locale, variables).await) }
        }
    }
}

async fn preview(
    context: &Context<'_>,
    name: &str,
    channel: &str,
    locale: &str,
    variables: &str,
) -> Markup {
    let Ok(variables) = serde_json::from_str::<Value>(variables) else {
        return html! { p.bad { "The variables are not JSON." } };
    };
    let mut body = Map::new();
    body.insert("channel".to_owned(), json!(channel));
    body.insert("variables".to_owned(), variables);
    if !locale.is_empty() {
        body.insert("locale".to_owned(), json!(locale));
    }
    let path = format!("/admin/templates/{}/preview", path_segment(name));
    let call = Call::post(path, Value::Object(body));
    match context.send(Notify, &call).await {
        Ok(content) => rendered(context, &content),
        Err(message) => message,
    }
}

pub(super) async fn suppression(context: &Context<'_>) -> Markup {
    let parameters = ["hash", "cursor"].map(|name| (name, context.parameter(name)));
    let answer = context
        .list(Notify, "/admin/suppression", &parameters)
        .await;
    html! {
        (heading("Suppression list"))
        p.muted { "Addresses to which nothing is sent, for example after a hard bounce. Only hashes are stored." }
        // Without a name: the script hashes the address, and only the hash leaves the page.
        form.filters #suppression-search action="/suppression" {
            label.grow { "Address or its SHA-256" input.mono #address autocomplete="off" spellcheck="false"
                aria-describedby="address-hint" value=(context.parameter("hash")); }
            button type="submit" { "Search" }
        }
        p.muted #address-hint { "An address is hashed in this browser and not sent." }
        @match answer {
            Err(message) => (message),
            Ok(answer) => {
                section.panel { ul.plain { @for entry in items(&answer, &["entries", "suppressions", "items"]) { (entry_row(entry, context.is_operator())) } }
                    @if items(&answer, &["entries", "suppressions", "items"]).is_empty() { p.muted { "No address is suppressed." } } }
                (next_page("/suppression", &parameters, &answer))
            }
        }
    }
}

fn entry_row(entry: &Value, is_operator: bool) -> Markup {
    let id = plain(first(entry, &["id", "hash", "addressHash"]));
    html! {
        li { (time(&plain(first(entry, &["at", "createdAt", "since"])))) " "
            span.why { (members(entry, &["id", "at", "createdAt"])) }
            @if is_operator { (action("suppression.remove", "Remove", &[("id", &id)], "Send to this address again?", Tone::Bad)) }
        }
    }
}
