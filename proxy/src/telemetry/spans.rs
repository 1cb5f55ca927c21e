//! Export of OpenTelemetry spans: one per sampled request, sent in batches as OTLP over HTTP in
//! JSON.
//!
//! Spans go through a bounded queue; those that do not fit are dropped and counted.

use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use prometheus::IntCounter;
use reqwest::redirect::Policy;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use url::Url;

use crate::config;

/// A server span of one request.
#[derive(Debug)]
pub(crate) struct RequestSpan {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
    pub(crate) parent_id: Option<u64>,
    pub(crate) method: String,
    pub(crate) route: String,
    pub(crate) status: u16,
    pub(crate) code: &'static str,
    pub(crate) upstream: Option<String>,
    /// Times in nanoseconds since the Unix epoch.
    pub(crate) start_ns: u128,
    pub(crate) end_ns: u128,
}

/// The sampling rate and the sending side of the span queue.
#[derive(Debug)]
pub(crate) struct SpanSender {
    sample: f64,
    queue: mpsc::Sender<RequestSpan>,
    dropped: IntCounter,
}

/// The receiving side of the span queue, which sends batches to the collector.
#[derive(Debug)]
pub(crate) struct SpanExporter {
    endpoint: Url,
    queue: mpsc::Receiver<RequestSpan>,
    dropped: IntCounter,
}

/// Maximum spans in the queue, about 1 MiB.
const QUEUE_CAPACITY: usize = 4096;

/// Maximum spans in one export request.
const BATCH_SIZE: usize = 512;

/// Interval between exports.
const EXPORT_INTERVAL: Duration = Duration::from_secs(2);

/// Timeout of an export request.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

impl SpanSender {
    pub(crate) fn new(config: &config::TraceConfig, dropped: IntCounter) -> (Self, SpanExporter) {
        let (sender, queue) = mpsc::channel(QUEUE_CAPACITY);
        let exporter = SpanExporter {
            endpoint: config.endpoint.clone(),
            queue,
            dropped: dropped.clone(),
        };
        (
            Self {
                sample: config.sample,
                queue: sender,
                dropped,
            },
            exporter,
        )
    }

    /// Returns whether a new trace is sampled, given a random number.
    pub(crate) fn should_sample(&self, random: u64) -> bool {
        ((random >> 11) as f64) < self.sample * (1_u64 << 53) as f64
    }

    pub(crate) fn send(&self, span: RequestSpan) {
        if self.queue.try_send(span).is_err() {
            self.dropped.inc();
        }
    }
}

impl SpanExporter {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        // Redirects are not followed, so that spans are sent to the configured endpoint only.
        let client = reqwest::Client::builder()
            .timeout(EXPORT_TIMEOUT)
            .no_proxy()
            .redirect(Policy::none())
            .build();
        let Ok(client) = client else { return };
        let mut batch = Vec::with_capacity(BATCH_SIZE);
        loop {
            let stopping = tokio::select! {
                () = stop.cancelled() => true,
                () = tokio::time::sleep(EXPORT_INTERVAL) => false,
            };
            while let Ok(span) = self.queue.try_recv() {
                batch.push(span);
                if batch.len() == BATCH_SIZE {
                    self.post(&client, &mut batch).await;
                }
            }
            if !batch.is_empty() {
                self.post(&client, &mut batch).await;
            }
            if stopping {
                return;
            }
        }
    }

    async fn post(&self, client: &reqwest::Client, batch: &mut Vec<RequestSpan>) {
        let count = batch.len();
        let message = message(batch.drain(..));
        let answer = client
            .post(self.endpoint.clone())
            .json(&message)
            .send()
            .await;
        if !answer.is_ok_and(|answer| answer.status().is_success()) {
            self.dropped.inc_by(count as u64);
            tracing::warn!(spans = count, "span export failed");
        }
    }
}

/// Builds an OTLP 1.x `ExportTraceServiceRequest` in JSON.
fn message(spans: impl Iterator<Item = RequestSpan>) -> Value {
    let spans: Vec<Value> = spans.map(|span| span.to_json()).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": [attribute("service.name", "postern-proxy")]},
        "scopeSpans": [{"scope": {"name": "postern-proxy"}, "spans": spans}],
    }]})
}

impl RequestSpan {
    fn to_json(&self) -> Value {
        let Self {
            trace_id,
            span_id,
            parent_id,
            method,
            route,
            status,
            code,
            upstream,
            start_ns,
            end_ns,
        } = self;
        let mut attributes = vec![
            attribute("http.request.method", method),
            attribute("http.route", route),
            json!({"key": "http.response.status_code", "value": {"intValue": status.to_string()}}),
            attribute("postern.code", code),
        ];
        attributes.extend(
            upstream
                .as_ref()
                .map(|upstream| attribute("postern.upstream", upstream)),
        );
        let mut span = json!({
            "traceId": format!("{trace_id:032x}"), "spanId": format!("{span_id:016x}"), "kind": 2,
            "name": format!("{method} {route}"),
            "startTimeUnixNano": start_ns.to_string(), "endTimeUnixNano": end_ns.to_string(),
            "attributes": attributes, "status": {"code": if *status >= 500 { 2 } else { 0 }},
        });
        if let Some(parent_id) = parent_id {
            span["parentSpanId"] = format!("{parent_id:016x}").into();
        }
        span
    }
}

fn attribute(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// Builds the sender and the exporter, if trace export is configured.
pub(crate) fn build(
    config: Option<&config::TraceConfig>,
    dropped: &IntCounter,
) -> (Option<Arc<SpanSender>>, Option<SpanExporter>) {
    match config {
        None => (None, None),
        Some(config) => {
            let (traces, exporter) = SpanSender::new(config, dropped.clone());
            (Some(Arc::new(traces)), Some(exporter))
        }
    }
}
