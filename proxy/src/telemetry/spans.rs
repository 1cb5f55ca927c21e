//! Spans for OpenTelemetry: one per sampled request, sent in batches as OTLP over HTTP in JSON.
//!
//! A request never waits for the collector: spans go into a bounded queue, and what does not fit is
//! dropped and counted.

use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use prometheus::IntCounter;
use reqwest::redirect::Policy;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use url::Url;

use crate::config;

/// One request, as a collector sees it.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) trace: u128,
    pub(crate) id: u64,
    pub(crate) parent: Option<u64>,
    pub(crate) method: String,
    pub(crate) route: String,
    pub(crate) status: u16,
    pub(crate) code: &'static str,
    pub(crate) upstream: Option<String>,
    /// Unix nanoseconds.
    pub(crate) begin: u128,
    pub(crate) end: u128,
}

/// Where spans go, if anywhere.
#[derive(Debug)]
pub(crate) struct Traces {
    sample: f64,
    queue: mpsc::Sender<Span>,
    dropped: IntCounter,
}

/// Sends what the queue brings.
#[derive(Debug)]
pub(crate) struct Exporter {
    endpoint: Url,
    queue: mpsc::Receiver<Span>,
    dropped: IntCounter,
}

/// Spans that wait at most; about 1 MiB.
const QUEUE: usize = 4096;

/// Spans in one message.
const BATCH: usize = 512;

/// A span is on its way at most this long after its request.
const INTERVAL: Duration = Duration::from_secs(2);

/// How long the collector may take.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Traces {
    pub(crate) fn new(config: &config::Traces, dropped: IntCounter) -> (Self, Exporter) {
        let (sender, queue) = mpsc::channel(QUEUE);
        let exporter = Exporter {
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

    /// Whether a trace that begins here is sampled; `random` decides.
    pub(crate) fn samples(&self, random: u64) -> bool {
        ((random >> 11) as f64) < self.sample * (1_u64 << 53) as f64
    }

    pub(crate) fn send(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            self.dropped.inc();
        }
    }
}

impl Exporter {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        // A redirect would take spans to a place that nobody configured.
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .no_proxy()
            .redirect(Policy::none())
            .build();
        let Ok(client) = client else { return };
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let stopping = tokio::select! {
                () = stop.cancelled() => true,
                () = tokio::time::sleep(INTERVAL) => false,
            };
            while let Ok(span) = self.queue.try_recv() {
                batch.push(span);
                if batch.len() == BATCH {
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

    async fn post(&self, client: &reqwest::Client, batch: &mut Vec<Span>) {
        let count = batch.len();
        let message = message(batch.drain(..));
        let answer = client
            .post(self.endpoint.clone())
            .json(&message)
            .send()
            .await;
        if !answer.is_ok_and(|answer| answer.status().is_success()) {
            self.dropped.inc_by(count as u64);
            tracing::warn!(spans = count, "the trace collector did not take spans");
        }
    }
}

/// `ExportTraceServiceRequest` of OTLP 1.x in its JSON form.
fn message(spans: impl Iterator<Item = Span>) -> Value {
    let spans: Vec<Value> = spans.map(|span| span.to_json()).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": [attribute("service.name", "postern-proxy")]},
        "scopeSpans": [{"scope": {"name": "postern-proxy"}, "spans": spans}],
    }]})
}

impl Span {
    fn to_json(&self) -> Value {
        let Self {
            trace,
            id,
            parent,
            method,
            route,
            status,
            code,
            upstream,
            begin,
            end,
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
            "traceId": format!("{trace:032x}"), "spanId": format!("{id:016x}"), "kind": 2,
            "name": format!("{method} {route}"),
            "startTimeUnixNano": begin.to_string(), "endTimeUnixNano": end.to_string(),
            "attributes": attributes, "status": {"code": if *status >= 500 { 2 } else { 0 }},
        });
        if let Some(parent) = parent {
            span["parentSpanId"] = format!("{parent:016x}").into();
        }
        span
    }
}

fn attribute(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// The exporter of a gateway that has one, and the handle for its requests.
pub(crate) fn open(
    config: Option<&config::Traces>,
    dropped: &IntCounter,
) -> (Option<Arc<Traces>>, Option<Exporter>) {
    match config {
        None => (None, None),
        Some(config) => {
            let (traces, exporter) = Traces::new(config, dropped.clone());
            (Some(Arc::new(traces)), Some(exporter))
        }
    }
}
