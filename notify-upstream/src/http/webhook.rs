//! Webhooks of providers.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use postern_core::{Code, Problem, log_limited};
use postern_service::http::{BodyOwner, Raw};

use super::{ApiState, client_address};
use crate::receipts::webhook::{WebhookRejection, WebhookRequest};

/// The providers whose webhooks are supported.
const PROVIDERS: [&str; 5] = ["twilio", "sns", "sendgrid", "mailgun", "standard"];

/// Handles `POST /webhooks/{provider}`: stores and counts the reports of a provider, suppresses
/// addresses that are proven invalid, and unsubscribes those that object. Returns 204 after the
/// commit.
pub(super) async fn receive(
    State(service): State<Arc<ApiState>>,
    WebhookSender { provider, source }: WebhookSender,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    Raw(body, _permit): Raw,
) -> Result<Response, Problem> {
    let now = service.clock.now();
    let request = WebhookRequest {
        headers: &headers,
        query: query.as_deref(),
        body: &body,
        source,
        now,
    };
    let refuse = |reason| rejection(&service, &provider, reason);
    let verified = service.webhooks.read(&provider, &request).await;
    let (reports, token) = verified.map_err(refuse)?;
    if let Some(token) = token
        && !service
            .store
            .bind_webhook_token(&provider, &token, now)
            .await?
    {
        return Err(refuse(WebhookRejection::Signature));
    }
    let saved = service.store.save_receipts(&provider, &reports).await;
    let templates = service.templates.load_full();
    let applied = service
        .suppression
        .apply_reports(&reports, Some(&templates));
    applied.await?;
    let new = saved?;
    let ours = reports.iter().filter(|report| report.id.is_some()).count() as u64;
    let not_ours = reports.len() as u64 - ours;
    for (outcome, count) in [
        ("new", new),
        ("repeated", ours - new),
        ("not_ours", not_ours),
    ] {
        let counter = &service.metrics.events.receipts;
        counter
            .with_label_values(&[&*provider, outcome])
            .inc_by(count);
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// A configured provider, extracted before the body is read, which is charged to its sender.
pub(super) struct WebhookSender {
    provider: String,
    source: Option<IpAddr>,
}

impl FromRequestParts<Arc<ApiState>> for WebhookSender {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        service: &Arc<ApiState>,
    ) -> Result<Self, Problem> {
        let Path(provider): Path<String> = Path::from_request_parts(parts, service)
            .await
            .map_err(|_| Code::InvalidWebhookSignature)?;
        if !service.webhooks.have(&provider) {
            return Err(rejection(service, &provider, WebhookRejection::Signature));
        }
        let source = client_address(parts, service).await;
        BodyOwner::Webhook(source).set(parts);
        Ok(Self { provider, source })
    }
}

/// Counts and logs a rejected request, and returns the problem. The name of the provider is logged
/// only if it is one of the supported ones, because the client chooses it.
fn rejection(service: &ApiState, provider: &str, rejection: WebhookRejection) -> Problem {
    let provider = PROVIDERS.into_iter().find(|known| *known == provider);
    let provider = provider.unwrap_or("unknown");
    let unreadable = || Problem::new(Code::InvalidRequest).detail("the event cannot be read");
    let (reason, problem) = match rejection {
        WebhookRejection::Signature => ("signature", Code::InvalidWebhookSignature.into()),
        WebhookRejection::Unreadable => ("unreadable", unreadable()),
        WebhookRejection::Unavailable => ("certificate_unavailable", Code::Unavailable.into()),
    };
    let rejections = &service.metrics.events.webhook_rejections;
    rejections.with_label_values(&[provider, reason]).inc();
    log_limited!(warn, provider, reason, "webhook rejected");
    problem
}
