//! Lists of notifications.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use http::StatusCode;
use postern_core::Problem;
use postern_core::clock::Timestamp;
use postern_service::http::{Query, json, no_store};
use serde::Serialize;

use super::status::view;
use super::{ApiState, AuthenticatedCaller};
use crate::address::canonical;
use crate::notification::Channel;
use crate::status::list::{
    DEFAULT_PAGE_SIZE, ListAccess, ListFilter, ListPage, ListReader, MAX_PAGE_SIZE,
};
use crate::status::view::{NotificationStatus, StatusView};
use crate::store::NotificationSnapshot;
use crate::templates::TemplateName;

const PARAMETERS: [&str; 8] = [
    "recipient",
    "status",
    "template",
    "channel",
    "from",
    "to",
    "cursor",
    "limit",
];
/// Maximum bytes of a recipient: the longest device token.
const MAX_RECIPIENT_BYTES: usize = 4096;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListResponse {
    notifications: Vec<StatusView>,
    next_cursor: Option<String>,
}

/// Handles `GET /notifications`: the caller's own notifications, or all of them for administrators
/// and readers; newest first.
pub(super) async fn list(
    State(service): State<Arc<ApiState>>,
    caller: AuthenticatedCaller,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let access = match caller.may_read_all {
        true => ListAccess::All,
        false => ListAccess::Own(caller.principal),
    };
    let (page, next) = read_page(&service, access, query.as_deref()).await?;
    let response = ListResponse {
        notifications: page.into_iter().map(|(view, _)| view).collect(),
        next_cursor: next,
    };
    Ok(no_store(json(StatusCode::OK, &response)))
}

/// A page of a list, with the cursor of the next one.
pub(super) type ListedPage = (Vec<(StatusView, NotificationSnapshot)>, Option<String>);

/// Reads the page that a query asks for.
///
/// # Errors
/// 400 with every mistake of the query, 503 if the store is unavailable.
pub(super) async fn read_page(
    service: &ApiState,
    access: ListAccess,
    query: Option<&str>,
) -> Result<ListedPage, Problem> {
    let mut query = Query::parse(query.unwrap_or_default(), &PARAMETERS);
    let filter = filter(&mut query);
    let limit = limit(&mut query, MAX_PAGE_SIZE);
    let reader = ListReader {
        store: &service.store,
        access,
        filter,
    };
    let expected = "must be the nextCursor of a page with the same parameters";
    let after = query.read("cursor", expected, |text| reader.parse_cursor(text));
    query.finish()?;
    let limit = limit.unwrap_or(DEFAULT_PAGE_SIZE);
    let page = reader.page(after, limit, |snapshot| view(service, snapshot));
    let ListPage {
        notifications,
        next,
    } = page.await?;
    Ok((notifications, next.map(|id| reader.cursor(id))))
}

fn filter(query: &mut Query) -> ListFilter {
    let expected = "must be an address or actor id";
    let recipient = query.read("recipient", expected, |text| {
        let is_recipient = (1..=MAX_RECIPIENT_BYTES).contains(&text.len());
        is_recipient.then(|| canonical(text))
    });
    let statuses = "must be SCHEDULED, QUEUED, SENT, DELIVERED, FAILED, CANCELLED or EXPIRED";
    let read_status = |text: &str| named(NotificationStatus::NAMES, text);
    let status = query.read("status", statuses, read_status);
    let (template, channel) = (template(query), channel(query));
    let mut instant = |name| query.read(name, "must be an RFC 3339 time", Timestamp::parse);
    let (from, to) = (instant("from"), instant("to"));
    ListFilter {
        recipient,
        status,
        template,
        channel,
        from,
        to,
    }
}

pub(super) fn template(query: &mut Query) -> Option<String> {
    let template = query.read(
        "template",
        "must be the name of a template",
        TemplateName::parse,
    );
    template.map(|name| name.as_str().to_owned())
}

pub(super) fn channel(query: &mut Query) -> Option<Channel> {
    let read = |text: &str| named(Channel::NAMES, text);
    query.read("channel", "must be email, sms or push", read)
}

/// Reads the number of rows that a page may have.
pub(super) fn limit<T: FromStr + Copy + Display + From<u8> + PartialOrd>(
    query: &mut Query,
    max: T,
) -> Option<T> {
    query.read("limit", &format!("must be 1 to {max}"), |text| {
        let limit: T = text.parse().ok()?;
        (T::from(1_u8)..=max).contains(&limit).then_some(limit)
    })
}

pub(super) fn named<T: Copy>(names: &[(&str, T)], text: &str) -> Option<T> {
    let found = names.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value)
}
