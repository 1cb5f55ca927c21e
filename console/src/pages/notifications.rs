//! Notifications, dead letters and providers.

use maud::{Markup, html};
use serde_json::{Value, json};

use super::{Context, heading, instant, items, next_page, options};
use crate::actions::{path_segment, record};
use crate::config::ProcessKind::Notify;
use crate::processes::{Call, Reply};
use crate::widgets::{
    CHANNELS, Column, Tone, action, badge, facts, first, json_block, members, mono, plain, state,
    table, time,
};

const STATUSES: [&str; 7] = [
    "SCHEDULED",
    "QUEUED",
    "SENT",
    "DELIVERED",
    "FAILED",
    "CANCELLED",
    "EXPIRED",
];
const FILTERS: [&str; 8] = [
    "recipient",
    "status",
    "template",
    "channel",
    "from",
    "to",
    "cursor",
    "limit",
];

/// The parameter with which the message of a notification is shown, and its value.
const MESSAGE: &str = "message";
const SHOWN: &str = "shown";

const COLUMNS: &[Column] = &[
    Column::new("Accepted", |row| time(&plain(&row["createdAt"]))),
    Column::new("Notification", |row| {
        let id = plain(first(row, &["notificationId", "id"]));
        html! { a.mono href={ "/notifications/" (path_segment(&id)) } { (id) } }
    }),
    Column::new("Template", |row| html! { (plain(&row["template"])) }),
    Column::new("Channel", |row| html! { (plain(&row["channel"])) }),
    Column::new("Priority", |row| html! { (plain(&row["priority"])) }),
    Column::new("Recipient", |row| html! { span.mono { (recipient(row)) } }),
    Column::number("Attempts", |row| html! { (plain(&row["attempts"])) }),
    Column::new("Status", |row| {
        let (status, reason) = (
            plain(&row["status"]),
            plain(first(row, &["reason", "waitReason"])),
        );
        html! { (state(&status)) @if reason != status { " " span.muted { (reason) } } }
    }),
];

const DEAD_COLUMNS: &[Column] = &[
    Column::new("Failed", |row| time(&plain(&row["at"]))),
    Column::new("Notification", |row| {
        let id = plain(&row["notificationId"]);
        html! { a.mono href={ "/notifications/" (path_segment(&id)) } { (id) } }
    }),
    Column::new("Template", |row| html! { (plain(&row["template"])) }),
    Column::new("Channel", |row| html! { (plain(&row["channel"])) }),
    Column::new("Priority", |row| html! { (plain(&row["priority"])) }),
    Column::number("Attempts", |row| html! { (plain(&row["attempts"])) }),
    Column::new("Provider", |row| html! { (plain(&row["provider"])) }),
    Column::new("Reason", |row| {
        html! { (badge(Tone::Bad, &plain(&row["code"]))) " " span.muted { (plain(&row["lastReply"])) } }
    }),
];

pub(super) async fn list(context: &Context<'_>) -> Markup {
    let parameters = FILTERS.map(|name| (name, context.parameter(name)));
    let answer = context
        .list(Notify, "/admin/notifications", &parameters)
        .await;
    html! {
        (heading("Notifications"))
        form.filters action="/notifications" {
            label { "Recipient" input name="recipient" value=(context.parameter("recipient")); }
            label { "Status" select name="status" { (options(&STATUSES, context.parameter("status"))) } }
            label { "Channel" select name="channel" { (options(&CHANNELS, context.parameter("channel"))) } }
            label { "Template" input name="template" value=(context.parameter("template")); }
            label { "Accepted in the last" select data-hours-before-now="from" {
                option value="" { "–" } @for (hours, title) in [(1, "hour"), (24, "24 hours"), (168, "7 days")] { option value=(hours) { (title) } }
            } }
            (instant("From", "from", context.parameter("from")))
            (instant("To", "to", context.parameter("to")))
            button type="submit" { "Filter" }
        }
        @match answer {
            Err(message) => (message),
            Ok(answer) => {
                section.panel { (table("Notifications", items(&answer, &["notifications"]), COLUMNS, "No notification matches.")) }
                (next_page("/notifications", &parameters, &answer))
            }
        }
    }
}

/// Returns the address of a notification, or the kind of the recipient.
fn recipient(notification: &Value) -> String {
    let recipient = &notification["recipient"];
    let mut addresses = recipient.as_object().into_iter().flatten();
    plain(addresses.next().map_or(recipient, |(_, address)| address))
}

pub(super) async fn one(context: &Context<'_>, id: &str) -> Markup {
    let path = format!("/admin/notifications/{}", path_segment(id));
    let shown = match context.ask(Notify, &path).await {
        Ok(shown) => shown,
        Err(message) => {
            return html! { (heading(id)) (message) p { a href={ "/search?kind=notification&q=" (path_segment(id)) } { "Search its time line" } } };
        }
    };
    let document = first(&shown, &["notification", "status"]);
    let document = if document.is_object() {
        document
    } else {
        &shown
    };
    let value = |name: &str| html! { (plain(&document[name])) };
    // The entries are the events, with suppressions and reports.
    let entries = items(&shown, &["entries"]);
    html! {
        (heading(&format!("Notification {id}")))
        (buttons(context, id, &plain(&document["status"])))
        div.grid {
            section.panel.full { h2 { "State" } (facts(&[
                ("Status", html! { (state(&plain(&document["status"]))) " " (plain(&document["reason"])) }),
                ("Channel", value("channel")), ("Priority", value("priority")),
                ("Template", html! { (plain(&document["template"])) " " span.muted { (plain(&document["templateVersion"])) } }),
                ("Recipient", mono(&recipient(document))), ("Creator", mono(&plain(&document["creator"]))),
                ("Accepted", time(&plain(&document["createdAt"]))), ("Changed", time(&plain(&document["updatedAt"]))),
                ("Not before", optional_time(&document["sendAt"])), ("Expires", optional_time(&document["expiresAt"])),
                ("Next attempt", html! { @if !document["nextAttemptAt"].is_null() { (time(&plain(&document["nextAttemptAt"]))) " " (plain(&document["waitReason"])) } }),
            ])) }
            section.panel.full { h2 { "Time line" } ol.timeline { @for entry in entries { (step(entry)) } } }
            (message(context, id, &path).await)
            section.panel.full { details { summary { "Everything that is stored" } (json_block(&shown)) } }
        }
    }
}

/// Returns an instant, or nothing.
fn optional_time(value: &Value) -> Markup {
    html! { @if !value.is_null() { (time(&plain(value))) } }
}

/// Statuses in which a notification cannot be cancelled.
const FINAL_STATUSES: [&str; 4] = ["SENT", "DELIVERED", "FAILED", "CANCELLED"];

/// Returns the changes that are possible in a status.
fn buttons(context: &Context<'_>, id: &str, status: &str) -> Markup {
    let target = [("target", id)];
    html! { @if context.is_operator() { div.buttons {
        @if status == "FAILED" { (action("notification.retry", "Retry", &target, "Try to deliver this notification again?", Tone::Plain)) }
        @if !FINAL_STATUSES.contains(&status) { (action("notification.cancel", "Cancel", &target, "Cancel this notification, if it still waits?", Tone::Bad)) }
    } } }
}

fn step(event: &Value) -> Markup {
    let name = plain(&event["event"]);
    let is_cause = name == "FAILED";
    html! {
        li class=[is_cause.then_some("cause")] {
            (time(&plain(&event["at"])))
            div.service { (state(&name)) }
            div { (members(event, &["at", "event", "source", "notificationId"])) }
        }
    }
}

/// Returns the message, if an operator has asked for it: it may have a code or a link that signs its
/// recipient in. The console and the process log who has read which message.
async fn message(context: &Context<'_>, id: &str, path: &str) -> Markup {
    let title = html! { h2 { "What was sent" } };
    if !context.is_operator() {
        return html! { section.panel.full { (title)
            p.muted { "The message may contain codes and links. Reading it requires the role operator." }
        } };
    }
    if context.parameter(MESSAGE) != SHOWN {
        let address = format!("/notifications/{}?{MESSAGE}={SHOWN}", path_segment(id));
        return html! { section.panel.full { (title)
            p.muted { "The message may contain codes and links. The log records who has read it." }
            p { a.button href=(address) { "Show the message" } }
        } };
    }
    let call = Call {
        operator: Some(&context.person.subject),
        ..Call::get(format!("{path}/preview"))
    };
    let reply = context.directory.call_any(Notify, &call).await;
    let is_done = reply.as_ref().is_ok_and(Reply::is_success);
    record(context.person, "notification.read_message", id, is_done);
    html! { section.panel.full { (title)
        @match reply {
            Ok(reply) if is_done => (rendered(context, &reply.json())),
            Ok(reply) => p.muted { "The content is not available: " (reply.problem()) },
            Err(error) => p.muted { "The content is not available: " (error) },
        }
    } }
}

/// Returns a rendered message. HTML comes from templates and variables: it is shown in a frame with
/// an origin of its own, and as its source.
pub(super) fn rendered(context: &Context<'_>, content: &Value) -> Markup {
    html! {
        (facts(&[("Subject", html! { (plain(&content["subject"])) }), ("Segments", html! { (plain(&content["segments"])) })]))
        @if content["text"].is_string() { h3 { "Text" } pre.code tabindex="0" { (plain(&content["text"])) } }
        @if content["html"].is_string() { h3 { "HTML" } (context.frames.frame(&plain(&content["html"])))
            details { summary { "HTML source" } pre.code tabindex="0" { (plain(&content["html"])) } } }
        @for error in items(content, &["errors"]) { p.bad { (plain(error)) } }
    }
}

pub(super) async fn dead_letters(context: &Context<'_>) -> Markup {
    let names = ["code", "provider", "template", "channel", "before"];
    let parameters = names.map(|name| (name, context.parameter(name)));
    let answer = context.list(Notify, "/admin/dead", &parameters).await;
    let set = parameters.iter().filter(|(_, value)| !value.is_empty());
    let selector: serde_json::Map<String, Value> = set
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect();
    let has_selector = !selector.is_empty();
    let selector = Value::Object(selector).to_string();
    html! {
        (heading("Dead letters"))
        form.filters action="/dead-letters" {
            label { "Code" input name="code" value=(context.parameter("code")); }
            label { "Provider" input name="provider" value=(context.parameter("provider")); }
            label { "Template" input name="template" value=(context.parameter("template")); }
            label { "Channel" select name="channel" { (options(&CHANNELS, context.parameter("channel"))) } }
            (instant("Before", "before", context.parameter("before")))
            button type="submit" { "Filter" }
        }
        @if context.is_operator() {
            @if has_selector { div.buttons {
                (action("dead.retry", "Count what would be retried", &[("selector", &selector), ("dryRun", "true")], "", Tone::Plain))
                (action("dead.retry", "Retry all that match", &[("selector", &selector), ("dryRun", "false")], "Retry every dead letter that matches the filter?", Tone::Plain))
            } } @else { p.muted { "Set a filter to retry dead letters together." } }
        }
        @match answer {
            Err(message) => (message),
            Ok(answer) => section.panel { (table("Dead letters", items(&answer, &["deadLetters"]), DEAD_COLUMNS, "There is no dead letter.")) },
        }
    }
}

pub(super) async fn providers(context: &Context<'_>) -> Markup {
    let answer = context.ask(Notify, "/admin/providers").await;
    html! {
        (heading("Providers"))
        @match answer {
            Err(message) => (message),
            Ok(answer) => div.grid {
                @for provider in items(&answer, &["providers"]) { (provider_panel(context, provider)) }
                @if items(&answer, &["providers"]).is_empty() { p.muted { "No provider is configured." } }
            },
        }
    }
}

fn provider_panel(context: &Context<'_>, provider: &Value) -> Markup {
    let name = plain(first(provider, &["name", "provider"]));
    let is_paused = provider["paused"].is_object();
    let calls = &provider["calls"];
    let count = |outcome: &str| calls[outcome].as_u64().unwrap_or_default();
    let latency = calls["meanSeconds"].as_f64();
    let members = [
        (
            "Channel",
            html! { (plain(&provider["channel"])) " by " (plain(&provider["kind"])) },
        ),
        ("Circuit breaker", state(&plain(&provider["breaker"]))),
        (
            "Calls since the start",
            html! { (count("ok")) " ok, " (count("refused")) " refused, " (count("failed")) " failed" },
        ),
        (
            "Mean latency",
            html! { @if let Some(seconds) = latency { (format!("{:.0} ms", seconds * 1000.0)) } @else { "–" } },
        ),
        (
            "Limits",
            html! { @for (before, member, unit) in [("", "rate", " per second, "), ("", "concurrency", " at once, "), ("weight ", "weight", "")] {
                @if !provider[member].is_null() { (before) (plain(&provider[member])) (unit) }
            } },
        ),
        (
            "Last replies",
            html! { @for reply in items(&provider["lastReplies"], &[]) {
                a href={ "/notifications/" (path_segment(&plain(&reply["notificationId"]))) } {
                    (state(&plain(&reply["outcome"]))) " " (plain(&reply["code"]))
                } " "
            } },
        ),
    ];
    html! {
        section.panel.wide {
            h2 { (name) " " (state(if is_paused { "paused" } else if provider["isUp"] == true { "up" } else { "failed" })) }
            @if is_paused { p { (pause_text(&provider["paused"])) } }
            (facts(&members))
            @if context.is_operator() { div.buttons {
                @if is_paused {
                    (action("provider.resume", "Resume", &[("target", &name)], &resume_question(&name), Tone::Plain))
                } @else {
                    form.inline data-action="provider.pause" data-confirm=(pause_question(&name)) {
                        input type="hidden" name="target" value=(name);
                        label { "Reason to pause" input name="reason" maxlength="200"; }
                        button type="submit" class="danger" { "Pause" }
                    }
                }
                form.inline data-action="provider.test" data-confirm="" {
                    input type="hidden" name="target" value=(name);
                    label { "Test message to" input name="to" required; }
                    button type="submit" { "Send" }
                }
            } }
        }
    }
}

fn pause_text(pause: &Value) -> String {
    let text = format!(
        "Paused by {} since {}",
        plain(&pause["operator"]),
        plain(&pause["at"])
    );
    match pause["reason"].as_str() {
        Some(reason) => format!("{text}: {reason}"),
        None => text,
    }
}

fn pause_question(name: &str) -> String {
    format!(
        "Pause {name} for all replicas? The other providers of its channel take over. Without any, \
         notifications wait until you resume it."
    )
}

fn resume_question(name: &str) -> String {
    format!("Resume {name} for all replicas? Waiting notifications are sent at once.")
}
