//! The configuration files of the gateways: each gateway has its own.
//!
//! Input: the fields of a change. Output: the file of each gateway, and the outcome of a change at
//! each. Depends on `access`, `actions` for outcomes, `config`, `processes` and `widgets`.

use std::time::Duration;

use http::Method;
use postern_core::decode::Field;
use postern_core::settings;
use serde_json::{Value, json};

use crate::access::Person;
use crate::actions::{are_done, not_done, outcome, record};
use crate::config::ProcessKind::Gateway;
use crate::processes::{Answered, Call, Process, ProcessDirectory};
use crate::widgets::plain;

/// The name of the action.
pub(crate) const SAVE: &str = "configuration.save";
/// Maximum time for a change at one gateway: check, write and reload.
const SAVE_TIMEOUT: Duration = Duration::from_secs(60);
/// The result at gateways behind one that has refused a change.
const NOT_ASKED: &str = "not asked, because another gateway has refused it";
/// Maximum bytes of a text.
const MAX_TEXT_BYTES: usize = 1 << 20;

settings! {
    /// A text for the files of all gateways: the body of a request of the page.
    #[derive(Debug)]
    pub(crate) struct Change(root) {
        /// At most 1 MiB.
        text: String => read_text,
        /// The hash of each gateway's file when the person read it.
        bases: Value => |field| {
            let bases = Some(field.node().to_json()).filter(Value::is_object);
            bases.or_else(|| field.fail("invalid_type", "must be an object"))
        },
        /// Whether a text that accepts more requests than now is refused.
        refuse_widened as refuseWidened: bool => |field| field.boolean(),
    }
}

fn read_text(field: Field<'_>) -> Option<String> {
    let text = field.string()?;
    if text.len() > MAX_TEXT_BYTES {
        return field.reject("invalid_length", "must have at most 1 MiB");
    }
    Some(text.to_owned())
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
) -> Vec<Value> {
    let mut outcomes: Vec<Value> = Vec::new();
    for process in directory.of(Gateway) {
        let first = outcomes.first();
        let is_refused = first.is_some_and(|first| first["isDone"] != true);
        outcomes.push(match is_refused {
            true => not_done(&process, NOT_ASKED),
            false => save_at(&process, change, person, directory).await,
        });
    }
    record(person, SAVE, "", are_done(&outcomes));
    outcomes
}

async fn save_at(
    process: &Process,
    change: &Change,
    person: &Person,
    directory: &ProcessDirectory,
) -> Value {
    let Some(base) = change.bases.get(&process.name) else {
        let text = "its file was not shown on this page: load the page again";
        return not_done(process, text);
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
        timeout: Some(SAVE_TIMEOUT),
    };
    let reply = match directory.call(process, &call).await {
        Ok(reply) => reply,
        Err(error) => return not_done(process, &error.reason),
    };
    let body = reply.json();
    let text = match plain(&body["restartNeeded"]).as_str() {
        _ if !reply.is_success() => reply.problem(),
        "" => "saved and in force".to_owned(),
        keys => format!("saved; a restart is needed for {keys}"),
    };
    // What the page needs, without the report of a check.
    let codes = body["errors"].as_array().into_iter().flatten();
    let codes: Vec<&Value> = codes.map(|error| &error["code"]).collect();
    let needed = json!({ "code": body["code"], "errors": codes });
    outcome(process, reply.is_success(), &text, &needed)
}
