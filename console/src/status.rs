//! The state of a replica when it was sampled last. Depends on `config` and `prometheus_text`.

use postern_core::clock::Timestamp;
use serde_json::Value;

use crate::conditions::Labels;
use crate::config::ProcessKind;
use crate::prometheus_text::Scrape;

/// The state of a replica when it was sampled last.
#[derive(Clone, Debug)]
pub(crate) struct ProcessStatus {
    pub(crate) kind: ProcessKind,
    pub(crate) name: String,
    /// Why the replica could not be sampled.
    pub(crate) error: Option<String>,
    /// The answer of `GET /admin/info`; `null` if the process does not offer it.
    pub(crate) info: Value,
    /// The answer of `/readyz`.
    pub(crate) readiness: Value,
    pub(crate) scrape: Scrape,
    /// CPU time per second since the last sample, in cores.
    pub(crate) cpu: Option<f64>,
    /// When the replica answered last. Everything but `error` is of that time.
    pub(crate) answered_at: Option<Timestamp>,
}

// === impl ProcessStatus ===

impl ProcessStatus {
    /// Returns the labels of a series of the replica in Prometheus.
    pub(crate) fn labels(&self, labels: &[(String, String)]) -> Labels {
        let own = [("job", self.kind.job()), ("instance", &self.name)];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        labels.iter().cloned().chain(own).collect()
    }
}

/// Returns the version of a process.
pub(crate) fn version(process: &ProcessStatus) -> Option<String> {
    let mut builds = process.scrape.of("postern_build_info");
    Some(builds.next()?.label("version").to_owned())
}

/// Returns the hash of the configuration of a process.
pub(crate) fn config_hash(process: &ProcessStatus) -> Option<String> {
    let mut active = process.scrape.of("postern_proxy_config_info");
    let active = active.find(|series| series.value == 1.0);
    let hash = active.map(|series| series.label("hash").to_owned());
    hash.or_else(|| process.info["configHash"].as_str().map(str::to_owned))
}
