//! The declaration of Prometheus metrics.

use prometheus::core::{
    Atomic, Collector, GenericCounter, GenericCounterVec, GenericGauge, GenericGaugeVec,
};
use prometheus::{Histogram, HistogramOpts, HistogramVec};

pub use prometheus::{Registry, Result};

/// Declares a struct of metrics, and `new`, which creates them in a registry. The documentation of a
/// field is the help of the metric. Then follow its name and its labels, and for a histogram
/// the upper bounds of its buckets.
/// ```
/// use prometheus::{HistogramVec, IntCounter};
/// postern_core::metrics! {
///     /// The metrics of an example.
///     pub struct ExampleMetrics {
///         /// Dropped events.
///         pub dropped: IntCounter = "example_dropped_total" [];
///         /// Seconds of calls.
///         pub calls: HistogramVec = "example_call_seconds" ["outcome"] in vec![0.1, 1.0];
///     }
/// }
/// ```
#[macro_export]
macro_rules! metrics {
    ($(#[$about:meta])* $visibility:vis struct $name:ident {
        $(#[doc = $help:literal] $field_visibility:vis $field:ident: $kind:ty = $metric:literal $labels:tt $(in $buckets:expr)?;)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug)]
        $visibility struct $name {
            $(#[doc = $help] $field_visibility $field: $kind,)*
        }

        impl $name {
            /// Creates the metrics.
            $visibility fn new(registry: &$crate::metrics::Registry) -> $crate::metrics::Result<Self> {
                Ok(Self {
                    $($field: {
                        let options = $crate::metrics::options($metric, $help);
                        $(let options = options.buckets($buckets);)?
                        $crate::metrics::register(registry, options, &$labels)?
                    },)*
                })
            }
        }
    };
}

/// A kind of metrics.
pub trait Metric: Collector + Clone + 'static {
    /// Creates a metric.
    fn create(options: HistogramOpts, labels: &[&str]) -> Result<Self>;
}

/// Returns the name and the help of a metric.
#[must_use]
pub fn options(name: &str, help: &str) -> HistogramOpts {
    HistogramOpts::new(name, help.trim())
}

/// Creates a metric in a registry.
pub fn register<M: Metric>(
    registry: &Registry,
    options: HistogramOpts,
    labels: &[&str],
) -> Result<M> {
    let metric = M::create(options, labels)?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

impl<P: Atomic + 'static> Metric for GenericCounter<P> {
    fn create(options: HistogramOpts, _labels: &[&str]) -> Result<Self> {
        Self::with_opts(options.common_opts)
    }
}

impl<P: Atomic + 'static> Metric for GenericCounterVec<P> {
    fn create(options: HistogramOpts, labels: &[&str]) -> Result<Self> {
        Self::new(options.common_opts, labels)
    }
}

impl<P: Atomic + 'static> Metric for GenericGauge<P> {
    fn create(options: HistogramOpts, _labels: &[&str]) -> Result<Self> {
        Self::with_opts(options.common_opts)
    }
}

impl<P: Atomic + 'static> Metric for GenericGaugeVec<P> {
    fn create(options: HistogramOpts, labels: &[&str]) -> Result<Self> {
        Self::new(options.common_opts, labels)
    }
}

impl Metric for Histogram {
    fn create(options: HistogramOpts, _labels: &[&str]) -> Result<Self> {
        Self::with_opts(options)
    }
}

impl Metric for HistogramVec {
    fn create(options: HistogramOpts, labels: &[&str]) -> Result<Self> {
        Self::new(options, labels)
    }
}
