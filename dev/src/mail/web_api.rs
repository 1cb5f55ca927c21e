//! The API under `/messages`.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{any, get};
use http::StatusCode;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use postern_core::problem::{Code, Problem};
use postern_service::http::{AllowedHosts, Query, json as json_response};
use serde::Serialize;
use serde_json::json;

use super::mailbox::{Mailbox, Summary};
use super::mime::{self, ParsedMail};
use super::pages;
use crate::samples::store_problem;
use crate::web::{api_page, landing_page, page};

const MAX_WAIT_S: u64 = 60;

#[derive(Serialize)]
struct MessageBody {
    #[serde(flatten)]
    summary: Summary,
    #[serde(flatten)]
    mail: ParsedMail,
}

/// Builds the router of the API, the pages, and the landing page of social sign-ins, which contains
/// the gateway's URL.
pub(crate) fn router(mailbox: Arc<Mailbox>, gateway: &str) -> Router {
    let router = Router::new()
        .route("/", get(|| async { Redirect::to("/mail") }))
        .route("/messages", get(list).delete(clear))
        .route("/messages/{id}", get(message).delete(delete))
        .route("/messages/{id}/raw", get(raw))
        .route("/messages/{id}/html", get(html))
        .merge(pages::router())
        .merge(page::assets())
        .with_state(mailbox)
        .merge(landing_page::router(gateway))
        .merge(api_page::router(gateway));
    // A route, because the request layer sets the fallback, which would lack the header fields.
    let router = router.route("/{*path}", any(|| async { Code::NotFound }));
    let router = AllowedHosts::loopback().guard(router);
    router.layer(map_response(page::protect))
}

/// `GET /messages?to=&waitSeconds=`: lists messages, newest first. Waits for the first match if
/// requested.
async fn list(
    State(mailbox): State<Arc<Mailbox>>,
    RawQuery(text): RawQuery,
) -> Result<Response, Problem> {
    let known = ["to", "waitSeconds"];
    let mut query = Query::parse(text.as_deref().unwrap_or_default(), &known);
    let seconds = query.read("waitSeconds", "must be a number of at most 60", |text| {
        let seconds = text.parse::<u64>().ok();
        seconds.filter(|seconds| *seconds <= MAX_WAIT_S)
    });
    let recipient = query.get("to").map(str::to_owned);
    query.finish()?;
    let timeout = Duration::from_secs(seconds.unwrap_or(0));
    let found = match seconds {
        Some(_) => mailbox.wait(recipient.as_deref(), timeout).await,
        None => mailbox.list(recipient.as_deref()).await,
    };
    let found = json!({ "messages": found.map_err(store_problem)? });
    Ok(json_response(StatusCode::OK, &found))
}

async fn message(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let (summary, mail) = read(&mailbox, &id).await?;
    Ok(json_response(
        StatusCode::OK,
        &MessageBody { summary, mail },
    ))
}

async fn delete(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    match mailbox.delete(Some(&id)).await.map_err(store_problem)? {
        0 => Err(Code::NotFound.into()),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

async fn clear(State(mailbox): State<Arc<Mailbox>>) -> Result<StatusCode, Problem> {
    mailbox.delete(None).await.map_err(store_problem)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn raw(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let found = mailbox.get(&id).await.map_err(store_problem)?;
    let (_, bytes) = found.ok_or(Code::NotFound)?;
    Ok(untrusted_response("text/plain; charset=utf-8", bytes))
}

async fn html(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let html = read(&mailbox, &id).await?.1.html.ok_or(Code::NotFound)?;
    Ok(untrusted_response("text/html; charset=utf-8", html.into()))
}

/// Returns untrusted content with a policy that permits no script, form, or external request, even
/// when it is opened directly.
fn untrusted_response(content_type: &'static str, bytes: Vec<u8>) -> Response {
    let policy = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'";
    let headers = [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, policy),
    ];
    (headers, bytes).into_response()
}

pub(super) async fn read(mailbox: &Mailbox, id: &str) -> Result<(Summary, ParsedMail), Problem> {
    let found = mailbox.get(id).await.map_err(store_problem)?;
    let (summary, message) = found.ok_or(Code::NotFound)?;
    Ok((summary, mime::parse(&message)))
}

#[cfg(test)]
mod tests {
    use super::super::mailbox::tests::{envelope, open};
    use super::*;
    use axum::body::{Body, to_bytes};
    use axum::extract::Request;
    use tower::ServiceExt as _;

    async fn get_text(router: &Router, path: &str) -> (u16, http::HeaderMap, String) {
        let request = Request::get(path).header("host", "127.0.0.1");
        let request = request.body(Body::empty()).expect("request");
        let response = router.clone().oneshot(request).await.expect("answer");
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, 1 << 20).await.expect("body");
        let text = String::from_utf8(bytes.to_vec()).expect("text");
        (parts.status.as_u16(), parts.headers, text)
    }

    fn policy(headers: &http::HeaderMap) -> &str {
        headers[CONTENT_SECURITY_POLICY].to_str().expect("text")
    }

    #[tokio::test]
    async fn hostile_mail_is_escaped_and_sandboxed() {
        let (mailbox, _folder) = open().await;
        let mail = "Subject: <script>1</script>\u{202e}\r\nContent-Type: text/html\r\n\r\n<script>2</script>";
        let stored = mailbox.store(envelope("a@b.test"), mail.into());
        let id = stored.await.expect("stored");
        let router = router(Arc::new(mailbox), "http://127.0.0.1:8500");
        let views = ["", "?view=text"];
        let views = views.map(|view| format!("/mail/{id}{view}"));
        for path in ["/mail".to_owned()].into_iter().chain(views) {
            let (status, headers, body) = get_text(&router, &path).await;
            assert_eq!(status, 200, "{path}");
            assert!(!body.contains("<script>"), "{body}");
            assert!(!body.contains('\u{202e}'), "{body}");
            let is_revealed = body.contains("1&lt;/script&gt;[U+202E]");
            assert!(is_revealed, "{path}: {body}");
            assert!(policy(&headers).starts_with("default-src 'none'"));
        }
        let (_, headers, body) = get_text(&router, &format!("/messages/{id}/html")).await;
        assert!(policy(&headers).starts_with("sandbox;"));
        assert_eq!(body, "<script>2</script>");
    }

    #[tokio::test]
    async fn every_response_is_protected_from_frames() {
        let (mailbox, _folder) = open().await;
        let stored = mailbox.store(envelope("a@b.test"), b"Subject: hi\r\n\r\n1".to_vec());
        let id = stored.await.expect("stored");
        let router = router(Arc::new(mailbox), "http://127.0.0.1:8500");
        let of_mail = ["", "/raw", "/html"].map(|part| format!("/messages/{id}{part}"));
        let others = [
            "/",
            "/mail",
            "/mail/list",
            "/mail/x",
            "/messages",
            "/messages?x=1",
            "/signed-in",
            "/assets/pages.css",
            "/assets/mail.js",
            "/nothing",
        ];
        for path in others.into_iter().chain(of_mail.iter().map(|path| &**path)) {
            let (_, headers, _) = get_text(&router, path).await;
            let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
            let policy = policy(&headers);
            assert!(policy.contains("frame-ancestors"), "{path}: {policy}");
            assert!(policy.contains("default-src 'none'"), "{path}: {policy}");
            for (name, expected) in [
                ("x-content-type-options", "nosniff"),
                ("referrer-policy", "no-referrer"),
                ("cross-origin-resource-policy", "same-origin"),
            ] {
                assert_eq!(value(name), Some(expected), "{path}");
            }
            let is_kept = value("cache-control") != Some("no-store");
            assert_eq!(is_kept, path.starts_with("/assets/"), "{path}");
        }
    }
}
