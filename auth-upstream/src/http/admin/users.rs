//! The users of the pool.

use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use http::StatusCode;
use postern_core::decode::Object;
use postern_core::{Code, Problem};
use postern_service::admin_api::{AdminAction, Operator, changed, record};
use postern_service::http::{Json, Query, RequestId, json};
use serde_json::{Value, json as value};

use super::AdminState;
use crate::client::ClientContext;
use crate::flows::AccountChange;
use crate::http::request::password;

/// Maximum bytes of a parameter. Cursors are the pool's.
const MAX_PARAMETER_BYTES: usize = 4096;

/// Handles `GET /admin/users`.
pub(super) async fn list(
    State(state): State<AdminState>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let query = query.unwrap_or_default();
    let mut query = Query::parse(&query, &["email", "cursor"]);
    let text = |text: &str| (text.len() <= MAX_PARAMETER_BYTES).then(|| text.to_owned());
    let email = query.read("email", "must be the beginning of an address", text);
    let cursor = query.read("cursor", "must be a nextCursor", text);
    query.finish()?;
    let page = state.flows.list_accounts(email.as_deref(), cursor).await?;
    Ok(json(StatusCode::OK, &page))
}

/// Handles `GET /admin/users/{subject}`.
pub(super) async fn describe(
    State(state): State<AdminState>,
    Path(subject): Path<String>,
) -> Result<Response, Problem> {
    let account = state.flows.describe_account(&subject).await?;
    Ok(json(StatusCode::OK, &account))
}

/// Handles `POST /admin/users/{subject}/{change}`.
pub(super) async fn change(
    State(state): State<AdminState>,
    Path((subject, change)): Path<(String, String)>,
    operator: Operator,
    request_id: RequestId,
    body: Json,
) -> Result<Response, Problem> {
    let (action, change) = body
        .read(|body| read_change(&change, body))?
        .ok_or(Code::NotFound)?;
    let client = ClientContext::new(request_id.0.clone(), None);
    let changed_account = state.flows.change_account(&client, &subject, &change);
    let _audited = changed_account.await?;
    let action = AdminAction {
        action,
        target: &subject,
        before: Value::Null,
        after: Value::Null,
    };
    record(&operator, &request_id, &action);
    Ok(changed(&value!({})))
}

/// Reads the change of a name, and returns the name of the action; `None` for an unknown one.
fn read_change(name: &str, body: &Object<'_>) -> Option<Option<(&'static str, AccountChange)>> {
    let group = || body.required("group", |field| field.text(1..=128));
    Some(Some(match name {
        "enable" => ("user.enable", AccountChange::Enable),
        "disable" => ("user.disable", AccountChange::Disable),
        "sign-out" => ("user.sign_out", AccountChange::SignOut),
        "reset-password" => ("user.reset_password", AccountChange::ResetPassword),
        "set-password" => {
            let new = body.required("newPassword", password);
            ("user.set_password", AccountChange::SetPassword(new?))
        }
        "add-to-group" => ("user.add_to_group", AccountChange::AddToGroup(group()?)),
        "remove-from-group" => (
            "user.remove_from_group",
            AccountChange::RemoveFromGroup(group()?),
        ),
        _ => return Some(None),
    }))
}
