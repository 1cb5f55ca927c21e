//! The changes that an operator may make: a closed list, each of which is one call of an admin API.
//!
//! Input: the name of an action with its fields. Output: the outcome at each process. Depends on
//! `access`, `config` and `processes`.

use http::Method;
use postern_core::{Code, Problem};
use serde_json::{Map, Value, json};
use url::form_urlencoded;

use crate::access::Person;
use crate::config::ProcessKind;
use crate::processes::{Call, Process, ProcessDirectory};

/// Maximum bytes of a field.
const MAX_FIELD_BYTES: usize = 4096;

/// A change.
#[derive(Debug)]
pub(crate) struct Action {
    /// The name in `POST /actions/{name}`.
    pub(crate) name: &'static str,
    pub(crate) kind: ProcessKind,
    /// The path; `{}` stands for the field `target`.
    path: &'static str,
    /// The fields of the body.
    fields: &'static [(&'static str, FieldKind)],
}

/// The form of a field of a body. All fields arrive as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldKind {
    Text,
    Boolean,
    /// A JSON object.
    Object,
}

/// The result at one process.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) process: String,
    pub(crate) is_done: bool,
    pub(crate) text: String,
    pub(crate) body: Value,
}

use FieldKind::{Boolean, Object, Text};
use ProcessKind::{Auth, Notify};

/// Defines the actions: name, kind of process, path and fields of the body.
macro_rules! actions {
    ($($name:literal $kind:ident $path:literal ($($field:ident $form:ident),*);)+) => {
        const ACTIONS: &[Action] = &[$(Action {
            name: $name,
            kind: $kind,
            path: $path,
            fields: &[$((stringify!($field), $form)),*],
        },)+];
    };
}

actions! {
    "notification.retry" Notify "/admin/notifications/{}/retry" ();
    "notification.cancel" Notify "/admin/notifications/{}/cancel" ();
    "dead.retry" Notify "/admin/dead/retry" (selector Object, dryRun Boolean);
    "provider.test" Notify "/admin/providers/{}/test" (to Text);
    "provider.pause" Notify "/admin/providers/{}/pause" (reason Text);
    "provider.resume" Notify "/admin/providers/{}/resume" ();
    "suppression.remove" Notify "/admin/suppression/remove" (id Text);
    "user.enable" Auth "/admin/users/{}/enable" ();
    "user.disable" Auth "/admin/users/{}/disable" ();
    "user.sign_out" Auth "/admin/users/{}/sign-out" ();
    "user.reset_password" Auth "/admin/users/{}/reset-password" ();
    "user.add_to_group" Auth "/admin/users/{}/add-to-group" (group Text);
    "user.remove_from_group" Auth "/admin/users/{}/remove-from-group" (group Text);
}

/// Returns the action of a name.
pub(crate) fn find(name: &str) -> Option<&'static Action> {
    ACTIONS.iter().find(|action| action.name == name)
}

/// Makes a change, and logs it with its outcome. The processes log it as well.
///
/// # Errors
/// 400 or 422 for a field that the action does not take.
pub(crate) async fn perform(
    action: &Action,
    fields: &Map<String, Value>,
    person: &Person,
    directory: &ProcessDirectory,
) -> Result<Vec<Outcome>, Problem> {
    let (target, body) = read_fields(action, fields)?;
    let call = Call {
        method: Method::POST,
        path: action.path.replace("{}", &path_segment(&target)),
        body: Some(body),
        operator: Some(&person.subject),
    };
    let mut outcomes = Vec::new();
    let replicas = directory.of(action.kind);
    for process in &replicas {
        let result = directory.call(process, &call).await;
        let may_be_done = result
            .as_ref()
            .map_or_else(|error| error.may_be_done, |_| true);
        let outcome = match result {
            Ok(reply) => Outcome {
                process: process.name.clone(),
                is_done: reply.is_success(),
                text: match reply.is_success() {
                    true => "done".to_owned(),
                    false if reply.status == 404 => {
                        format!("{} does not know this: {}", process.name, reply.problem())
                    }
                    false => reply.problem(),
                },
                body: reply.json(),
            },
            Err(error) => Outcome::failed(process, &error.to_string()),
        };
        outcomes.push(outcome);
        // A change that one replica may have made is not made again by the next.
        if may_be_done {
            outcomes.drain(..outcomes.len() - 1);
            break;
        }
    }
    let is_done = !outcomes.is_empty() && outcomes.iter().all(|outcome| outcome.is_done);
    // Addresses of people are in the body, never in the path, so that the logged target has none.
    record(person, action.name, &target, is_done);
    Ok(outcomes)
}

/// Logs what a person has done.
pub(crate) fn record(person: &Person, action: &'static str, target: &str, is_done: bool) {
    tracing::info!(operator = %person.subject, action, target = %target, is_done, "console action");
}

/// Returns the target and the body.
fn read_fields(action: &Action, fields: &Map<String, Value>) -> Result<(String, Value), Problem> {
    let mut errors: Vec<(&str, &'static str, &str)> = Vec::new();
    let mut body = Map::new();
    let mut target = String::new();
    for (name, value) in fields {
        let text = value.as_str().unwrap_or_default();
        if name == "target" && action.path.contains("{}") {
            target = text.to_owned();
            continue;
        }
        let Some((_, kind)) = action.fields.iter().find(|(known, _)| known == name) else {
            errors.push((name, "unknown_field", "is not a field of this action"));
            continue;
        };
        match kind.read(value) {
            Ok(None) => {}
            Ok(Some(value)) => {
                body.insert(name.clone(), value);
            }
            Err(detail) => errors.push((name, "invalid_format", detail)),
        }
    }
    let is_target = (1..=255).contains(&target.len()) && !target.contains(char::is_control);
    if action.path.contains("{}") && !is_target {
        errors.push(("target", "missing_field", "is required"));
    }
    if errors.is_empty() {
        return Ok((target, json!(body)));
    }
    let problem = Problem::new(Code::ValidationFailed);
    let errors = errors.into_iter();
    Err(errors.fold(problem, |problem, (name, code, detail)| {
        problem.error(&format!("/{name}"), code, detail)
    }))
}

// === impl Outcome ===

impl Outcome {
    pub(crate) fn failed(process: &Process, text: &str) -> Self {
        Self {
            process: process.name.clone(),
            is_done: false,
            text: text.to_owned(),
            body: Value::Null,
        }
    }
}

// === impl FieldKind ===

impl FieldKind {
    /// Converts a field; `None` if it is empty.
    fn read(self, value: &Value) -> Result<Option<Value>, &'static str> {
        let Some(text) = value.as_str() else {
            return Err("must be a string");
        };
        if text.len() > MAX_FIELD_BYTES {
            return Err("is too long");
        }
        if text.is_empty() {
            return Ok(None);
        }
        match self {
            Text => Ok(Some(json!(text))),
            Boolean => match text.parse::<bool>() {
                Ok(value) => Ok(Some(json!(value))),
                Err(_) => Err("must be true or false"),
            },
            Object => match serde_json::from_str::<Value>(text) {
                Ok(value) if value.is_object() => Ok(Some(value)),
                Ok(_) | Err(_) => Err("must be a JSON object"),
            },
        }
    }
}

/// Encodes text as one segment of a path: no `/`, `?` or `#` of it has a meaning. `processes` refuses
/// a segment that is empty, `.` or `..`, which no encoding protects.
pub(crate) fn path_segment(text: &str) -> String {
    let encoded: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
    encoded.replace('+', "%20")
}
