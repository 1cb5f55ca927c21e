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
    fields: &'static [(&'static str, Form)],
}

/// The form of a field of a body, which arrives as text: any text, or JSON that fulfils a condition.
type Form = Option<fn(&Value) -> bool>;

use ProcessKind::{Auth, Notify};

const TEXT: Form = None;
const BOOLEAN: Form = Some(Value::is_boolean);
const OBJECT: Form = Some(Value::is_object);

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
    "dead.retry" Notify "/admin/dead/retry" (selector OBJECT, dryRun BOOLEAN);
    "provider.test" Notify "/admin/providers/{}/test" (to TEXT);
    "provider.pause" Notify "/admin/providers/{}/pause" (reason TEXT);
    "provider.resume" Notify "/admin/providers/{}/resume" ();
    "suppression.remove" Notify "/admin/suppression/remove" (id TEXT);
    "user.enable" Auth "/admin/users/{}/enable" ();
    "user.disable" Auth "/admin/users/{}/disable" ();
    "user.sign_out" Auth "/admin/users/{}/sign-out" ();
    "user.reset_password" Auth "/admin/users/{}/reset-password" ();
    "user.add_to_group" Auth "/admin/users/{}/add-to-group" (group TEXT);
    "user.remove_from_group" Auth "/admin/users/{}/remove-from-group" (group TEXT);
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
) -> Result<Vec<Value>, Problem> {
    let (target, body) = read_fields(action, fields)?;
    let call = Call {
        method: Method::POST,
        path: action.path.replace("{}", &path_segment(&target)),
        body: Some(body),
        operator: Some(&person.subject),
        ..Call::default()
    };
    let mut outcomes = Vec::new();
    for process in directory.of(action.kind) {
        let (may_be_done, outcome) = match directory.call(&process, &call).await {
            Ok(reply) => {
                let (is_done, text) = (reply.is_success(), reply.problem());
                (true, outcome(&process, is_done, &text, &reply.json()))
            }
            Err(error) => (error.may_be_done, not_done(&process, &error.reason)),
        };
        // A change that one replica may have made is not made again by the next.
        if may_be_done {
            outcomes = vec![outcome];
            break;
        }
        outcomes.push(outcome);
    }
    // Addresses of people are in the body, never in the path, so that the logged target has none.
    record(person, action.name, &target, are_done(&outcomes));
    Ok(outcomes)
}

/// Returns the result of a change at one process, for the script.
pub(crate) fn outcome(process: &Process, is_done: bool, text: &str, body: &Value) -> Value {
    json!({ "process": process.name, "isDone": is_done, "text": text, "body": body })
}

/// Returns the result of a change that a process has not made.
pub(crate) fn not_done(process: &Process, text: &str) -> Value {
    outcome(process, false, text, &Value::Null)
}

/// Returns whether there are results, and all are good.
pub(crate) fn are_done(outcomes: &[Value]) -> bool {
    !outcomes.is_empty() && outcomes.iter().all(|outcome| outcome["isDone"] == true)
}

/// Logs what a person has done.
pub(crate) fn record(person: &Person, action: &'static str, target: &str, is_done: bool) {
    tracing::info!(operator = %person.subject, action, target = %target, is_done, "console action");
}

/// Returns the target and the body.
fn read_fields(action: &Action, fields: &Map<String, Value>) -> Result<(String, Value), Problem> {
    let mut problem = Problem::new(Code::ValidationFailed);
    let mut is_valid = true;
    let mut body = Map::new();
    let mut target = "";
    for (name, value) in fields {
        if name == "target" && action.path.contains("{}") {
            target = value.as_str().unwrap_or_default();
            continue;
        }
        let known = action.fields.iter().find(|(known, _)| known == name);
        let read = match known {
            Some((_, form)) => read_field(value, *form),
            None => Err(("unknown_field", "is not a field of this action")),
        };
        match read {
            Ok(Value::Null) => {}
            Ok(value) => {
                body.insert(name.clone(), value);
            }
            Err((code, detail)) => {
                is_valid = false;
                problem = problem.error(&format!("/{name}"), code, detail);
            }
        }
    }
    let is_target = (1..=255).contains(&target.len()) && !target.contains(char::is_control);
    if action.path.contains("{}") && !is_target {
        is_valid = false;
        problem = problem.error("/target", "missing_field", "is required");
    }
    if is_valid {
        Ok((target.to_owned(), Value::Object(body)))
    } else {
        Err(problem)
    }
}

/// Converts a field; `null` if it is empty.
fn read_field(value: &Value, form: Form) -> Result<Value, (&'static str, &'static str)> {
    let invalid = |detail| ("invalid_format", detail);
    let text = value.as_str().ok_or(invalid("must be a string"))?;
    if text.len() > MAX_FIELD_BYTES {
        return Err(invalid("is too long"));
    }
    if text.is_empty() {
        return Ok(Value::Null);
    }
    let Some(is_form) = form else {
        return Ok(json!(text));
    };
    let parsed = serde_json::from_str(text).ok().filter(is_form);
    parsed.ok_or(invalid("does not have the JSON type of this field"))
}

/// Encodes text as one segment of a path: no `/`, `?` or `#` of it has a meaning. `processes` refuses
/// a segment that is empty, `.` or `..`, which no encoding protects.
pub(crate) fn path_segment(text: &str) -> String {
    let encoded: String = form_urlencoded::byte_serialize(text.as_bytes()).collect();
    encoded.replace('+', "%20")
}
