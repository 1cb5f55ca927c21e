//! Web pages under `/` and the API under `/messages`.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use postern_common::http::{AllowedHosts, json};
use postern_common::problem::{Code, Problem};
use serde::Serialize;

use super::mailbox::{MAX_LISTED_MESSAGES, Mailbox, Query, Summary};
use super::mime::ParsedMail;
use crate::web::html::{escape, page};
use crate::web::query;

/// Maximum value of `waitSeconds`.
const MAX_WAIT_S: u64 = 60;

#[derive(Serialize)]
struct MessageBody<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    #[serde(flatten)]
    mail: &'a ParsedMail,
}

/// Builds the router of the pages, the API, and the landing page of social sign-ins, which contains
/// the gateway's URL.
pub(crate) fn router(mailbox: Arc<Mailbox>, gateway: &str) -> Router {
    let router = Router::new()
        .route("/", get(list_page))
        .route("/view/{id}", get(message_page))
        .route("/messages", get(list).delete(clear))
        .route("/messages/{id}", get(message).delete(delete))
        .route("/messages/{id}/raw", get(raw))
        .route("/messages/{id}/text", get(text))
        .route("/messages/{id}/html", get(html))
        .with_state(mailbox)
        .merge(crate::web::landing_page::router(gateway));
    AllowedHosts::loopback().guard(router)
}

/// `GET /messages?to=&subject=&limit=&waitSeconds=`: lists messages, newest first. Waits for the
/// first match if requested.
async fn list(
    State(mailbox): State<Arc<Mailbox>>,
    RawQuery(text): RawQuery,
) -> Result<Response, Problem> {
    let parameters = query::parse(text.as_deref(), &["to", "subject", "limit", "waitSeconds"])?;
    let wanted = Query {
        recipient: parameters.get("to").cloned(),
        subject: parameters.get("subject").cloned(),
        limit: query::integer(&parameters, "limit", MAX_LISTED_MESSAGES)?,
    };
    let found = match query::integer(&parameters, "waitSeconds", MAX_WAIT_S)? {
        Some(seconds) => mailbox.wait(&wanted, Duration::from_secs(seconds)).await,
        None => mailbox.list(&wanted),
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
    let (summary, mail) = read(&mailbox, &id)?;
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
    match mailbox.delete(&id).map_err(|error| mailbox_error(&error))? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Code::NotFound.into()),
    }
}

async fn clear(State(mailbox): State<Arc<Mailbox>>) -> Result<StatusCode, Problem> {
    mailbox.clear().map_err(|error| mailbox_error(&error))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn raw(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let bytes = mailbox
        .raw(&id)
        .map_err(|error| mailbox_error(&error))?
        .ok_or(Code::NotFound)?;
    Ok(untrusted_response("text/plain; charset=utf-8", bytes))
}

async fn text(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let text = read(&mailbox, &id)?.1.text.ok_or(Code::NotFound)?;
    Ok(untrusted_response(
        "text/plain; charset=utf-8",
        text.into_bytes(),
    ))
}

async fn html(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let html = read(&mailbox, &id)?.1.html.ok_or(Code::NotFound)?;
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

fn read(mailbox: &Mailbox, id: &str) -> Result<(Arc<Summary>, ParsedMail), Problem> {
    let summary = mailbox.summary(id).ok_or(Code::NotFound)?;
    let mail = mailbox
        .read(id)
        .map_err(|error| mailbox_error(&error))?
        .ok_or(Code::NotFound)?;
    Ok((summary, mail))
}

fn mailbox_error(error: &std::io::Error) -> Problem {
    tracing::error!(%error, "mailbox access failed");
    Code::Internal.into()
}

async fn list_page(State(mailbox): State<Arc<Mailbox>>) -> Response {
    let mut rows = String::new();
    for summary in mailbox.list(&Query::default()) {
        rows.push_str(&format!(
            "<tr><td>{}<td>{}<td>{}<td><a href=\"/view/{}\">{}</a>",
            escape(&summary.received_at),
            escape(&summary.from),
            escape(&summary.recipients.join(", ")),
            summary.id,
            escape(if summary.subject.is_empty() {
                "(no subject)"
            } else {
                &summary.subject
            }),
        ));
    }
    let body = if rows.is_empty() {
        "<meta http-equiv=refresh content=3><p>No mail yet. This page reloads every three seconds."
            .to_owned()
    } else {
        format!(
            "<meta http-equiv=refresh content=5><table><tr><th>received<th>from<th>to<th>subject{rows}</table>"
        )
    };
    page(StatusCode::OK, "Mail", &body)
}

async fn message_page(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let (summary, mail) = read(&mailbox, &id)?;
    let mut body = format!(
        "<p><a href=\"/\">all mail</a> · <a href=\"/messages/{0}/raw\">raw</a> · <a href=\"/messages/{0}\">JSON</a><table>",
        summary.id
    );
    for (name, value) in &mail.headers {
        body.push_str(&format!("<tr><th>{}<td>{}", escape(name), escape(value)));
    }
    body.push_str("</table>");
    if mail.html.is_some() {
        body.push_str(&format!(
            "<h2>HTML</h2><iframe sandbox src=\"/messages/{}/html\"></iframe>",
            summary.id
        ));
    }
    if let Some(text) = &mail.text {
        body.push_str(&format!("<h2>Text</h2><pre>{}</pre>", escape(text)));
    }
    for attachment in &mail.attachments {
        let name = attachment.file_name.as_deref().unwrap_or("(unnamed)");
        let kind = escape(&attachment.content_type);
        body.push_str(&format!(
            "<p>Attachment {} ({kind}, {} bytes)",
            escape(name),
            attachment.size
        ));
    }
    Ok(page(StatusCode::OK, &summary.subject, &body))
}

#[cfg(test)]
mod tests {
    use super::super::smtp_session::MailEnvelope;
    use super::*;
    use axum::body::{Body, to_bytes};
    use axum::extract::Request;
    use postern_common::Clock;
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
        let folder = tempfile::tempdir().expect("folder");
        let mailbox = Arc::new(Mailbox::open(folder.path(), Clock::system()).expect("mailbox"));
        let envelope = MailEnvelope {
            sender: String::new(),
            recipients: vec!["a@b.test".to_owned()],
        };
        let mail =
            "Subject: <script>1</script>\r\nContent-Type: text/html\r\n\r\n<script>2</script>";
        let id = mailbox.store(envelope, mail.into()).await.expect("stored");
        let router = router(mailbox, "http://127.0.0.1:8500");
        for path in ["/".to_owned(), format!("/view/{id}")] {
            let (status, headers, body) = get_text(&router, &path).await;
            assert_eq!(status, 200);
            assert!(!body.contains("<script>"), "{body}");
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
    async fn api_lists_and_returns_messages() {
        let folder = tempfile::tempdir().expect("folder");
        let mailbox = Arc::new(Mailbox::open(folder.path(), Clock::system()).expect("mailbox"));
        let envelope = MailEnvelope {
            sender: "x@y.test".to_owned(),
            recipients: vec!["a@b.test".to_owned()],
        };
        let id = mailbox
            .store(envelope, b"Subject: hi\r\n\r\nbody".to_vec())
            .await
            .expect("stored");
        let router = router(mailbox, "http://127.0.0.1:8500");
        let (_, _, list) = get_text(&router, "/messages?to=a@b.test&waitSeconds=1").await;
        let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        assert_eq!(list["messages"][0]["id"], id.as_str());
        let (_, _, one) = get_text(&router, &format!("/messages/{id}")).await;
        let one: serde_json::Value = serde_json::from_str(&one).expect("JSON");
        assert_eq!(
            (&one["subject"], &one["text"]),
            (&"hi".into(), &"body".into())
        );
        assert_eq!(get_text(&router, "/messages?limit=x&who=1").await.0, 400);
        assert_eq!(get_text(&router, "/messages/..%2F..%2Fx/raw").await.0, 404);
    }
}
