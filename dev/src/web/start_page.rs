//! The start page: what runs, where and in what state.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use futures_util::future::join_all;
use http::StatusCode;
use maud::{Markup, html};
use postern_service::http::json;
use serde::Serialize;
use serde_json::Value;

use crate::web::api_page;
use crate::web::page::{Page, Section, script};

/// Maximum duration of a readiness request.
const READINESS_TIMEOUT: Duration = Duration::from_secs(2);

/// A part of the installation.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The name.
    pub(crate) name: &'static str,
    /// What it is for, in one sentence.
    pub(crate) purpose: &'static str,
    /// The address of its URL, or the text of another address.
    pub(crate) address: String,
    /// The page of the part for a browser.
    pub(crate) page: Option<String>,
    /// The admin listener that answers `/readyz`.
    pub(crate) admin: Option<SocketAddr>,
}

/// The content of the page.
#[derive(Debug)]
pub(crate) struct StartPage {
    /// The parts, in the order of the page.
    pub(crate) parts: Vec<Part>,
    /// For requests of readiness.
    pub(crate) client: reqwest::Client,
}

/// The state of a part, in the words of the page.
#[derive(Debug, Serialize)]
struct PartState {
    name: &'static str,
    state: &'static str,
    detail: Option<String>,
}

/// Builds the router of the page.
pub(crate) fn router(page: StartPage) -> Router {
    Router::new()
        .route("/", get(show))
        .route("/state", get(state))
        .route(
            "/assets/start_page.js",
            get(|| async { script(include_str!("start_page.js")) }),
        )
        .with_state(Arc::new(page))
}

async fn show(State(page): State<Arc<StartPage>>) -> Response {
    let content = html! {
        p {
            "Everything runs in one process, for development. Clients use the gateway only; the rest is shown so that \
             you can look behind it."
        }
        (parts(&page.parts))
        p { "Try requests on the page " a href=(api_page::PATH) { "API" } ", or with the commands that the program has printed." }
    };
    Page {
        title: "What runs",
        section: Some(Section::Start),
        script: Some("/assets/start_page.js"),
        content,
    }
    .respond(StatusCode::OK)
}

fn parts(parts: &[Part]) -> Markup {
    html! {
        div.panel {
            h2 { "Parts" }
            table.stack {
                thead { tr { th scope="col" { "Part" } th scope="col" { "Address" } th scope="col" { "State" } } }
                tbody {
                    @for part in parts {
                        tr {
                            td {
                                @match &part.page {
                                    Some(page) => a href=(page) { (part.name) },
                                    None => (part.name),
                                }
                                div.muted { (part.purpose) }
                            }
                            td.mono { (part.address) }
                            td {
                                @if part.admin.is_some() {
                                    span.badge data-part=(part.name) role="status" { "asking" }
                                } @else {
                                    span.badge { "in this process" }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// `GET /state`: the states of the parts that have an admin listener.
async fn state(State(page): State<Arc<StartPage>>) -> Response {
    let states = page.parts.iter().filter_map(|part| {
        let admin = part.admin?;
        Some(part_state(&page.client, part.name, admin))
    });
    let states: Vec<PartState> = join_all(states).await;
    json(StatusCode::OK, &serde_json::json!({ "parts": states }))
}

async fn part_state(client: &reqwest::Client, name: &'static str, admin: SocketAddr) -> PartState {
    let request = client
        .get(format!("http://{admin}/readyz"))
        .timeout(READINESS_TIMEOUT);
    let body: Option<Value> = match request.send().await {
        Ok(response) => response.json().await.ok(),
        Err(_) => None,
    };
    let (state, detail) = match body {
        None => ("unavailable", None),
        Some(body) => classify(&body),
    };
    PartState {
        name,
        state,
        detail,
    }
}

/// Returns the state and its reasons from a body of `/readyz`.
fn classify(body: &Value) -> (&'static str, Option<String>) {
    let reasons: Vec<String> = body["parts"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(part, reason)| Some((part, reason.as_str()?)))
        .filter(|(_, reason)| *reason != "ok")
        .map(|(part, reason)| format!("{part}: {reason}"))
        .collect();
    let detail = (!reasons.is_empty()).then(|| reasons.join("; "));
    let is_degraded = body["degraded"]
        .as_array()
        .is_some_and(|names| !names.is_empty());
    match body["ready"].as_bool() {
        Some(true) if is_degraded => ("degraded", detail),
        Some(true) => ("ready", None),
        Some(false) | None => ("not ready", detail),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn readiness_is_classified_with_its_reasons() {
        let ready = json!({"ready": true, "degraded": [], "parts": {"service": "ok"}});
        assert_eq!(classify(&ready), ("ready", None));
        let degraded =
            json!({"ready": true, "degraded": ["smtp"], "parts": {"smtp": "degraded: refused"}});
        let expected = ("degraded", Some("smtp: degraded: refused".to_owned()));
        assert_eq!(classify(&degraded), expected);
        let failed = json!({"ready": false, "parts": {"database": "locked", "service": "ok"}});
        let expected = ("not ready", Some("database: locked".to_owned()));
        assert_eq!(classify(&failed), expected);
        assert_eq!(classify(&json!("x")), ("not ready", None));
    }
}
