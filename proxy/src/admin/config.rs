//! `/admin/config`: the configuration file, its check, its replacement and its history.

use std::sync::Arc;

use axum::Json as JsonBody;
use axum::Router;
use axum::extract::{Path, State as Shared};
use axum::response::Response;
use axum::routing::{get, post};
use postern_core::decode::Object;
use postern_core::{Code, Problem};
use postern_service::admin_api::{self, AdminAction, Operator};
use postern_service::http::{Json, RequestId};
use serde_json::{Value, json};

use crate::config_editor::{
    ChangeError, Changed, CheckReport, ConfigChange, ConfigEditor, MAX_TEXT_BYTES, StoredEntry,
    blocking, hash_text, read_entry,
};

type Editor = Shared<Arc<ConfigEditor>>;

/// Seconds after which a check can be tried again.
const RETRY_AFTER_S: u32 = 5;

pub(super) fn routes(editor: &Arc<ConfigEditor>) -> Router {
    Router::new()
        .route("/admin/config", get(current).put(save))
        .route("/admin/config/check", post(check))
        .route("/admin/config/history", get(history))
        .route("/admin/config/history/{number}", get(entry))
        .route("/admin/config/history/{number}/restore", post(restore))
        .with_state(Arc::clone(editor))
}

/// Returns the file as it is now, and the state of the configuration in force.
async fn current(Shared(editor): Editor) -> Result<JsonBody<Value>, Problem> {
    let reader = Arc::clone(&editor);
    let read = blocking(move || reader.read()).await;
    let (files, read_only) = read.map_err(change_problem)?;
    let status = editor.state.config_status.lock().clone();
    let mut answer = json!({
        "file": editor.path.display().to_string(),
        "text": null,
        "hash": null,
        "hashInForce": status.hash,
        "version": status.version,
        "loadedAt": status.loaded_at,
        "lastError": status.last_error,
        "restartNeeded": status.restart_needed,
        "editable": read_only.is_none(),
        "readOnlyReason": read_only,
    });
    match files {
        Ok(files) => {
            answer["text"] = json!(files.text());
            answer["hash"] = json!(hash_text(files.hash()));
        }
        Err(exit) => {
            answer["editable"] = json!(false);
            answer["readOnlyReason"] = json!(exit.message());
        }
    }
    Ok(JsonBody(answer))
}

/// Checks a text. Nothing is changed.
///
/// # Errors
/// 400 or 422 for a malformed body, 413 for a larger one, 503 if there is no result in time.
async fn check(Shared(editor): Editor, body: Json) -> Result<JsonBody<CheckReport>, Problem> {
    let text = body.read(read_text)?;
    let report = editor.check(text).await.map_err(change_problem)?;
    Ok(JsonBody(report))
}

/// Replaces the text of the file and activates it.
///
/// # Errors
/// 409 if the file has another hash or cannot be written, 422 with the report of the check if it
/// does not load, a test fails, or it is wider although this was to be refused.
async fn save(
    Shared(editor): Editor,
    operator: Operator,
    id: RequestId,
    body: Json,
) -> Result<Response, Problem> {
    let replacement = body.read(|body| {
        let text = read_text(body);
        let replacement = read_change(body, &operator)?;
        Some(ConfigChange {
            text: text?,
            ..replacement
        })
    })?;
    let target = editor.path.display().to_string();
    change(editor, replacement, operator, id, ("config.save", target)).await
}

/// Returns the earlier configurations, newest first, without their texts.
async fn history(Shared(editor): Editor) -> JsonBody<Value> {
    let history = editor.history.lock();
    let entries: Vec<_> = history.entries().collect();
    JsonBody(json!({
        "history": entries,
        "folder": history.folder.display().to_string(),
        "fault": history.fault,
    }))
}

/// Returns an earlier configuration with its texts.
///
/// # Errors
/// 404 if there is none of this number.
async fn entry(
    Shared(editor): Editor,
    Path(number): Path<String>,
) -> Result<JsonBody<StoredEntry>, Problem> {
    stored(&editor, &number).await.map(JsonBody)
}

/// Replaces the text of the file by an earlier one, as [`save`] does.
///
/// # Errors
/// As [`save`]; 404 if there is no configuration of this number.
async fn restore(
    Shared(editor): Editor,
    Path(number): Path<String>,
    operator: Operator,
    id: RequestId,
    body: Json,
) -> Result<Response, Problem> {
    let replacement = body.read(|body| read_change(body, &operator))?;
    let earlier = stored(&editor, &number).await?;
    let target = format!("{}#{}", editor.path.display(), earlier.entry.number);
    let replacement = ConfigChange {
        text: earlier.text,
        ..replacement
    };
    let action = ("config.restore", target);
    change(editor, replacement, operator, id, action).await
}

async fn stored(editor: &ConfigEditor, number: &str) -> Result<StoredEntry, Problem> {
    let none = || Problem::new(Code::NotFound).detail("there is no configuration of this number");
    let number = number.parse().map_err(|_| none())?;
    let folder = {
        let history = editor.history.lock();
        let folder = history.contains(number).then(|| history.folder.clone());
        folder.ok_or_else(none)?
    };
    let read = blocking(move || read_entry(&folder, number)).await;
    read.map_err(change_problem)?.map_err(|error| {
        tracing::warn!(number, %error, "history entry not readable");
        none()
    })
}

async fn change(
    editor: Arc<ConfigEditor>,
    change: ConfigChange,
    operator: Operator,
    id: RequestId,
    (action, target): (&'static str, String),
) -> Result<Response, Problem> {
    // A task, because a change that has begun must end, also if the client has gone.
    let work = tokio::spawn(async move {
        let changed = editor.change(change).await?;
        let after = describe(&changed);
        let action = AdminAction {
            action,
            target: &target,
            before: json!({ "hash": changed.before }),
            after: after.clone(),
        };
        admin_api::record(&operator, &id, &action);
        Ok::<_, ChangeError>(after)
    });
    match work.await {
        Ok(Ok(after)) => Ok(admin_api::changed(&after)),
        Ok(Err(error)) => Err(change_problem(error)),
        Err(_panicked) => Err(Code::Internal.into()),
    }
}

fn describe(changed: &Changed) -> Value {
    let active = &changed.active;
    json!({
        "hash": active.hash,
        "version": active.version,
        "restartNeeded": active.restart_needed,
        "widened": changed.widened,
        "unchanged": changed.was_same,
    })
}

fn change_problem(error: ChangeError) -> Problem {
    match error {
        ChangeError::FileChanged(hash) => {
            Problem::new(Code::ConfigurationChanged).member("hash", json!(hash))
        }
        ChangeError::ReadOnly(reason) => Problem::new(Code::ConfigurationReadOnly).detail(reason),
        ChangeError::Invalid(report) => {
            let errors = report.errors.iter().map(ToString::to_string);
            let failed = report.tests.iter().filter(|test| !test.ok);
            let errors = errors.map(|text| ("invalid_configuration", text));
            let mistakes = errors.chain(failed.map(|test| ("test_failed", test.describe())));
            let problem = mistakes.fold(
                Problem::new(Code::ValidationFailed),
                |problem, (code, text)| problem.error("/text", code, text),
            );
            problem.member("check", json!(report))
        }
        ChangeError::Widened(report) => {
            let detail = match &report.differences_error {
                None => "requests that are rejected now would be accepted".to_owned(),
                Some(error) => format!("it is unknown which requests would be accepted: {error}"),
            };
            Problem::new(Code::ValidationFailed)
                .error("/text", "access_widened", detail)
                .member("check", json!(report))
        }
        ChangeError::NotActivated(error) => {
            Problem::new(Code::ValidationFailed).error("/text", "not_activated", error)
        }
        ChangeError::Unknown => Problem::new(Code::Unavailable)
            .detail("the file was written, but it was not activated in time: see /admin/config"),
        ChangeError::CheckTimeout => Problem::new(Code::Unavailable)
            .detail("the check did not end in time")
            .retry_after(RETRY_AFTER_S),
        ChangeError::CheckPanicked => Code::Internal.into(),
        ChangeError::Stopping => Code::Unavailable.into(),
    }
}

fn read_text(body: &Object<'_>) -> Option<String> {
    body.required("text", |field| {
        let text = field.string()?;
        match text.len() <= MAX_TEXT_BYTES {
            true => Some(text.to_owned()),
            false => field.reject("invalid_length", "must have at most 1 MiB"),
        }
    })
}

/// Reads a change without its text.
fn read_change(body: &Object<'_>, operator: &Operator) -> Option<ConfigChange> {
    let base_hash = body.required("baseHash", |field| field.text(1..=64));
    let refuse_widened = body.or("refuseWidened", false, |field| field.boolean());
    Some(ConfigChange {
        text: String::new(),
        base_hash: base_hash?,
        operator: operator.name().to_owned(),
        refuse_widened,
    })
}
