//! Notifications: list, history, and changes of one.

use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use http::StatusCode;
use postern_core::{Code, Problem};
use postern_service::admin_api::changed;
use postern_service::http::json;
use postern_service::timeline::{MAX_ENTRIES, TimelineQuery, TimelineSelector};
use serde_json::{Value, json as value};

use super::super::ApiState;
use super::super::list::read_page;
use super::super::status::{cancel_notification, find, view};
use super::dead::replay;
use super::templates::render;
use super::{AdminState, Api, Change};
use crate::principal::Principal;
use crate::status::list::ListAccess;
use crate::status::view::StatusView;
use crate::store::{DeadFilter, NotificationSnapshot};
use crate::templates::{Locale, TemplateName};

/// Handles `GET /admin/notifications`: the query of `GET /notifications`, over all notifications.
pub(super) async fn list(Api(api): Api, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let (page, next) = read_page(&api, ListAccess::All, query.as_deref()).await?;
    let views = page
        .iter()
        .map(|(status, snapshot)| record(status, snapshot));
    let views: Vec<Value> = views.collect();
    let body = value!({ "notifications": views, "nextCursor": next });
    Ok(json(StatusCode::OK, &body))
}

/// Handles `GET /admin/notifications/{id}`: the record, and the events of `postern-notify show`.
pub(super) async fn show(
    State(state): State<AdminState>,
    Api(api): Api,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let snapshot = find(&api, &id).await?;
    let selector = TimelineSelector::Notification(snapshot.id.to_string());
    let query = TimelineQuery::new(selector, MAX_ENTRIES);
    let timeline = state.reader.answer(&query).await?;
    let record = record(&view(&api, &snapshot), &snapshot);
    let body = value!({ "notification": record, "entries": timeline.entries });
    Ok(json(StatusCode::OK, &body))
}

/// Handles `POST /admin/notifications/{id}/retry`: queues a dead letter again.
pub(super) async fn retry(
    Api(api): Api,
    change: Change,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let before = find(&api, &id).await?;
    let filter = DeadFilter {
        id: Some(before.id),
        limit: 1,
        ..DeadFilter::default()
    };
    let retried = replay(&api.store, &filter, &api.clock).await?;
    if retried == 0 {
        let detail =
            "only notifications that failed permanently and were not dropped can be retried";
        return Err(Problem::new(Code::ValidationFailed).detail(detail));
    }
    let lane = before.record.lane;
    api.dispatch_state.channel(lane.channel).mark_waiting(lane);
    let after = status_of(&api, &find(&api, &id).await?);
    let before = status_of(&api, &before);
    change.record("notification.retry", &id, before, after.clone());
    Ok(changed(&value!({ "notificationId": id, "status": after })))
}

/// Handles `POST /admin/notifications/{id}/cancel`: cancels one whose delivery has not started.
pub(super) async fn cancel(
    Api(api): Api,
    change: Change,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let before = find(&api, &id).await?;
    let after = cancel_notification(&api, before.id).await?;
    let status = Value::from(after.status.as_str());
    let before = status_of(&api, &before);
    change.record("notification.cancel", &id, before, status.clone());
    Ok(changed(&value!({ "notificationId": id, "status": status })))
}

/// Handles `GET /admin/notifications/{id}/preview`: the message, rendered again with the template
/// that is loaded now. Reading it is logged as a change is, because it may have a code or a link
/// that signs its recipient in.
pub(super) async fn preview(
    Api(api): Api,
    reading: Change,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let snapshot = find(&api, &id).await?;
    let record = &snapshot.record;
    let name = TemplateName::parse(&record.template).ok_or(Code::Internal)?;
    let variables = serde_json::from_str(&record.variables).map_err(|_| Code::Internal)?;
    let (channel, locale) = (record.lane.channel, Locale::parse(&record.locale));
    let author = Principal::author(&record.creator);
    let templates = api.templates.load();
    let wanted = (&name, channel, locale.as_ref());
    let gone = "the template is no longer there";
    let changed = "the template has changed and does not render with the stored variables";
    let found = render(&templates, wanted, &variables, author);
    let found = found.ok_or_else(|| Problem::new(Code::NotFound).detail(gone))?;
    let mut body = found.map_err(|_| Problem::new(Code::ValidationFailed).detail(changed))?;
    let mut results = snapshot.results().rev();
    let rendered = results.find_map(|result| result.template_version);
    let sent_version = rendered.unwrap_or(record.template_version);
    body["channel"] = channel.as_str().into();
    body["isSameVersion"] = (body["version"] == sent_version).into();
    body["templateVersion"] = sent_version.into();
    let id = snapshot.id.to_string();
    reading.record("notification.read_message", &id, Value::Null, Value::Null);
    Ok(json(StatusCode::OK, &body))
}

fn status_of(api: &ApiState, snapshot: &NotificationSnapshot) -> Value {
    view(api, snapshot).status.as_str().into()
}

/// Returns a notification as operators see it: its status, and what was asked for.
fn record(status: &StatusView, snapshot: &NotificationSnapshot) -> Value {
    let record = &snapshot.record;
    let mut view = value!(status);
    view["recipient"] = serde_json::from_str(&record.recipient).unwrap_or_default();
    view["creator"] = value!(record.creator);
    view["addressee"] = value!(record.addressee);
    view["locale"] = value!(record.locale);
    view["requestId"] = value!(record.request_id);
    view["sendAt"] = value!(snapshot.send_at);
    view["expiresAt"] = value!(record.expires_at);
    view
}
