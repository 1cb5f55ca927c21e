use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use postern_common::{Code, Problem};

use super::Service;
use super::status::unavailable;
use crate::notification::Channel;
use crate::webhook::{Incoming, Report, Unheard};

/// Kept, counted, and an address that is proven dead is noted; 204 once it is durable.
pub(super) async fn receive(
    State(service): State<Arc<Service>>,
    Path(provider): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let now = service.clock.now();
    let incoming = Incoming { headers: &headers, query: query.as_deref(), body: &body, now };
    let reports = service.webhooks.read(&provider, &incoming).await.map_err(|unheard| match unheard {
        Unheard::Signature => Problem::new(Code::InvalidWebhookSignature),
        Unheard::Unreadable => Problem::new(Code::InvalidRequest).detail("the event cannot be read"),
        Unheard::Unavailable => Problem::new(Code::Unavailable),
    })?;
    let receipts: Vec<_> = reports.iter().filter_map(|report| report.receipt(&provider, now)).collect();
    if !receipts.is_empty() {
        let new = service.store.receive(&receipts).await.map_err(|error| unavailable(&error))?;
        let repeated = receipts.len() as u64 - new;
        service.metrics.receipts(&provider, "new", new);
        service.metrics.receipts(&provider, "repeated", repeated);
    }
    service.metrics.receipts(&provider, "not_ours", (reports.len() - receipts.len()) as u64);
    for report in &reports {
        suppress(&service, &provider, report);
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn suppress(service: &Service, provider: &str, report: &Report) {
    let channel = if provider == "twilio" { Channel::Sms } else { Channel::Email };
    if let (Some(address), Some(_)) = (&report.dead_address, report.id) {
        service.suppression.note_text(channel, address, report.code.as_deref().unwrap_or("bounced"));
    }
}
