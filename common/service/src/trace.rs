//! The export of spans: the table `[tracing]` and OTLP requests.
//!
//! Input: spans of [`postern_core::trace`]. Output: requests to a collector, in batches.

mod config;
mod export;

#[cfg(test)]
mod tests;

use postern_core::Clock;
use postern_core::exit::Exit;
use postern_core::trace::Tracer;
use prometheus::IntCounter;

pub use config::TracingConfig;
pub use export::{SpanExport, SpanExportTask};

/// Creates a tracer and the task that exports its spans, if the configuration has a table
/// `[tracing]`. `dropped` counts the spans that did not fit into the queue or were not accepted by
/// the collector.
pub fn tracer(
    config: Option<&TracingConfig>,
    service: &'static str,
    clock: &Clock,
    dropped: &IntCounter,
) -> Result<(Option<Tracer>, Option<SpanExportTask>), Exit> {
    let Some(config) = config else {
        return Ok((None, None));
    };
    let (tracer, spans) = Tracer::new(config.sample_ratio, clock, dropped.clone());
    let task = SpanExportTask::new(config, service, spans, dropped.clone())?;
    Ok((Some(tracer), Some(task)))
}
