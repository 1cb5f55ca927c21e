//! The gateways' configuration: editor, check, history, and the difference of two texts.

use std::time::Duration;

use maud::{Markup, html};
use postern_core::hidden_characters::{code_point, is_hidden};
use serde_json::{Value, json};
use similar::{ChangeTag, TextDiff};

use super::{Context, heading, items, query_string};
use crate::actions::path_segment;
use crate::config::ProcessKind::Gateway;
use crate::configuration::{bases, read_all};
use crate::processes::{Answered, Call, Process};
use crate::widgets::Cell::{Mono, NumberOf, Of, Text, Time};
use crate::widgets::{Column, Tone, badge, facts, mono, notice, plain, table, time, with};

/// Maximum lines with hidden characters that are named.
const MAX_HIDDEN_LINES: usize = 20;
/// Maximum witnesses of changed decisions that are shown.
const MAX_WITNESSES: usize = 50;
/// Time after which what remains of two texts is compared coarsely: the texts are those of an operator,
/// and others wait for the thread.
const MAX_COMPARISON_TIME: Duration = Duration::from_millis(200);

pub(super) async fn editor(context: &Context<'_>) -> Markup {
    let files = read_all(&context.state.directory).await;
    let shown = files.iter().find_map(|(_, answer)| answer.as_ref().ok());
    html! {
        (heading("Configuration"))
        @match shown {
            None => @if let Err(message) = context.ask(Gateway, "/admin/config").await { (message) },
            Some(shown) => {
                (gateways(&files))
                (form(context, &files, shown))
            }
        }
    }
}

/// Lists the gateways, each of which has its own file.
fn gateways(files: &[Answered]) -> Markup {
    let texts = files.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let texts: Vec<&Value> = texts.map(|answer| &answer["text"]).collect();
    let differ = texts.windows(2).any(|pair| pair[0] != pair[1]);
    html! {
        @if differ { (notice(Tone::Warn, "The gateways have different files", "the first one is shown; saving gives its text to all of them")) }
        @for (process, answer) in files { section.panel {
            h2 { (mono(&process.name)) }
            @match answer {
                Err(error) => p.bad { (error) },
                Ok(answer) => (gateway(answer)),
            }
        } }
    }
}

fn gateway(answer: &Value) -> Markup {
    let [error, reason] = ["lastError", "readOnlyReason"].map(|name| plain(&answer[name]));
    let is_in_force = answer["hash"] == answer["hashInForce"];
    html! {
        (facts(&[
            ("File", mono(&plain(&answer["file"]))), ("Hash", mono(&plain(&answer["hash"]))),
            ("State", if is_in_force { badge(Tone::Ok, "in force") } else { badge(Tone::Warn, "not in force") }),
            ("Version", html! { (plain(&answer["version"])) }), ("Loaded", time(&plain(&answer["loadedAt"]))),
            ("Needs a restart", html! { (plain(&answer["restartNeeded"])) }),
            ("Read only", html! { (reason) }),
        ]))
        @if !error.is_empty() { (notice(Tone::Bad, "The last reload was rejected", &error)) }
    }
}

fn form(context: &Context<'_>, files: &[Answered], shown: &Value) -> Markup {
    let is_editable = shown["editable"] != false && context.is_operator();
    html! {
        form.panel.stack #configuration data-bases=(bases(files))
            data-confirm="Save this file and reload it at every gateway?" {
            (text_area(&plain(&shown["text"]), is_editable))
            p.muted #configuration-hint {
                @if is_editable { "Tab moves to the next field. The text is checked while you type; nothing is saved before you say so." }
                @else if context.is_operator() { "Read only: the file cannot be written, see above." }
                @else { "Read only: changes require the role operator." }
            }
            p #configuration-status role="status" {}
            @if is_editable {
                div.buttons {
                    button type="button" #check-configuration { "Check" }
                    button.primary type="submit" { "Save and reload" }
                }
                div #configuration-conflict {}
                div #check-result {}
            }
        }
    }
}

/// Returns the text with the numbers of its lines.
fn text_area(text: &str, is_editable: bool) -> Markup {
    html! {
        label for="configuration-text" { "Text" }
        div.code-editor {
            pre.line-numbers aria-hidden="true" {}
            textarea.mono #configuration-text name="text" rows="28" wrap="off" spellcheck="false" autocomplete="off"
                aria-describedby="configuration-hint configuration-status" readonly[!is_editable] { "\n" (text) }
        }
        (hidden_characters(text))
    }
}

/// Names the lines with characters that the editor does not show, or that reorder others.
fn hidden_characters(text: &str) -> Markup {
    let lines = text.lines().enumerate().filter_map(|(at, line)| {
        let found = line.chars().find(|character| is_hidden(*character))?;
        Some(format!("line {}: {}", at + 1, code_point(found)))
    });
    let lines: Vec<String> = lines.take(MAX_HIDDEN_LINES).collect();
    html! {
        @if !lines.is_empty() { (notice(Tone::Warn, "Characters that are not shown, or that reorder the text", &lines.join("; "))) }
    }
}

/// Renders the result of a check of a text.
pub(crate) async fn check(context: &Context<'_>, text: &str) -> Markup {
    let call = Call::post("/admin/config/check", json!({ "text": text }));
    let answer = match context.send(Gateway, &call).await {
        Ok(answer) => answer,
        Err(message) => {
            return html! { div data-summary="The check has failed" data-tone="bad" { (message) } };
        }
    };
    let list = |name: &str| items(&answer[name]);
    let (errors, tests) = (list("errors"), list("tests"));
    let failing = tests.iter().filter(|test| test["ok"] != true).cloned();
    let failing: Vec<Value> = failing.collect();
    let (summary, tone) = match (errors.len(), failing.len()) {
        (0, 0) => ("The text is good".to_owned(), "ok"),
        (0, failed) => (format!("{failed} of {} tests fail", tests.len()), "bad"),
        (1, _) => ("1 error".to_owned(), "bad"),
        (errors, _) => (format!("{errors} errors"), "bad"),
    };
    let widened = answer["widened"] == true || !answer["differencesError"].is_null();
    let summary = match (tone, widened) {
        ("ok", true) => format!("{summary}, and requests that are rejected now would be accepted"),
        _ => summary,
    };
    html! {
        div data-summary=(summary) data-tone=(if widened && tone == "ok" { "warn" } else { tone }) {
            @if !errors.is_empty() { h2 { "Errors" } (table("Errors", errors, PLACES, "")) }
            @if !failing.is_empty() { h2 { "Failing tests" } (table("Tests", &failing, TESTS, "")) }
            (hidden_characters(text))
            @if errors.is_empty() {
                (decisions(&answer, list("differences")))
                @if !list("restartNeeded").is_empty() {
                    (notice(Tone::Warn, "A restart is needed", &format!("for {}", plain(&answer["restartNeeded"]))))
                }
                @if !list("warnings").is_empty() { h2 { "Warnings" } (table("Warnings", list("warnings"), PLACES, "")) }
                p.muted { (tests.len() - failing.len()) " of " (tests.len()) " tests pass." }
            }
        }
    }
}

const PLACES: &[Column] = &[
    ("Line", Of(place)),
    ("Key", Mono("key")),
    ("Message", Text("message")),
];

const TESTS: &[Column] = &[
    ("Line", Of(place)),
    ("Request", Mono("request")),
    ("Result", Text("detail")),
];

/// Returns a button that moves to the line.
fn place(row: &Value) -> Markup {
    let line = plain(&row["line"]);
    html! { @if !line.is_empty() { button type="button" data-line=(line) { "line " (line) } } }
}

/// Returns the requests that change their decision, wider ones first, with the consent to these.
fn decisions(answer: &Value, differences: &[Value]) -> Markup {
    let count = answer["differenceCount"].as_u64().unwrap_or_default();
    let error = plain(&answer["differencesError"]);
    let is_wider = answer["widened"] == true;
    html! {
        h2 { "Requests that change their decision" }
        @if is_wider { (notice(Tone::Bad, "More is allowed than now", "requests marked as widened are rejected now and would be accepted")) }
        @if !error.is_empty() { (notice(Tone::Bad, "The changes are not known", &error)) }
        @if differences.is_empty() && error.is_empty() { p.muted { "None." } }
        ul.plain.witnesses {
            @for difference in differences.iter().take(MAX_WITNESSES) { li { (witness(difference)) } }
        }
        @if count > MAX_WITNESSES as u64 { p.muted { "The first " (MAX_WITNESSES) " of " (count) " are shown." } }
        @if is_wider || !error.is_empty() {
            label.consent { input type="checkbox" #allow-widened; span { "I have read this, and want these requests to be accepted." } }
        }
    }
}

/// Returns one request and its two decisions.
fn witness(difference: &Value) -> Markup {
    let headers = difference["headers"].as_array().into_iter().flatten();
    let headers: Vec<String> = headers
        .map(|pair| format!("{}: {}", plain(&pair[0]), plain(&pair[1])))
        .collect();
    let caller = plain(&difference["caller"]);
    html! {
        div {
            span.mono { (plain(&difference["method"])) " " (plain(&difference["target"])) }
            @if difference["widened"] == true { " " (badge(Tone::Bad, "widened")) }
            div.muted {
                "host " (plain(&difference["host"])) " · caller " @if caller.is_empty() { "any" } @else { (caller) }
                @for header in headers { " · " (header) }
                @if !difference["client_address"].is_null() { " · address " (plain(&difference["client_address"])) }
            }
        }
        dl.decisions {
            div { dt { "now" } dd { (decision(&difference["old"])) } }
            div { dt { "then" } dd { (decision(&difference["new"])) } }
        }
    }
}

fn decision(side: &Value) -> Markup {
    let (route, detail) = (plain(&side["route"]), plain(&side["detail"]));
    let authorization = plain(&side["external_authorization"]);
    html! {
        strong { (plain(&side["status"])) " " (plain(&side["decision"])) }
        span.muted {
            @if route.is_empty() { " no route" } @else { " route " (route) }
            @if !detail.is_empty() { ", " (detail) }
            @if !authorization.is_empty() { ", if " (authorization) " allows it" }
        }
    }
}

/// Renders how the files of the gateways differ from the text on which an edited one is based.
pub(crate) fn changes(files: &[Answered], base: &str) -> Markup {
    html! {
        (notice(Tone::Warn, "The file has changed since this page was loaded", "your text is kept above. Below is what the others have changed"))
        @for (process, answer) in files { @match answer {
            Err(error) => p.bad { (mono(&process.name)) " " (error) },
            Ok(answer) => {
                h2 { (mono(&process.name)) }
                (difference("Changes of others", base, &plain(&answer["text"])))
            }
        } }
        div.buttons { button type="button" #keep-text { "Keep my text" } }
        p.muted { "Then check and save again: your text replaces theirs." }
    }
}

/// Returns the lines that turn one text into another, with three lines around each change.
fn difference(caption: &str, before: &str, after: &str) -> Markup {
    let differences = TextDiff::configure()
        .timeout(MAX_COMPARISON_TIME)
        .diff_lines(before, after);
    let hunks = differences.unified_diff();
    html! {
        @if before == after { p.muted { "The texts are equal." } }
        @else {
            pre.code.difference tabindex="0" role="region" aria-label=(caption) {
                @for hunk in hunks.iter_hunks() {
                    span.muted { (hunk.header()) "\n" }
                    @for change in hunk.iter_changes() {
                        @let line = change.value().trim_end_matches(['\r', '\n']);
                        @match change.tag() {
                            ChangeTag::Equal => span { "  " (line) "\n" },
                            ChangeTag::Delete => del { "- " (line) "\n" },
                            ChangeTag::Insert => ins { "+ " (line) "\n" },
                        }
                    }
                }
            }
        }
    }
}

/// Returns the gateway of the parameter `process`, by default the first, and its answer.
async fn ask_selected(context: &Context<'_>, path: &str) -> Result<(Process, Value), Markup> {
    let name = context.parameter("process");
    let directory = &context.state.directory;
    let replicas = directory.of(Gateway);
    let mut selected = replicas.iter();
    let selected = selected.find(|process| name.is_empty() || process.name == name);
    let Some(process) = selected else {
        return Err(notice(Tone::Warn, "Not found", "there is no such gateway"));
    };
    let reply = directory.call(process, &Call::get(path)).await;
    Context::read(Gateway, path, reply).map(|answer| (process.clone(), answer))
}

pub(super) async fn history(context: &Context<'_>) -> Markup {
    let answer = ask_selected(context, "/admin/config/history").await;
    html! {
        (heading("History of the configuration"))
        @match answer {
            Err(message) => (message),
            Ok((process, answer)) => (entries(context, &process, &answer)),
        }
    }
}

fn entries(context: &Context<'_>, process: &Process, answer: &Value) -> Markup {
    const COLUMNS: &[Column] = &[
        ("Number", NumberOf(number)),
        ("Loaded", Time("loadedAt")),
        ("By", Text("operator")),
        ("Change", Of(change)),
        ("Hash", Mono("hash")),
    ];
    let query = json!({ "query": query_string(&[("process", process.name.as_str())]) });
    let rows = items(&answer["history"]).iter();
    let rows: Vec<Value> = rows.map(|row| with(row, &query)).collect();
    let fault = plain(&answer["fault"]);
    html! {
        @if !fault.is_empty() { (notice(Tone::Warn, "Not written to the folder", &fault)) }
        (selection(context, process))
        section.panel { (table("History", &rows, COLUMNS, "No configuration is recorded yet.")) }
        p.muted { "Each gateway has its own history. " (mono(&process.name)) ": " (plain(&answer["folder"])) }
    }
}

fn number(row: &Value) -> Markup {
    let number = plain(&row["number"]);
    html! { a href={ "/history/" (path_segment(&number)) "?" (plain(&row["query"])) } { (number) } }
}

fn change(row: &Value) -> Markup {
    let summary = &row["summary"];
    html! { (plain(&summary["text"])) @if summary["widened"].as_u64().is_some_and(|count| count > 0) { " " (badge(Tone::Bad, "widened")) } }
}

/// Returns the selection of a gateway.
fn selection(context: &Context<'_>, process: &Process) -> Markup {
    let replicas = context.state.directory.of(Gateway);
    html! {
        @if replicas.len() > 1 { form.filters action="/history" {
            label { "Gateway" select name="process" {
                @for replica in &replicas { option value=(replica.name) selected[replica.name == process.name] { (replica.name) } }
            } }
            button type="submit" { "Show" }
        } }
    }
}

pub(super) async fn entry(context: &Context<'_>, number: &str) -> Markup {
    let path = format!("/admin/config/history/{}", path_segment(number));
    let answer = ask_selected(context, &path).await;
    // Those of a gateway are numbered one after the other.
    let before = number.parse().unwrap_or(0_u64).saturating_sub(1);
    let before = format!("/admin/config/history/{before}");
    html! {
        (heading(&format!("Configuration {number}")))
        @match answer {
            Err(message) => (message),
            Ok((process, answer)) => {
                section.panel { (facts(&[
                    ("Gateway", mono(&process.name)), ("Loaded", time(&plain(&answer["loadedAt"]))),
                    ("By", html! { (plain(&answer["operator"])) }), ("Hash", mono(&plain(&answer["hash"]))),
                    ("Change", html! { (plain(&answer["summary"]["text"])) }),
                ])) }
                section.panel { h2 { "What this configuration changed" } @match ask_selected(context, &before).await {
                    Ok((_, before)) => (difference("Difference to the one before", &plain(&before["text"]), &plain(&answer["text"]))),
                    Err(_) => p.muted { "The one before is not kept." },
                } }
                (roll_back(context, &answer).await)
            }
        }
    }
}

/// Returns the text with its difference to the present file, and the form that restores it.
async fn roll_back(context: &Context<'_>, answer: &Value) -> Markup {
    let files = read_all(&context.state.directory).await;
    let present = files.iter().find_map(|(_, answer)| answer.as_ref().ok());
    let text = plain(&answer["text"]);
    let is_offered = context.is_operator() && present.is_some_and(|it| it["editable"] != false);
    html! {
        @if let Some(present) = present {
            section.panel { h2 { "What a roll back changes" } (difference("Difference to the present file", &plain(&present["text"]), &text)) }
        }
        form.panel.stack #configuration data-bases=(bases(&files)) data-kept
            data-confirm="Replace the file by this text and reload it at every gateway?" {
            (text_area(&text, false))
            p.muted #configuration-hint { "The text that the file gets." }
            p #configuration-status role="status" {}
            @if is_offered {
                div.buttons { button.primary type="submit" { "Roll back to " (plain(&answer["number"])) } }
                div #configuration-conflict {}
                div #check-result {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn changed_lines_are_shown_with_three_lines_around() {
        let before = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        let shown = difference("x", before, "1\n2\n3\n4\nfive<\n6\n7\n8\n9\n").into_string();
        let expected = "<span class=\"muted\">@@ -2,7 +2,7 @@\n</span><span>  2\n</span><span>  3\n</span><span>  4\n</span>\
             <del>- 5\n</del><ins>+ five&lt;\n</ins><span>  6\n</span><span>  7\n</span><span>  8\n</span></pre>";
        assert!(shown.ends_with(expected), "{shown}");
        let shown = difference("x", before, before).into_string();
        assert!(shown.contains("The texts are equal."), "{shown}");
        // The last line has no end.
        let shown = difference("x", "a\nb", "").into_string();
        assert!(shown.contains("<del>- b\n</del>"), "{shown}");
    }

    #[test]
    fn large_texts_are_compared_in_bounded_time() {
        let lines = |word: &str| {
            (0..20_000)
                .map(|at| format!("{word}{at}\n"))
                .collect::<String>()
        };
        let started_at = Instant::now();
        let shown = difference("x", &lines("a"), &lines("b")).into_string();
        assert_eq!(shown.matches("<ins>").count(), 20_000);
        let took = started_at.elapsed();
        assert!(took < 25 * MAX_COMPARISON_TIME, "{took:?}");
    }
}
