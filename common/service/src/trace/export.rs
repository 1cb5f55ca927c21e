//! The export of spans to a collector, as OTLP.

use std::collections::HashMap;
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

use super::config::{Protocol, TracingConfig};
use postern_core::exit::Exit;

/// Maximum spans in one export request.
const BATCH_SIZE: usize = 512;
/// Maximum time between two exports while spans are queued.
const EXPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of an export request.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time for the last exports after a shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The task that sends queued spans to the collector in batches.
#[derive(Debug)]
pub struct SpanExportTask {
    exporter: SpanExporter,
    queue: mpsc::Receiver<SpanData>,
    dropped: IntCounter,
    is_failing: bool,
    /// Spans in the current export request.
    in_flight: usize,
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
        let instance = config
            .service_instance
            .clone()
            .unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
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
            is_failing: false,
            in_flight: 0,
        })
    }

    /// Exports spans until `stop` is cancelled, then those that are queued, for at most 5 s.
    pub async fn run(mut self, stop: CancellationToken) {
        let late = async {
            stop.cancelled().await;
            tokio::time::sleep(FLUSH_TIMEOUT).await;
        };
        tokio::select! {
            () = self.export_all(&stop) => {}
            () = late => {
                let dropped = self.in_flight + self.queue.len();
                self.dropped.inc_by(dropped as u64);
                tracing::warn!(dropped, "span export incomplete at shutdown");
            }
        }
    }

    /// Exports batches until the queue is closed, which `stop` does, and empty.
    async fn export_all(&mut self, stop: &CancellationToken) {
        loop {
            let mut batch = Vec::new();
            let queue = &mut self.queue;
            let was_closed = queue.is_closed();
            let filled = async {
                while batch.len() < BATCH_SIZE {
                    let room = BATCH_SIZE - batch.len();
                    if queue.recv_many(&mut batch, room).await == 0 {
                        return;
                    }
                }
            };
            tokio::select! {
                () = stop.cancelled(), if !was_closed => self.queue.close(),
                () = tokio::time::sleep(EXPORT_INTERVAL) => {}
                () = filled => {}
            }
            if !batch.is_empty() {
                self.export(batch).await;
            } else if was_closed {
                return;
            }
        }
    }

    /// Exports a batch. A failure is logged once, and so is the recovery.
    async fn export(&mut self, batch: Vec<SpanData>) {
        self.in_flight = batch.len();
        let result = self.exporter.export(batch).await;
        let count = std::mem::take(&mut self.in_flight);
        match result {
            Ok(()) if self.is_failing => {
                self.is_failing = false;
                tracing::info!("span export available again");
            }
            Ok(()) => {}
            Err(error) => {
                self.dropped.inc_by(count as u64);
                if !self.is_failing {
                    self.is_failing = true;
                    tracing::warn!(%error, "span export failed, dropping spans");
                }
            }
        }
    }
}

fn build_exporter(config: &TracingConfig) -> Result<SpanExporter, ExporterBuildError> {
    match config.protocol {
        Protocol::HttpProtobuf => build_http(config),
        Protocol::Grpc => build_grpc(config),
    }
}

/// Redirects are not followed, so that spans are sent to the configured endpoint only.
fn build_http(config: &TracingConfig) -> Result<SpanExporter, ExporterBuildError> {
    let client = reqwest::Client::builder()
        .timeout(EXPORT_TIMEOUT)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("postern/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| ExporterBuildError::InternalFailure(error.to_string()))?;
    let headers: HashMap<String, String> = config
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.expose().to_owned()))
        .collect();
    SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(config.endpoint.as_str())
        .with_timeout(EXPORT_TIMEOUT)
        .with_headers(headers)
        .build()
}

#[cfg(feature = "otlp-grpc")]
fn build_grpc(config: &TracingConfig) -> Result<SpanExporter, ExporterBuildError> {
    use opentelemetry_otlp::WithTonicConfig;
    use opentelemetry_otlp::tonic_types::metadata::MetadataMap;

    let mut headers = http::HeaderMap::new();
    for (name, value) in &config.headers {
        if let Ok(value) = http::HeaderValue::from_str(value.expose()) {
            headers.insert(name.clone(), value);
        }
    }
    SpanExporter::builder()
        .with_tonic()
        .with_endpoint(config.endpoint.as_str())
        .with_timeout(EXPORT_TIMEOUT)
        .with_metadata(MetadataMap::from_headers(headers))
        .build()
}

#[cfg(not(feature = "otlp-grpc"))]
fn build_grpc(_config: &TracingConfig) -> Result<SpanExporter, ExporterBuildError> {
    let reason = "built without the feature otlp-grpc".to_owned();
    Err(ExporterBuildError::InternalFailure(reason))
}
