//! The API under `/messages`.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{any, get};
use http::StatusCode;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use postern_core::problem::{Code, Problem};
use postern_service::http::{AllowedHosts, Query, json};
use serde::Serialize;

use super::mailbox::{Mailbox, Summary};
use super::mime::ParsedMail;
use super::pages;
use crate::samples::StoreError;
use crate::web::{api_page, landing_page, page};

/// Maximum value of `waitSeconds`.
const MAX_WAIT_S: u64 = 60;

#[derive(Serialize)]
struct MessageBody<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    #[serde(flatten)]
    mail: &'a ParsedMail,
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
    let found = match seconds {
        Some(seconds) => {
            let timeout = Duration::from_secs(seconds);
            mailbox.wait(recipient.as_deref(), timeout).await
        }
        None => mailbox.list(recipient.as_deref()),
    };
    let found: Vec<&Summary> = found.iter().map(AsRef::as_ref).collect();
    Ok(json(
        StatusCode::OK,
        &serde_json::json!({ "messages": found }),
    ))
}

async fn message(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let (summary, mail) = read(&mailbox, &id).await?;
    Ok(json(
        StatusCode::OK,
        &MessageBody {
            summary: &summary,
            mail: &mail,
        },
    ))
}

async fn delete(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    match mailbox.delete(&id).await.map_err(StoreError::from)? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Code::NotFound.into()),
    }
}

async fn clear(State(mailbox): State<Arc<Mailbox>>) -> Result<StatusCode, Problem> {
    mailbox.clear().await.map_err(StoreError::from)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn raw(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let found = mailbox.raw(&id).await.map_err(StoreError::from)?;
    let bytes = found.ok_or(Code::NotFound)?;
    Ok(untrusted_response("text/plain; charset=utf-8", bytes))
}

async fn html(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let html = read(&mailbox, &id).await?.1.html.ok_or(Code::NotFound)?;
    Ok(untrusted_response(
        "text/html; charset=utf-8",
        html.into_bytes(),
    ))
}

/// Returns untrusted content with a policy that permits no script, form, or external request, even
/// when it is opened directly.
fn untrusted_response(content_type: &'static str, bytes: Vec<u8>) -> Response {
    let policy = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'";
    let headers = [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, policy),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, bytes).into_response()
}

/// Returns summary and content of a message.
pub(super) async fn read(
    mailbox: &Mailbox,
    id: &str,
) -> Result<(Arc<Summary>, ParsedMail), Problem> {
    let summary = mailbox.summary(id).ok_or(Code::NotFound)?;
    let mail = mailbox.read(id).await.map_err(StoreError::from)?;
    Ok((summary, mail.ok_or(Code::NotFound)?))
}

#[cfg(test)]
mod tests {
    use super::super::mailbox::tests::{envelope, open};
    use super::*;
    use axum::body::{Body, to_bytes};
    use axum::extract::Request;
    use tower::ServiceExt as _;

    async fn get_text(router: &Router, path: &str) -> (u16, http::HeaderMap, String) {
        let request = Request::builder()
            .uri(path)
            .header("host", "127.0.0.1")
            .body(Body::empty())
            .expect("request");
        let (parts, body) = router
            .clone()
            .oneshot(request)
            .await
            .expect("answer")
            .into_parts();
        let bytes = to_bytes(body, 1 << 20).await.expect("body");
        (
            parts.status.as_u16(),
            parts.headers,
            String::from_utf8(bytes.to_vec()).expect("text"),
        )
    }

    #[tokio::test]
    async fn hostile_mail_is_escaped_and_sandboxed() {
        let (mailbox, _folder) = open().await;
        let mail = "Subject: <script>1</script>\u{202e}\r\nContent-Type: text/html\r\n\r\n<script>2</script>";
        let id = mailbox
            .store(envelope("a@b.test"), mail.into())
            .await
            .expect("stored");
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
            assert!(
                headers[CONTENT_SECURITY_POLICY]
                    .to_str()
                    .expect("text")
                    .starts_with("default-src 'none'")
            );
        }
        let (_, headers, body) = get_text(&router, &format!("/messages/{id}/html")).await;
        assert!(
            headers[CONTENT_SECURITY_POLICY]
                .to_str()
                .expect("text")
                .starts_with("sandbox;")
        );
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
        for path in others
            .iter()
            .copied()
            .chain(of_mail.iter().map(String::as_str))
        {
            let (_, headers, _) = get_text(&router, path).await;
            let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
            let policy = value("content-security-policy").unwrap_or_default();
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
