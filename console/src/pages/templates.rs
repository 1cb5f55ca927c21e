//! Templates with preview, and the suppression list.

use std::collections::BTreeSet;

use maud::{Markup, html};
use serde_json::{Value, json};

use super::notifications::rendered;
use super::{Context, heading, items, options};
use crate::actions::path_segment;
use crate::config::ProcessKind::Notify;
use crate::processes::Call;
use crate::widgets::Cell::{Link, Mono, Of, Text, Time};
use crate::widgets::{CHANNELS, Column, Tone, action, mono, plain};

const COLUMNS: &[Column] = &[
    ("Template", Link("/templates/", "name")),
    ("Version", Text("version")),
    ("Channels", Of(|row| mono(&of_variants(row, "channel")))),
    ("Languages", Of(|row| mono(&of_variants(row, "locale")))),
    ("Variables", Of(|row| mono(&of_variants(row, "variables")))),
];

/// Returns the values that a member has in the variants of a template, each once.
fn of_variants(template: &Value, member: &str) -> String {
    let variants = template["variants"].as_array().into_iter().flatten();
    let values = variants.flat_map(|variant| match variant[member].as_array() {
        Some(values) => values.iter().map(plain).collect(),
        None => vec![plain(&variant[member])],
    });
    let values: BTreeSet<String> = values.filter(|value| !value.is_empty()).collect();
    values.into_iter().collect::<Vec<_>>().join(", ")
}

pub(super) async fn list(context: &Context<'_>) -> Markup {
    html! {
        (heading("Templates"))
        (context.listing("/templates", (Notify, "/admin/templates"), ("templates", COLUMNS, "There is no template."), &[]).await)
    }
}

/// Returns a template of the list; `null` if it is not there.
async fn find(context: &Context<'_>, name: &str) -> Value {
    let answer = context.ask(Notify, "/admin/templates").await;
    let answer = answer.unwrap_or_default();
    let mut templates = items(&answer["templates"]).iter();
    let template = templates.find(|template| template["name"] == name);
    template.cloned().unwrap_or_default()
}

/// Returns a sample of the variables of a template.
fn sample(template: &Value) -> String {
    let names = of_variants(template, "variables");
    let names = names.split(", ").filter(|name| !name.is_empty());
    let variables = names.map(|name| (name.to_owned(), json!(name.replace('_', " "))));
    format!("{:#}", Value::Object(variables.collect()))
}

/// Shows a template of a channel in all its languages, side by side.
pub(super) async fn one(context: &Context<'_>, name: &str) -> Markup {
    let template = find(context, name).await;
    let variants = items(&template["variants"]);
    let variables = match context.parameter("variables") {
        "" => sample(&template),
        text => text.to_owned(),
    };
    let channel = match context.parameter("channel") {
        "" => plain(&template["variants"][0]["channel"]),
        channel => channel.to_owned(),
    };
    let of_channel = variants.iter().filter(|it| it["channel"] == channel);
    let mut locales: Vec<String> = of_channel.map(|it| plain(&it["locale"])).collect();
    locales.sort();
    if locales.is_empty() {
        locales.push(String::new());
    }
    html! {
        (heading(&format!("Template {name}")))
        form.panel.stack action={ "/templates/" (path_segment(name)) } {
            label { "Channel" select name="channel" { (options(&CHANNELS, &channel)) } }
            label { "Variables (JSON)" textarea.mono name="variables" rows="5" spellcheck="false" { (variables) } }
            button type="submit" { "Preview" }
        }
        @if !channel.is_empty() { div.languages { @for locale in &locales {
            section.panel lang=[Some(locale).filter(|it| !it.is_empty())] { h2 { @if locale.is_empty() { "Preview" } @else { (locale) } } (preview(context, name, &channel, locale, &variables).await) }
        } } }
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
    let mut body = json!({ "channel": channel, "variables": variables });
    if !locale.is_empty() {
        body["locale"] = json!(locale);
    }
    let path = format!("/admin/templates/{}/preview", path_segment(name));
    match context.send(Notify, &Call::post(path, body)).await {
        Ok(content) => rendered(context, &content),
        Err(message) => message,
    }
}

const SUPPRESSED: &[Column] = &[
    ("Since", Time("at")),
    ("List", Text("list")),
    ("Channel", Text("channel")),
    ("Category", Text("category")),
    ("Reason", Text("reason")),
    ("Address (SHA-256)", Mono("addressHash")),
    // The last, for operators.
    ("Change", Of(removal)),
];

fn removal(entry: &Value) -> Markup {
    let id = plain(&entry["id"]);
    html! { (action("suppression.remove", "Remove", &[("id", &id)], "Send to this address again?", Tone::Bad)) }
}

pub(super) async fn suppression(context: &Context<'_>) -> Markup {
    let parameters = context.parameters("hash cursor");
    let count = SUPPRESSED.len() - usize::from(!context.is_operator());
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
        (context.listing("/suppression", (Notify, "/admin/suppression"), ("entries", &SUPPRESSED[..count], "No address is suppressed."), &parameters).await)
    }
}
