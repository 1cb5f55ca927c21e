//! The configuration files of the gateways: each gateway has its own.
//!
//! Input: the fields of a change. Output: the file of each gateway, and the outcome of a change at
//! each. Depends on `access`, `actions` for outcomes, `config` and `processes`.

use std::time::Duration;

use http::Method;
use postern_core::decode::Object;
use serde_json::{Map, Value, json};

use crate::access::Person;
use crate::actions::Outcome;
use crate::config::ProcessKind::Gateway;
use crate::processes::{Answered, Call, Process, ProcessDirectory, Reply};

/// The name of the action.
pub(crate) const SAVE: &str = "configuration.save";
/// Maximum time for a change at one gateway: check, write and reload.
const SAVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum bytes of a text.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// A text for the files of all gateways.
#[derive(Debug)]
pub(crate) struct Change {
    text: String,
    /// The hash of each gateway's file when the person read it.
    bases: Map<String, Value>,
    refuse_widened: bool,
}

/// Reads the file of every gateway.
pub(crate) async fn read_all(directory: &ProcessDirectory) -> Vec<Answered> {
    directory.ask_all(Gateway, "/admin/config").await
}

/// Returns the hashes of the files by gateway, as the base of a change.
pub(crate) fn bases(files: &[Answered]) -> Value {
    let hashes = files.iter().filter_map(|(process, answer)| {
        let hash = answer.as_ref().ok()?["hash"].as_str()?;
        Some((process.name.clone(), json!(hash)))
    });
    Value::Object(hashes.collect())
}

/// Saves a text at every gateway, one after the other, and logs it.
///
/// If a gateway refuses it before another has accepted it, no further one is asked. Later failures
/// are reported, and the other gateways are asked nevertheless: they would differ otherwise.
pub(crate) async fn save(
    change: &Change,
    person: &Person,
    directory: &ProcessDirectory,
) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut is_refused = false;
    for process in directory.of(Gateway) {
        let outcome = if is_refused {
            Outcome::failed(
                &process,
                "not asked, because another gateway has refused it",
            )
        } else {
            save_at(&process, change, person, directory).await
        };
        let none_is_done = outcomes.iter().all(|outcome| !outcome.is_done);
        is_refused |= !outcome.is_done && none_is_done;
        outcomes.push(outcome);
    }
    let is_done = !outcomes.is_empty() && outcomes.iter().all(|outcome| outcome.is_done);
    tracing::info!(operator = %person.subject, action = SAVE, target = "", is_done, "console action");
    outcomes
}

async fn save_at(
    process: &Process,
    change: &Change,
    person: &Person,
    directory: &ProcessDirectory,
) -> Outcome {
    let Some(base) = change.bases.get(&process.name) else {
        let text = "its file was not shown on this page: load the page again";
        return Outcome::failed(process, text);
    };
    let body = json!({
        "text": change.text,
        "baseHash": base,
        "refuseWidened": change.refuse_widened,
    });
    let call = Call {
        method: Method::PUT,
        path: "/admin/config".to_owned(),
        body: Some(body),
        operator: Some(&person.subject),
    };
    match directory.call_within(process, &call, SAVE_TIMEOUT).await {
        Ok(reply) => Outcome {
            process: process.name.clone(),
            is_done: reply.is_success(),
            text: describe(&reply),
            body: summary(&reply),
        },
        Err(error) => Outcome::failed(process, &error.to_string()),
    }
}

/// Describes what a gateway has done.
fn describe(reply: &Reply) -> String {
    let body = reply.json();
    if !reply.is_success() {
        return reply.problem();
    }
    let keys = body["restartNeeded"].as_array().into_iter().flatten();
    let keys: Vec<&str> = keys.filter_map(Value::as_str).collect();
    match keys.as_slice() {
        [] => "saved and in force".to_owned(),
        keys => format!("saved; a restart is needed for {}", keys.join(", ")),
    }
}

/// Returns the members that the page needs, without the report of a check.
fn summary(reply: &Reply) -> Value {
    let body = reply.json();
    let codes = body["errors"].as_array().into_iter().flatten();
    let codes: Vec<&Value> = codes.map(|error| &error["code"]).collect();
    json!({ "code": body["code"], "errors": codes, "version": body["version"] })
}

// === impl Change ===

impl Change {
    /// Reads the body of a request of the page.
    pub(crate) fn read(root: &Object<'_>) -> Option<Self> {
        let text = root.required("text", |field| {
            let text = field.string()?;
            match text.len() <= MAX_TEXT_BYTES {
                true => Some(text.to_owned()),
                false => field.reject("invalid_length", "must have at most 1 MiB"),
            }
        });
        let bases = root.required("bases", |field| match field.node().to_json() {
            Value::Object(bases) => Some(bases),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => field.fail("invalid_type", "must be an object"),
        });
        let refuse_widened = root.required("refuseWidened", |field| field.boolean());
        Some(Self {
            text: text?,
            bases: bases?,
            refuse_widened: refuse_widened?,
        })
    }
}
