//! Notifications with the state of their queue, dead letters and providers.

use maud::{Markup, html};
use postern_core::clock::Timestamp;
use serde_json::Value;

use super::{Context, heading, instant, items, options, picture};
use crate::actions::{path_segment, record};
use crate::charts::{Line, Unit};
use crate::config::ProcessKind::Notify;
use crate::processes::{Call, Reply};
use crate::traffic::{Interval, NOTIFICATION, OLDEST, WAITING};
use crate::widgets::Cell::{Link, Number, NumberOf, Of, Text, Time};
use crate::widgets::{
    CHANNELS, Column, Tone, action, badge, duration, facts, first, members, mono, plain, state,
    table, time, words,
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

/// The parameter with which the message of a notification is shown, and its value.
const MESSAGE: &str = "message";
const SHOWN: &str = "shown";

const ID: Column = ("Notification", Link("/notifications/", "notificationId"));
const TEMPLATE: Column = ("Template", Text("template"));
const CHANNEL: Column = ("Channel", Text("channel"));
const PRIORITY: Column = ("Priority", Text("priority"));
const ATTEMPTS: Column = ("Attempts", Number("attempts"));

const COLUMNS: &[Column] = &[
    ("Accepted", Time("createdAt")),
    ID,
    TEMPLATE,
    CHANNEL,
    PRIORITY,
    ("Recipient", Of(|row| mono(&recipient(row)))),
    ATTEMPTS,
    ("Status", Of(status)),
];

const DEAD_COLUMNS: &[Column] = &[
    ("Failed", Time("at")),
    ID,
    TEMPLATE,
    CHANNEL,
    PRIORITY,
    ATTEMPTS,
    ("Provider", Text("provider")),
    ("Reason", Of(reason)),
];

const QUEUE_COLUMNS: &[Column] = &[
    CHANNEL,
    PRIORITY,
    ("First tries", Number("depth")),
    ("Retries", Number("retries")),
    ("Oldest", NumberOf(oldest)),
    ("Held back", Of(held_back)),
];

fn reason(row: &Value) -> Markup {
    html! { (badge(Tone::Bad, &plain(&row["code"]))) " " span.muted { (plain(&row["lastReply"])) } }
}

fn oldest(row: &Value) -> Markup {
    let age = row["oldestAgeSeconds"].as_f64();
    html! { (age.map_or("in delivery".to_owned(), duration)) }
}

/// Returns status and reason of a notification.
fn status(row: &Value) -> Markup {
    let status = plain(&row["status"]);
    let reason = plain(first(row, &["reason", "waitReason"]));
    html! { (state(&status)) @if reason != status { " " span.muted { (reason) } } }
}

fn held_back(row: &Value) -> Markup {
    let reason = words(&plain(&row["waitReason"]));
    html! { @if !reason.is_empty() { (badge(Tone::Warn, &reason)) } }
}

/// Returns the state of the queue and of the providers.
async fn queue(context: &Context<'_>) -> Markup {
    const BY_PRIORITY: &[Line] = &[
        ("critical", |it| it.gauge(WAITING, "CRITICAL")),
        ("high", |it| it.gauge(WAITING, "HIGH")),
        ("normal", |it| it.gauge(WAITING, "NORMAL")),
        ("low", |it| it.gauge(WAITING, "LOW")),
    ];
    const BY_OUTCOME: &[Line] = &[
        ("accepted", |it| per_second(it, "accepted")),
        ("sent", |it| per_second(it, "sent")),
        ("retrying", |it| per_second(it, "retrying")),
        ("undelivered", |it| per_second(it, "undelivered")),
    ];
    let (answer, past) = tokio::join!(context.ask(Notify, "/admin/queue"), context.past());
    let waits = |row: &&Value| row["depth"] != 0 || row["retries"] != 0;
    context.state.sampler.read(|monitor| {
        let charts = context.charts(monitor, past.as_ref());
        html! { div data-live="queue" {
            (picture::providers(monitor))
            (charts.ranges("/notifications"))
            div.grid.charts {
                (charts.chart("Waiting", Unit::Count, None, BY_PRIORITY))
                (charts.chart("Accepted and attempted", Unit::PerSecond, None, BY_OUTCOME))
                (charts.chart("Age of the oldest", Unit::Seconds, None, &[("", |it| it.gauge(OLDEST, ""))]))
                section.panel { h2 { "Waiting now" } @match &answer {
                    Err(message) => (message),
                    Ok(answer) => {
                        @let rows: Vec<Value> = items(&answer["queues"]).iter().filter(waits).cloned().collect();
                        (table("Queue", &rows, QUEUE_COLUMNS, "Nothing waits."))
                    }
                } }
            }
        } }
    })
}

fn per_second(interval: &Interval, outcome: &str) -> Option<f64> {
    interval.per_second(Notify, &interval.part(NOTIFICATION, outcome))
}

pub(super) async fn list(context: &Context<'_>) -> Markup {
    let parameters = context.parameters("recipient status template channel from to cursor");
    let is_filtered = parameters.iter().any(|(_, value)| !value.is_empty());
    html! {
        (heading("Notifications"))
        @if !is_filtered { (queue(context).await) }
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
        (context.listing("/notifications", (Notify, "/admin/notifications"), ("notifications", COLUMNS, "No notification matches."), &parameters).await)
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
    let document = &shown["notification"];
    let value = |name: &str| html! { (plain(&document[name])) };
    // The entries are the events, with suppressions and reports.
    let entries = items(&shown["entries"]);
    html! {
        (heading(&format!("Notification {id}")))
        (buttons(context, id, &plain(&document["status"])))
        div.grid {
            section.panel.full { h2 { "Its life" } (life(entries, &document["nextAttemptAt"])) }
            section.panel.full { h2 { "State" } (facts(&[
                ("Status", html! { (state(&plain(&document["status"]))) " " (plain(&document["reason"])) }),
                ("Channel", value("channel")), ("Priority", value("priority")),
                ("Template", html! { (plain(&document["template"])) " " span.muted { (plain(&document["templateVersion"])) } }),
                ("Recipient", mono(&recipient(document))), ("Creator", mono(&plain(&document["creator"]))),
                ("Changed", time(&plain(&document["updatedAt"]))),
                ("Not before", time(&plain(&document["sendAt"]))), ("Expires", time(&plain(&document["expiresAt"]))),
                ("Waits because of", value("waitReason")),
            ])) }
            section.panel.full { h2 { "What was sent" } (message(context, id, &path).await) }
        }
    }
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

/// Returns the life of a notification as a line: each event with its time, and the time since the one
/// before.
fn life(entries: &[Value], next: &Value) -> Markup {
    let at = |entry: &Value| entry["at"].as_str().and_then(Timestamp::parse);
    let before = [None].into_iter().chain(entries.iter().map(at));
    html! { ol.life {
        @for (entry, before) in entries.iter().zip(before) {
            @let name = plain(&entry["event"]);
            li class=(Tone::of(&name).word()) {
                div { (state(&name)) }
                (time(&plain(&entry["at"])))
                @if let (Some(before), Some(at)) = (before, at(entry)) { span.muted { " +" (duration(at.since(before).as_secs_f64())) } }
                div.why { (members(entry, &["at", "event", "source", "notificationId", "addressHash", "recipientKind"])) }
            }
        }
        @if !next.is_null() { li.plain { div { (badge(Tone::Plain, "next try")) } (time(&plain(next))) } }
    } }
}

/// Returns the message, if an operator has asked for it: it may have a code or a link that signs its
/// recipient in. The console and the process log who has read which message.
async fn message(context: &Context<'_>, id: &str, path: &str) -> Markup {
    if !context.is_operator() {
        return html! { p.muted { "The message may contain codes and links. Reading it requires the role operator." } };
    }
    if context.parameter(MESSAGE) != SHOWN {
        let address = format!("/notifications/{}?{MESSAGE}={SHOWN}", path_segment(id));
        return html! {
            p.muted { "The message may contain codes and links. The log records who has read it." }
            p { a.button href=(address) { "Show the message" } }
        };
    }
    let call = Call {
        operator: Some(&context.person.subject),
        ..Call::get(format!("{path}/preview"))
    };
    let reply = context.state.directory.call_any(Notify, &call).await;
    let is_done = reply.as_ref().is_ok_and(Reply::is_success);
    record(context.person, "notification.read_message", id, is_done);
    let reason = match reply {
        Ok(reply) if is_done => return rendered(context, &reply.json()),
        Ok(reply) => reply.problem(),
        Err(error) => error.reason,
    };
    html! { p.muted { "The content is not available: " (reason) } }
}

/// Returns a rendered message. HTML comes from templates and variables: it is shown in a frame with
/// an origin of its own, and as its source.
pub(super) fn rendered(context: &Context<'_>, content: &Value) -> Markup {
    html! {
        (facts(&[("Subject", html! { (plain(first(content, &["subject", "title"]))) }), ("Segments", html! { (plain(&content["segments"])) })]))
        @if let Some(text) = first(content, &["text", "body"]).as_str() { h3 { "Text" } pre.code tabindex="0" { (text) } }
        @if content["html"].is_string() { h3 { "HTML" } (context.state.frames.frame(&plain(&content["html"])))
            details { summary { "HTML source" } pre.code tabindex="0" { (plain(&content["html"])) } } }
        @for error in items(&content["errors"]) { p.bad { (plain(error)) } }
    }
}

pub(super) async fn dead_letters(context: &Context<'_>) -> Markup {
    let parameters = context.parameters("code provider template channel before");
    let set = parameters.iter().filter(|(_, value)| !value.is_empty());
    let has_selector = set.clone().next().is_some();
    let selector: Value = set.copied().collect();
    let selector = selector.to_string();
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
        (context.listing("/dead-letters", (Notify, "/admin/dead"), ("deadLetters", DEAD_COLUMNS, "There is no dead letter."), &parameters).await)
    }
}

pub(super) async fn providers(context: &Context<'_>) -> Markup {
    let answer = context.ask(Notify, "/admin/providers").await;
    html! {
        (heading("Providers"))
        @match answer {
            Err(message) => (message),
            Ok(answer) => div.grid {
                @for provider in items(&answer["providers"]) { (provider_panel(context, provider)) }
                @if items(&answer["providers"]).is_empty() { p.muted { "No provider is configured." } }
            },
        }
    }
}

fn provider_panel(context: &Context<'_>, provider: &Value) -> Markup {
    let (name, pause) = (plain(&provider["name"]), &provider["paused"]);
    let is_paused = pause.is_object();
    let resuming =
        format!("Resume {name} for all replicas? Waiting notifications are sent at once.");
    let pausing = format!(
        "Pause {name} for all replicas? The other providers of its channel take over. Without any, \
         notifications wait until you resume it."
    );
    html! {
        section.panel.wide {
            h2 { (name) " " (state(if is_paused { "paused" } else if provider["isUp"] == true { "up" } else { "failed" })) }
            @if is_paused { p { "Paused by " (plain(&pause["operator"])) " since " (time(&plain(&pause["at"]))) @if !pause["reason"].is_null() { ": " (plain(&pause["reason"])) } } }
            (facts(&[
                ("Channel", html! { (plain(&provider["channel"])) " by " (plain(&provider["kind"])) }),
                ("Circuit breaker", state(&plain(&provider["breaker"]))),
                ("Limits", html! { @for (before, member, unit) in [("", "rate", " per second, "), ("", "concurrency", " at once, "), ("weight ", "weight", "")] {
                    @if !provider[member].is_null() { (before) (plain(&provider[member])) (unit) }
                } }),
                ("Last replies", html! { @for reply in items(&provider["lastReplies"]) {
                    a href={ "/notifications/" (path_segment(&plain(&reply["notificationId"]))) } { (state(&plain(&reply["outcome"]))) " " (plain(&reply["code"])) } " "
                } }),
            ]))
            @if context.is_operator() { div.buttons {
                @if is_paused {
                    (action("provider.resume", "Resume", &[("target", &name)], &resuming, Tone::Plain))
                } @else {
                    form.inline data-action="provider.pause" data-confirm=(pausing) {
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
