//! The export of spans to a collector, as OTLP.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::OptionFuture;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use prometheus::IntCounter;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::config::TracingConfig;
use postern_core::exit::Exit;
use postern_core::group_commit::process_until_stopped;

/// Maximum spans in one export request.
const BATCH_SIZE: usize = 512;
/// Time between two exports, unless the first was full.
const EXPORT_INTERVAL: Duration = Duration::from_secs(1);
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for the last exports after a shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The task that sends queued spans to the collector in batches.
#[derive(Debug)]
pub struct SpanExportTask {
    exporter: SpanExporter,
    queue: mpsc::Receiver<SpanData>,
    dropped: IntCounter,
    is_failing: AtomicBool,
    /// Spans in the current export request.
    in_flight: AtomicUsize,
}

/// A running export, or none.
#[derive(Debug)]
pub struct SpanExport {
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

// === impl SpanExport ===

impl SpanExport {
    /// Starts the export, if there is a task.
    #[must_use]
    pub fn start(task: Option<SpanExportTask>) -> Self {
        let stop = CancellationToken::new();
        let task = task.map(|task| tokio::spawn(task.run(stop.clone())));
        Self { stop, task }
    }

    /// Exports the queued spans, see [`SpanExportTask::run`].
    pub async fn finish(self) {
        self.stop.cancel();
        if let Some(Err(error)) = OptionFuture::from(self.task).await {
            tracing::error!(%error, "span export task failed");
        }
    }
}

// === impl SpanExportTask ===

impl SpanExportTask {
    pub(super) fn new(
        config: &TracingConfig,
        service: &'static str,
        queue: mpsc::Receiver<SpanData>,
        dropped: IntCounter,
    ) -> Result<Self, Exit> {
        let mut exporter = build_exporter(config)
            .map_err(|error| Exit::usage(format!("tracing.endpoint: {error}")))?;
        let instance = uuid::Uuid::new_v4().to_string();
        let resource = Resource::builder_empty()
            .with_attributes([
                KeyValue::new("service.name", service),
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
                KeyValue::new("service.instance.id", instance),
            ])
            .build();
        exporter.set_resource(&resource);
        Ok(Self {
            exporter,
            queue,
            dropped,
            is_failing: AtomicBool::default(),
            in_flight: AtomicUsize::default(),
        })
    }

    /// Exports spans until `stop` is cancelled, then those that are queued, for at most 5 s.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut queue = std::mem::replace(&mut self.queue, mpsc::channel(1).1);
        let export = |batch| self.export(batch, &stop);
        let late = async {
            stop.cancelled().await;
            tokio::time::sleep(FLUSH_TIMEOUT).await;
        };
        let is_late = tokio::select! {
            () = process_until_stopped(&mut queue, BATCH_SIZE, &stop, export) => false,
            () = late => true,
        };
        if is_late {
            let dropped = self.in_flight.load(Ordering::Relaxed) + queue.len();
            self.dropped.inc_by(dropped as u64);
            tracing::warn!(dropped, "span export incomplete at shutdown");
        }
    }

    /// Exports a batch, and waits after one that was not full. A failure is logged once, and so is
    /// the recovery.
    async fn export(&self, batch: Vec<SpanData>, stop: &CancellationToken) {
        let count = batch.len();
        self.in_flight.store(count, Ordering::Relaxed);
        let result = self.exporter.export(batch).await;
        self.in_flight.store(0, Ordering::Relaxed);
        let was_failing = self.is_failing.swap(result.is_err(), Ordering::Relaxed);
        match result {
            Ok(()) if was_failing => tracing::info!("span export available again"),
            Ok(()) => {}
            Err(error) => {
                self.dropped.inc_by(count as u64);
                if !was_failing {
                    tracing::warn!(%error, "span export failed, dropping spans");
                }
            }
        }
        if count < BATCH_SIZE {
            let _stopped = tokio::time::timeout(EXPORT_INTERVAL, stop.cancelled()).await;
        }
    }
}

/// Redirects are not followed, so that spans are sent to the configured endpoint only.
fn build_exporter(config: &TracingConfig) -> Result<SpanExporter, ExporterBuildError> {
    let client = reqwest::Client::builder()
        .timeout(EXPORT_TIMEOUT)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("postern/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| ExporterBuildError::InternalFailure(error.to_string()))?;
    let headers = config.headers.iter();
    let headers = headers.map(|(name, value)| (name.to_string(), value.expose().to_owned()));
    let headers: HashMap<String, String> = headers.collect();
    SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(config.endpoint.as_str())
        .with_timeout(EXPORT_TIMEOUT)
        .with_headers(headers)
        .build()
}
