//! Audit events: sign-ins, registrations, refreshes and so on.

use axum::extract::{RawQuery, State};
use axum::response::Response;
use http::StatusCode;
use postern_core::Problem;
use postern_core::clock::Timestamp;
use postern_core::email::EmailAddress;
use postern_service::http::{Query, json};
use postern_service::timeline::{parse_id, parse_instant};

use super::AdminState;
use crate::audit_trail::SignInSearch;
use crate::store::AuditPosition;

const MAX_PAGE_SIZE: usize = 200;
const DEFAULT_PAGE_SIZE: usize = 50;
const INSTANT: &str = "must be an RFC 3339 time, or a duration such as 24h";

/// Handles `GET /admin/sign-ins`: recent audit events, newest first.
pub(super) async fn list(
    State(state): State<AdminState>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let query = query.unwrap_or_default();
    let search = read_search(&query, state.flows.clock.now())?;
    let page = state.reader.search(&search).await?;
    Ok(json(StatusCode::OK, &page))
}

fn read_search(query: &str, now: Timestamp) -> Result<SignInSearch, Problem> {
    const KNOWN: [&str; 9] = [
        "email", "user", "request", "outcome", "reason", "since", "until", "limit", "cursor",
    ];
    let mut query = Query::parse(query, &KNOWN);
    let email = query.read("email", "must be an e-mail address", EmailAddress::parse);
    let mut id = |name| query.read(name, "must be 1 to 255 visible ASCII characters", parse_id);
    let (user, request) = (id("user"), id("request"));
    let (outcome, reason) = (id("outcome"), id("reason"));
    let mut instant = |name| query.read(name, INSTANT, |text| parse_instant(text, now));
    let (since, until) = (instant("since"), instant("until"));
    let limit = query.read("limit", "must be 1 to 200", |text| {
        let limit: usize = text.parse().ok()?;
        (1..=MAX_PAGE_SIZE).contains(&limit).then_some(limit)
    });
    let after = query.read("cursor", "must be a nextCursor", AuditPosition::parse);
    query.finish()?;
    Ok(SignInSearch {
        email,
        user,
        request,
        outcome,
        reason,
        since: since.unwrap_or(Timestamp(0)),
        until: until.unwrap_or(Timestamp(i64::MAX)),
        limit: limit.unwrap_or(DEFAULT_PAGE_SIZE),
        after,
    })
}
