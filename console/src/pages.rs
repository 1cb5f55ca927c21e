//! The contents of the pages, rendered as HTML fragments.
//!
//! Each fragment but that of the palette begins with a heading of the first level, which gets the
//! focus and names the page.
//!
//! Input: the name of a page with its query. Output: markup. Depends on `access`, `charts`, `configuration`, `frames`,
//! `history`, `line_diff`, `processes`, `sampling`, `shell`, `status` and `widgets`.

mod activity;
mod configuration;
mod gateway;
mod notifications;
mod overview;
mod palette;
mod picture;
mod request_outcome;
mod requests;
mod route_test;
mod search;
mod templates;
mod users;

pub(crate) use self::configuration::{
    changes as configuration_changes, check as check_configuration,
};
pub(crate) use self::requests::details as request_details;

use std::collections::BTreeMap;

use maud::{Markup, html};
use postern_core::{Code, Problem};
use serde_json::Value;

use crate::access::{Person, Role};
use crate::charts::Charts;
use crate::config::ProcessKind;
use crate::frames::Frames;
use crate::history::Range;
use crate::processes::{Call, ProcessDirectory, Reply, Unreachable};
use crate::sampling::{Monitor, Sampler};
use crate::widgets::{Column, Tone, notice, table};

/// What a page is rendered from.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) person: &'a Person,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) directory: &'a ProcessDirectory,
    pub(crate) sampler: &'a Sampler,
    pub(crate) frames: &'a Frames,
}

/// Renders the fragment of a page.
///
/// # Errors
/// 404 for an unknown page.
pub(crate) async fn render(page: &str, context: &Context<'_>) -> Result<Markup, Problem> {
    let (page, item) = page.split_once('/').unwrap_or((page, ""));
    Ok(match (page, item) {
        ("overview", "") => overview::render(context),
        ("processes", "") => overview::processes(context),
        ("search", "") => search::render(context).await,
        ("palette", "") => palette::options(context).await,
        ("requests", "") => requests::render(context),
        ("routes", "") => gateway::routes(context).await,
        ("upstreams", "") => gateway::upstreams(context).await,
        ("tokens", "") => gateway::tokens(context).await,
        ("configuration", "") => configuration::editor(context).await,
        ("history", "") => configuration::history(context).await,
        ("history", number) => configuration::entry(context, number).await,
        ("notifications", "") => notifications::list(context).await,
        ("notifications", id) => notifications::one(context, id).await,
        ("dead-letters", "") => notifications::dead_letters(context).await,
        ("providers", "") => notifications::providers(context).await,
        ("templates", "") => templates::list(context).await,
        ("templates", name) => templates::one(context, name).await,
        ("suppression", "") => templates::suppression(context).await,
        ("users", "") => users::list(context).await,
        ("users", name) => users::one(context, name).await,
        ("sign-ins", "") => activity::sign_ins(context).await,
        _ => return Err(Code::NotFound.into()),
    })
}

// === impl Context ===

impl Context<'_> {
    /// Returns a parameter; empty if it is absent.
    fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", |value| value.trim())
    }

    /// Returns what the charts of the page share. The range is a parameter.
    fn charts<'a>(&self, monitor: &'a Monitor) -> Charts<'a> {
        Charts {
            history: &monitor.history,
            range: Range::named(self.parameter("range")),
            now: self.sampler.now(),
        }
    }

    fn is_operator(&self) -> bool {
        self.person.role >= Role::Operator
    }

    /// Returns the JSON of a page of an admin API at the first replica that answers, or a message.
    async fn ask(&self, kind: ProcessKind, path: &str) -> Result<Value, Markup> {
        self.send(kind, &Call::get(path)).await
    }

    /// Asks for a list with parameters, as [`Context::ask`] does.
    async fn list(
        &self,
        kind: ProcessKind,
        path: &str,
        parameters: &[(&str, &str)],
    ) -> Result<Value, Markup> {
        let path = format!("{path}?{}", query_string(parameters));
        self.ask(kind, &path).await
    }

    /// Sends a call that changes nothing, as [`Context::ask`] does.
    async fn send(&self, kind: ProcessKind, call: &Call<'_>) -> Result<Value, Markup> {
        Self::read(kind, &call.path, self.directory.call_any(kind, call).await)
    }

    /// Returns the JSON of an answer, or a message.
    fn read(
        kind: ProcessKind,
        path: &str,
        reply: Result<Reply, Unreachable>,
    ) -> Result<Value, Markup> {
        let name = kind.as_str();
        let reply = reply.map_err(|error| {
            notice(
                Tone::Bad,
                "No answer",
                &format!("{name} processes: {error}"),
            )
        })?;
        if reply.is_success() {
            return Ok(reply.json());
        }
        let title = "The secret of the console is rejected";
        Err(match reply.status {
            404 if reply.json()["detail"].is_null() => Self::not_offered(kind, path),
            401 => notice(
                Tone::Bad,
                title,
                &format!("token_env of the {name} processes in console.toml"),
            ),
            _ => notice(
                Tone::Bad,
                "The process rejects the request",
                &reply.problem(),
            ),
        })
    }

    /// Says that the processes of a kind lack a page.
    fn not_offered(kind: ProcessKind, path: &str) -> Markup {
        let path = path.split('?').next().unwrap_or_default();
        let text = format!(
            "the {} process does not offer {path}: set its [admin] token_env, or update it",
            kind.as_str()
        );
        notice(Tone::Warn, "Not available", &text)
    }
}

/// Returns the heading of a page.
fn heading(title: &str) -> Markup {
    html! { h1 tabindex="-1" { (title) } }
}

/// Returns the array in a member of an answer, or the answer itself if it is one.
fn items<'a>(answer: &'a Value, names: &[&str]) -> &'a [Value] {
    let member = names.iter().find_map(|name| answer[*name].as_array());
    member
        .or_else(|| answer.as_array())
        .map_or(&[], Vec::as_slice)
}

/// Returns a query string of the parameters that are not empty.
fn query_string(parameters: &[(&str, &str)]) -> String {
    let set = parameters.iter().filter(|(_, value)| !value.is_empty());
    url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(set)
        .finish()
}

/// Returns the table of a list with a link to its next page, or why there is no answer.
fn listing(
    page: &str,
    answer: Result<Value, Markup>,
    (member, columns, empty): (&str, &[Column], &str),
    parameters: &[(&str, &str)],
) -> Markup {
    match answer {
        Err(message) => message,
        Ok(answer) => html! {
            section.panel { (table(page.trim_start_matches('/'), items(&answer, &[member]), columns, empty)) }
            (next_page(page, parameters, &answer))
        },
    }
}

/// Returns a link to the next page of a list.
fn next_page(page: &str, parameters: &[(&str, &str)], answer: &Value) -> Markup {
    let filters = parameters.iter().filter(|(name, _)| *name != "cursor");
    let cursor = answer["nextCursor"].as_str();
    let cursor = cursor.map(|cursor| ("cursor", cursor));
    let next: Vec<_> = filters.copied().chain(cursor).collect();
    html! { @if cursor.is_some() { p { a.button href={ (page) "?" (query_string(&next)) } { "More" } } } }
}

/// Returns the choices of a period that ends now.
fn periods(selected: &str) -> Markup {
    let selected = if selected.is_empty() { "24h" } else { selected };
    html! { @for (value, title) in [("30m", "30 minutes"), ("24h", "24 hours"), ("7d", "7 days"), ("30d", "30 days")] {
        option value=(value) selected[value == selected] { (title) }
    } }
}

/// Returns a field for an instant in UTC. The script adds the zone.
fn instant(title: &str, name: &str, value: &str) -> Markup {
    html! { label { (title) " (UTC)" input type="datetime-local" step="1" name=(name) value=(value.trim_end_matches('Z')); } }
}

/// Returns the choices of a select element.
fn options(choices: &[&str], selected: &str) -> Markup {
    html! {
        option value="" { "any" }
        @for choice in choices { option value=(choice) selected[*choice == selected] { (choice) } }
    }
}
