//! What the requests and dead letters behind a finding have in common: caller, upstream, address, code.
//!
//! Input: the pages of findings. Output: [`Evidence`]. Depends on `config` and `processes`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use postern_core::clock::Timestamp;
use serde_json::Value;

use crate::config::ProcessKind;
use crate::processes::{Call, ProcessDirectory};
use crate::widgets::plain;

/// Pages of which the rows are read with a sample.
const MAX_PAGES: usize = 8;
/// Maximum time of a call of a gateway; all calls have twice as long.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Age from which a request is no evidence of what is wrong now.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Maximum characters of a value.
const MAX_VALUE_CHARACTERS: usize = 100;
/// Members of rows that name a cause.
const MEMBERS: &str = "code cause issuer caller_service caller template subject client route \
    upstream upstream_address";

/// Members that a finding shares with its consequences.
const ABOUT: [&str; 3] = ["code", "route", "upstream"];

/// What the rows of a page have in common.
#[derive(Clone, Debug)]
pub(crate) struct Proof {
    pub(crate) text: String,
    pub(crate) about: Vec<(String, String)>,
}

/// What the rows of pages have in common, by page.
pub(crate) type Evidence = BTreeMap<String, Proof>;

/// Reads the rows of pages: recent requests of all gateways, and dead letters.
pub(crate) async fn collect(
    pages: BTreeSet<String>,
    directory: &ProcessDirectory,
    now: Timestamp,
) -> Evidence {
    let pages = pages.into_iter().take(MAX_PAGES);
    let proofs = pages.map(|page| async move {
        let rows = match page.split_once('?')? {
            ("/requests", query) => requests(query, directory, now).await,
            ("/dead-letters", query) => dead_letters(query, directory).await,
            _ => return None,
        };
        Some((page, proof(&rows)?))
    });
    // Without an answer in time, a finding has no evidence.
    let read = tokio::time::timeout(2 * TIMEOUT, join_all(proofs)).await;
    read.into_iter().flatten().flatten().collect()
}

async fn requests(query: &str, directory: &ProcessDirectory, now: Timestamp) -> Vec<Value> {
    let path = format!("/admin/requests?{query}&follow=false");
    let call = &Call::get(path).within(TIMEOUT);
    let gateways = directory.of(ProcessKind::Gateway);
    let replies = join_all(gateways.iter().map(|it| directory.call(it, call))).await;
    let replies: Vec<_> = replies.into_iter().flatten().collect();
    let lines = replies.iter().flat_map(|reply| reply.text.lines());
    let events = lines.filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
    let since = Timestamp(now.0 - 1000 * MAX_AGE.as_secs().cast_signed()).to_string();
    let is_recent = |event: &Value| plain(&event["timestamp"]) >= since;
    let mut events: Vec<Value> = events.filter(is_recent).collect();
    if !query.contains("status=") && !query.contains("code=") {
        // Of a slow route, the slowest.
        let slowness = |event: &Value| event["duration_ms"].as_f64().unwrap_or(0.0);
        events.sort_by(|left, right| slowness(right).total_cmp(&slowness(left)));
        events.truncate(events.len().div_ceil(5));
    }
    events
}

async fn dead_letters(query: &str, directory: &ProcessDirectory) -> Vec<Value> {
    let call = Call::get(format!("/admin/dead?{query}"));
    let reply = directory.call_any(ProcessKind::Notify, &call).await;
    let answer = reply.map(|reply| reply.json()).unwrap_or_default();
    let rows = answer["deadLetters"].as_array();
    rows.cloned().unwrap_or_default()
}

/// Returns the values that most rows have.
fn proof(rows: &[Value]) -> Option<Proof> {
    let mut about = Vec::new();
    let mut texts = Vec::new();
    for member in MEMBERS.split(' ') {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for row in rows {
            let value = plain(&row[member]);
            let value = value.chars().take(MAX_VALUE_CHARACTERS).collect();
            *counts.entry(value).or_default() += 1;
        }
        counts.remove("");
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        if let Some((value, count)) = most.filter(|(_, count)| 2 * count > rows.len()) {
            texts.push(format!("{} {value} ({count})", member.replace('_', " ")));
            if ABOUT.contains(&member) && value != "ok" {
                about.push((member.to_owned(), value));
            }
        }
    }
    let text = format!("of {}: {}", rows.len(), texts.join(", "));
    (!texts.is_empty()).then_some(Proof { text, about })
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use serde_json::json;

    use super::*;
    use crate::config::ProcessGroup;
    use crate::testing::{SECRET, serve};

    #[tokio::test]
    async fn rows_name_what_most_of_them_have() {
        let event = |second: u32, caller: &str, ms: u32| {
            let timestamp = format!("2027-01-15T08:00:{second:02}.000Z");
            let event = json!({
                "timestamp": timestamp, "code": "token_signature_invalid", "caller_service": caller, "upstream": "actor",
                "upstream_address": format!("a:{ms}"), "duration_ms": ms,
            });
            format!("event: request\ndata: {event}\n\n")
        };
        let text = [
            event(1, "old", 1),
            event(31, "web", 3000),
            event(32, "web", 1),
            event(33, "", 2),
        ]
        .concat();
        let url = serve(Router::new().fallback(move || async move { text })).await;
        let group = ProcessGroup {
            kind: ProcessKind::Gateway,
            urls: vec![url],
            token: SECRET.into(),
        };
        let directory = ProcessDirectory::new(vec![group]).expect("a client");
        let pages = [
            "/requests?code=token_signature_invalid",
            "/requests?route=r",
            "/providers?x",
        ];
        let pages = pages.map(str::to_owned).into_iter().collect();
        let now = Timestamp::parse("2027-01-15T08:01:30.000Z").expect("a time");
        let evidence = collect(pages, &directory, now).await;
        let text = |page: &str| evidence.get(page).map(|proof| proof.text.clone());
        assert_eq!(
            text("/requests?code=token_signature_invalid").as_deref(),
            Some(
                "of 3: code token_signature_invalid (3), caller service web (2), upstream actor (3)"
            )
        );
        let slow = text("/requests?route=r").expect("the slowest");
        assert!(
            slow.ends_with("upstream actor (1), upstream address a:3000 (1)"),
            "{slow}"
        );
        assert!(text("/providers?x").is_none());
    }
}
