//! Sign-ins and throttled accounts.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::Value;

use super::{Context, heading, items, next_page, periods};
use crate::actions::path_segment;
use crate::config::ProcessKind::Auth;
use crate::widgets::{
    Column, Tone, action, first, members, mono, number, plain, state, table, time,
};

const COLUMNS: &[Column] = &[
    Column::new("Time", |row| time(&plain(first(row, &["at", "time"])))),
    Column::new("Event", |row| html! { strong { (plain(&row["event"])) } }),
    Column::new(
        "Outcome",
        |row| html! { (state(&plain(&row["outcome"]))) " " span.muted { (plain(&row["reason"])) } },
    ),
    Column::new("User", |row| {
        let subject = plain(&row["subject"]);
        html! { @if !subject.is_empty() { a.mono href={ "/search?kind=user&q=" (path_segment(&subject)) } { (subject) } } }
    }),
    Column::new("Network", |row| mono(&plain(&row["network"]))),
    Column::new("Provider", |row| html! { (plain(&row["provider"])) }),
    Column::new("Request", |row| {
        let id = plain(&row["requestId"]);
        html! { @if !id.is_empty() { a.mono href={ "/search?kind=request&q=" (path_segment(&id)) } { (id.get(..13).unwrap_or(&id)) } } }
    }),
];

pub(super) async fn sign_ins(context: &Context<'_>) -> Markup {
    let names = [
        "email", "user", "request", "outcome", "reason", "since", "until", "cursor",
    ];
    let parameters = names.map(|name| (name, context.parameter(name)));
    let summary = context
        .ask(Auth, "/admin/sign-ins/summary?since=24h&step=1h")
        .await;
    let answer = context.list(Auth, "/admin/sign-ins", &parameters).await;
    html! {
        (heading("Sign-ins"))
        @if let Ok(summary) = summary { (totals(&summary)) }
        form.filters action="/sign-ins" {
            label { "E-mail address" input name="email" value=(context.parameter("email")); }
            label { "User" input name="user" value=(context.parameter("user")); }
            label { "Outcome" input name="outcome" placeholder="invalid_credentials" value=(context.parameter("outcome")); }
            label { "Reason" input name="reason" placeholder="throttled" value=(context.parameter("reason")); }
            label { "Last" select name="since" { (periods(context.parameter("since"))) } }
            button type="submit" { "Filter" }
        }
        @match answer {
            Err(message) => (message),
            Ok(answer) => {
                section.panel { (table("Sign-ins", items(&answer, &["signIns", "events", "entries"]), COLUMNS, "No event matches.")) }
                (next_page("/sign-ins", &parameters, &answer))
            }
        }
    }
}

/// Returns the counts of the last day by event and outcome, the most frequent first.
fn totals(summary: &Value) -> Markup {
    let mut sums: BTreeMap<(String, String), f64> = BTreeMap::new();
    for row in items(summary, &["counts", "buckets", "summary", "entries"]) {
        let sum = sums.entry((plain(&row["event"]), plain(&row["outcome"])));
        *sum.or_default() += row["count"].as_f64().unwrap_or(0.0);
    }
    let mut counts: Vec<_> = sums.into_iter().collect();
    counts.sort_by(|left, right| right.1.total_cmp(&left.1));
    html! {
        @if !counts.is_empty() { section.panel { h2 { "Last 24 hours" }
            dl.facts { @for ((event, outcome), count) in counts.iter().take(12) {
                div { dt { (event) " " (state(outcome)) } dd.figure-small { (number(*count)) } }
            } }
        } }
    }
}

pub(super) async fn throttled(context: &Context<'_>) -> Markup {
    let answer = context.ask(Auth, "/admin/throttled").await;
    html! {
        (heading("Throttled accounts and networks"))
        @if context.is_operator() {
            form.filters data-action="throttle.release" data-confirm="Release this account?" {
                label { "E-mail address" input type="email" name="email" required; }
                button type="submit" { "Release" }
            }
        }
        @match answer {
            Err(message) => (message),
            Ok(answer) => {
                @for (title, is_account) in [("Accounts", true), ("Addresses and networks", false)] {
                    @let of_kind = |row: &&Value| (row["scope"] == "account") == is_account;
                    @let rows: Vec<&Value> = items(&answer, &["throttled"]).iter().filter(of_kind).collect();
                    section.panel { h2 { (title) } (rows_of(&rows, context.is_operator())) }
                }
            }
        }
    }
}

fn rows_of(rows: &[&Value], is_operator: bool) -> Markup {
    html! {
        @if rows.is_empty() { p.muted { "None is throttled now." } }
        @else { ul.plain { @for row in rows {
            @let id = plain(&row["id"]);
            li { span.why { (members(row, &[])) }
                // The counter of an account has a network too: the id is that of this counter alone.
                @if is_operator && !id.is_empty() { (action("throttle.release", "Release", &[("id", &id)], "Forget these failed attempts?", Tone::Plain)) }
            }
        } } }
    }
}
