//! The gateway's configuration: editor, check, and history.

use maud::{Markup, html};
use serde_json::{Value, json};

use super::{Context, heading, items};
use crate::actions::path_segment;
use crate::config::ProcessKind::Gateway;
use crate::processes::Call;
use crate::widgets::{
    Column, Tone, action, facts, json_block, mono, notice, plain, state, table, time,
};

pub(super) async fn editor(context: &Context<'_>) -> Markup {
    let answer = context.ask(Gateway, "/admin/config").await;
    let status = context.ask_all(Gateway, "/config/status").await;
    html! {
        (heading("Configuration"))
        @match answer {
            Err(message) => {
                (message)
                @for (process, status) in &status { section.panel { h2 { (mono(&process.name)) }
                    @match status { Ok(status) => (json_block(status)), Err(error) => p.bad { (error) } } } }
            },
            Ok(answer) => (form(context, &answer)),
        }
    }
}

fn form(context: &Context<'_>, answer: &Value) -> Markup {
    let is_editable = answer["editable"] != false && context.is_operator();
    let error = plain(&answer["lastError"]);
    html! {
        section.panel {
            (facts(&[
                ("File", mono(&plain(&answer["file"]))), ("Hash", mono(&plain(&answer["hash"]))),
                ("Version", html! { (plain(&answer["version"])) }), ("Loaded", time(&plain(&answer["loadedAt"]))),
                ("Includes", mono(&plain(&answer["includedFiles"]))),
            ]))
        }
        @if !error.is_empty() { (notice(Tone::Bad, "The last reload was rejected", &error)) }
        form.panel.stack #configuration data-action="configuration.save" data-confirm="Save this file and reload it at every gateway?" {
            input type="hidden" name="baseHash" value=(plain(&answer["hash"]));
            label { "Text" textarea.mono.editor name="text" rows="28" spellcheck="false" readonly[!is_editable] { (plain(&answer["text"])) } }
            div.buttons {
                button type="button" #check-configuration { "Check" }
                @if is_editable { button.primary type="submit" { "Save and reload" } }
                @else { span.muted { "Read only: " @if context.is_operator() { "the file cannot be edited" } @else { "changes require the role operator" } } }
            }
            div #check-result role="status" {}
        }
    }
}

/// Renders the result of a check of a text.
pub(crate) async fn check(context: &Context<'_>, text: &str) -> Markup {
    const MISTAKES: &[Column] = &[
        Column::new("Place", |row| {
            mono(&format!("{}:{}", plain(&row["file"]), plain(&row["line"])))
        }),
        Column::new("Key", |row| mono(&plain(&row["key"]))),
        Column::new("Message", |row| html! { (plain(&row["message"])) }),
    ];
    const TESTS: &[Column] = &[
        Column::new("Place", |row| {
            mono(&format!("{}:{}", plain(&row["file"]), plain(&row["line"])))
        }),
        Column::new("Request", |row| mono(&plain(&row["request"]))),
        Column::new("Result", |row| {
            state(if row["ok"] == true { "ok" } else { "failed" })
        }),
        Column::new("Detail", |row| html! { (plain(&row["detail"])) }),
    ];
    let call = Call::post("/admin/config/check", json!({ "text": text }));
    let answer = match context.send(Gateway, &call).await {
        Ok(answer) => answer,
        Err(message) => return message,
    };
    let errors = items(&answer, &["errors"]);
    let list = |name: &str| answer[name].as_array().map_or(&[][..], Vec::as_slice);
    html! {
        h3 { "Check " (state(if answer["errors"].as_array().is_some_and(Vec::is_empty) { "ok" } else { "failed" })) }
        @if answer["widened"] == true { (notice(Tone::Warn, "More is allowed than before", "some requests that were rejected would be accepted; read the differences")) }
        (table("Errors", errors, MISTAKES, "No errors."))
        @if !list("warnings").is_empty() { h3 { "Warnings" } (table("Warnings", list("warnings"), MISTAKES, "")) }
        @if !list("tests").is_empty() { h3 { "Tests" } (table("Tests", list("tests"), TESTS, "")) }
        @if !list("differences").is_empty() { h3 { "Differences" } (json_block(&answer["differences"])) }
    }
}

pub(super) async fn history(context: &Context<'_>) -> Markup {
    const COLUMNS: &[Column] = &[
        Column::number(
            "Number",
            |row| html! { a href={ "/history/" (path_segment(&plain(&row["number"]))) } { (plain(&row["number"])) } },
        ),
        Column::new("Loaded", |row| time(&plain(&row["loadedAt"]))),
        Column::new("By", |row| html! { (plain(&row["operator"])) }),
        Column::new("Hash", |row| mono(&plain(&row["hash"]))),
        Column::new("Change", |row| html! { (plain(&row["summary"])) }),
    ];
    let answer = context.ask(Gateway, "/admin/config/history").await;
    html! {
        (heading("History of the configuration"))
        @match answer {
            Err(message) => (message),
            Ok(answer) => section.panel { (table("History", items(&answer, &["history", "entries"]), COLUMNS, "No configuration is recorded yet.")) },
        }
    }
}

pub(super) async fn entry(context: &Context<'_>, number: &str) -> Markup {
    let answer = context
        .ask(
            Gateway,
            &format!("/admin/config/history/{}", path_segment(number)),
        )
        .await;
    html! {
        (heading(&format!("Configuration {number}")))
        @match answer {
            Err(message) => (message),
            Ok(answer) => {
                @if context.is_operator() { div.buttons {
                    (action("configuration.restore", "Restore", &[("target", number)], "Replace the present configuration by this one?", Tone::Bad))
                } }
                section.panel {
                    (facts(&[("Loaded", time(&plain(&answer["loadedAt"]))), ("By", html! { (plain(&answer["operator"])) }), ("Hash", mono(&plain(&answer["hash"])))]))
                    pre.code tabindex="0" { (plain(&answer["text"])) }
                }
            }
        }
    }
}
