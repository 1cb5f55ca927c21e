//! The contents of the pages, rendered as HTML fragments.
//!
//! Each fragment but that of the palette begins with a heading of the first level, which gets the
//! focus and names the page.
//!
//! Input: the name of a page with its query. Output: markup. Depends on `access`, `charts`, `configuration`,
//! `history`, `processes`, `prometheus`, `sampling`, `shell`, `state`, `status` and `widgets`.

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
use crate::history::Range;
use crate::processes::{Call, Reply, Unreachable};
use crate::prometheus::Figures;
use crate::sampling::Monitor;
use crate::shell;
use crate::state::ConsoleState;
use crate::widgets::{Column, Tone, notice, table};

/// What a page is rendered from.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    person: &'a Person,
    query: BTreeMap<String, String>,
    state: &'a ConsoleState,
}

/// Renders the fragment of a page.
///
/// # Errors
/// 404 for an unknown page.
pub(crate) async fn render(page: &str, context: &Context<'_>) -> Result<Markup, Problem> {
    let (page, item) = page.split_once('/').unwrap_or((page, ""));
    Ok(match (page, item) {
        ("overview", "") => overview::render(context).await,
        ("processes", "") => overview::processes(context).await,
        ("search", "") => search::render(context).await,
        ("palette", "") => palette::options(context).await,
        ("requests", "") => requests::render(context),
        ("routes", "") => gateway::routes(context).await,
        ("upstreams", "") => gateway::upstreams(context).await,
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

impl<'a> Context<'a> {
    /// `query` is that of the address of the page.
    pub(crate) fn new(state: &'a ConsoleState, person: &'a Person, query: Option<&str>) -> Self {
        let query = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Self {
            person,
            query: query.into_owned().collect(),
            state,
        }
    }

    /// Returns a parameter; empty if it is absent.
    fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", |value| value.trim())
    }

    /// Returns the parameters of these names, with a space between two.
    fn parameters(&self, names: &'static str) -> Vec<(&'static str, &str)> {
        let names = names.split(' ');
        names.map(|name| (name, self.parameter(name))).collect()
    }

    /// Returns the time ranges that are offered, and the chosen one, which is a parameter.
    fn ranges(&self) -> (&'static [Range], &'static Range) {
        let offered = Range::offered(self.state.prometheus.is_some());
        (offered, Range::named(self.parameter("range"), offered))
    }

    /// Returns the figures of a range that is longer than the memory.
    async fn past(&self) -> Option<Figures> {
        let (_, range) = self.ranges();
        let prometheus = self.state.prometheus.as_ref();
        let prometheus = prometheus.filter(|_| !Range::offered(false).contains(range))?;
        Some(prometheus.figures(range, self.state.sampler.now()).await)
    }

    /// Returns what the charts of the page share.
    fn charts<'m>(&self, monitor: &'m Monitor, past: Option<&'m Figures>) -> Charts<'m> {
        let (offered, range) = self.ranges();
        let (points, problem) = match past {
            None => (monitor.history.of(range), None),
            Some(Ok(points)) => (points.iter().collect(), None),
            Some(Err(problem)) => (Vec::new(), Some(problem.as_str())),
        };
        Charts {
            points,
            problem,
            offered,
            range,
            now: self.state.sampler.now(),
        }
    }

    fn is_operator(&self) -> bool {
        self.person.role >= Role::Operator
    }

    /// Returns the JSON of a page of an admin API at the first replica that answers, or a message.
    async fn ask(&self, kind: ProcessKind, path: &str) -> Result<Value, Markup> {
        self.send(kind, &Call::get(path)).await
    }

    /// Returns the table of a list with a link to its next page, or why there is no answer. `path` is that
    /// of the admin API.
    async fn listing(
        &self,
        page: &str,
        (kind, path): (ProcessKind, &str),
        (member, columns, empty): (&str, &[Column], &str),
        parameters: &[(&str, &str)],
    ) -> Markup {
        let path = format!("{path}?{}", query_string(parameters));
        let answer = match self.ask(kind, &path).await {
            Err(message) => return message,
            Ok(answer) => answer,
        };
        let filters = parameters.iter().filter(|(name, _)| *name != "cursor");
        let cursor = answer["nextCursor"].as_str();
        let cursor = cursor.map(|cursor| ("cursor", cursor));
        let next: Vec<_> = filters.copied().chain(cursor).collect();
        html! {
            section.panel { (table(shell::title(page), items(&answer[member]), columns, empty)) }
            @if cursor.is_some() { p { a.button href={ (page) "?" (query_string(&next)) } { "More" } } }
        }
    }

    /// Sends a call that changes nothing, as [`Context::ask`] does.
    async fn send(&self, kind: ProcessKind, call: &Call<'_>) -> Result<Value, Markup> {
        let reply = self.state.directory.call_any(kind, call).await;
        Self::read(kind, &call.path, reply)
    }

    /// Returns the JSON of an answer, or a message.
    fn read(
        kind: ProcessKind,
        path: &str,
        reply: Result<Reply, Unreachable>,
    ) -> Result<Value, Markup> {
        let name = kind.as_str();
        let (tone, title, text) = match reply {
            Ok(reply) if reply.is_success() => return Ok(reply.json()),
            Ok(reply) if reply.status == 404 && reply.json()["detail"].is_null() => {
                let path = path.split('?').next().unwrap_or_default();
                let text = format!(
                    "the {name} process does not offer {path}: set its [admin] token_env, or update it"
                );
                (Tone::Warn, "Not available", text)
            }
            Ok(reply) if reply.status == 401 => {
                let text = format!("token_env of the {name} processes in console.toml");
                (Tone::Bad, "The secret of the console is rejected", text)
            }
            Ok(reply) => (
                Tone::Bad,
                "The process rejects the request",
                reply.problem(),
            ),
            Err(error) => (
                Tone::Bad,
                "No answer",
                format!("{name} processes: {}", error.reason),
            ),
        };
        Err(notice(tone, title, &text))
    }
}

/// Returns the heading of a page.
fn heading(title: &str) -> Markup {
    html! { h1 tabindex="-1" { (title) } }
}

/// Returns the items of an array; none if it is something else.
fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

/// Returns a query string of the parameters that are not empty.
fn query_string(parameters: &[(&str, &str)]) -> String {
    let set = parameters.iter().filter(|(_, value)| !value.is_empty());
    url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(set)
        .finish()
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
