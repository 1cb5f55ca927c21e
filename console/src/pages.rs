//! The contents of the pages, rendered as HTML fragments.
//!
//! Each fragment begins with a heading of the first level, which gets the focus and names the page.
//!
//! Input: the name of a page with its query. Output: markup. Depends on `access`, `configuration`,
//! `line_diff`, `processes`, `sampling`, `status` and `widgets`.

mod activity;
mod configuration;
mod gateway;
mod notifications;
mod overview;
mod request_outcome;
mod requests;
mod route_test;
mod search;
mod templates;

pub(crate) use self::configuration::{
    changes as configuration_changes, check as check_configuration,
};
pub(crate) use self::requests::details as request_details;

use std::collections::BTreeMap;

use futures_util::future::join_all;
use maud::{Markup, html};
use postern_common::{Code, Problem};
use serde_json::Value;

use crate::access::{Person, Role};
use crate::config::ProcessKind;
use crate::processes::{Call, Process, ProcessDirectory};
use crate::sampling::Sampler;
use crate::widgets::{Tone, notice};

/// What a page is rendered from.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) person: &'a Person,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) directory: &'a ProcessDirectory,
    pub(crate) sampler: &'a Sampler,
}

/// Renders the fragment of a page.
///
/// # Errors
/// 404 for an unknown page.
pub(crate) async fn render(page: &str, context: &Context<'_>) -> Result<Markup, Problem> {
    let (page, item) = page.split_once('/').unwrap_or((page, ""));
    Ok(match (page, item) {
        ("overview", "") => overview::render(context),
        ("search", "") => search::render(context).await,
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
        ("sign-ins", "") => activity::sign_ins(context).await,
        ("throttled", "") => activity::throttled(context).await,
        _ => return Err(Code::NotFound.into()),
    })
}

// === impl Context ===

impl<'a> Context<'a> {
    pub(crate) fn new(
        person: &'a Person,
        directory: &'a ProcessDirectory,
        sampler: &'a Sampler,
    ) -> Self {
        Self {
            person,
            query: BTreeMap::new(),
            directory,
            sampler,
        }
    }

    /// Returns a parameter; empty if it is absent.
    fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", |value| value.trim())
    }

    fn is_operator(&self) -> bool {
        self.person.role >= Role::Operator
    }

    /// Returns the JSON of a page of an admin API at the first replica that answers, or a message.
    async fn ask(&self, kind: ProcessKind, path: &str) -> Result<Value, Markup> {
        self.send(kind, &Call::get(path)).await
    }

    /// Sends a call that changes nothing, as [`Context::ask`] does.
    async fn send(&self, kind: ProcessKind, call: &Call<'_>) -> Result<Value, Markup> {
        let reply = self.directory.call_any(kind, call).await;
        let reply = reply.map_err(|error| {
            notice(
                Tone::Bad,
                "No answer",
                &format!("{} processes: {error}", kind.as_str()),
            )
        })?;
        if reply.is_success() {
            return Ok(reply.json());
        }
        Err(match reply.status {
            404 => Self::not_offered(kind, &call.path),
            401 => notice(
                Tone::Bad,
                "The secret of the console is rejected",
                &format!(
                    "token_env of the {} processes in console.toml",
                    kind.as_str()
                ),
            ),
            _ => notice(
                Tone::Bad,
                "The process rejects the request",
                &reply.problem(),
            ),
        })
    }

    /// Returns the JSON of each replica of a kind.
    async fn ask_all(
        &self,
        kind: ProcessKind,
        path: &str,
    ) -> Vec<(Process, Result<Value, String>)> {
        let replicas = self.directory.of(kind);
        let calls = replicas.into_iter().map(|process| async move {
            let reply = self.directory.call(&process, &Call::get(path)).await;
            let result = match reply {
                Ok(reply) if reply.is_success() => Ok(reply.json()),
                Ok(reply) => Err(reply.problem()),
                Err(error) => Err(error.to_string()),
            };
            (process, result)
        });
        join_all(calls).await
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

/// Returns the parameters of the next page.
fn with_cursor<'a>(parameters: &[(&'a str, &'a str)], cursor: &'a str) -> Vec<(&'a str, &'a str)> {
    let filters = parameters.iter().filter(|(name, _)| *name != "cursor");
    filters.copied().chain([("cursor", cursor)]).collect()
}

/// Returns the choices of a select element.
fn options(choices: &[&str], selected: &str) -> Markup {
    html! {
        option value="" { "any" }
        @for choice in choices { option value=(choice) selected[*choice == selected] { (choice) } }
    }
}
