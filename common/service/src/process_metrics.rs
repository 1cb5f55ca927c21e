//! The metrics that every process exports: its version, and its use of CPU time, memory and file
//! descriptors as Linux reports it in `/proc/self`. On other systems only the version is exported.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, IntGaugeVec, Opts, Registry};

/// Clock ticks per second in `/proc`, the same on all architectures that are supported (proc(5)).
const TICKS_PER_SECOND: f64 = 100.0;

/// Names and descriptions. The first metric is a counter, the others are gauges.
const METRICS: [[&str; 2]; 7] = [
    [
        "process_cpu_seconds_total",
        "User and system CPU time in seconds.",
    ],
    ["process_resident_memory_bytes", "Resident memory in bytes."],
    ["process_virtual_memory_bytes", "Virtual memory in bytes."],
    ["process_open_fds", "Number of open file descriptors."],
    [
        "process_max_fds",
        "Maximum number of open file descriptors.",
    ],
    ["process_threads", "Number of threads."],
    [
        "process_start_time_seconds",
        "Start of the process in seconds since the Unix epoch.",
    ],
];

// Indexes in `METRICS`.
const OPEN_FILES: usize = 3;
const MAX_FILES: usize = 4;
const STARTED: usize = 6;

/// Reads `/proc/self` when metrics are collected.
#[derive(Debug)]
struct ProcessCollector {
    /// The values at the start. Nothing can be read while all descriptors are in use; the start time
    /// depends on the clock of the system.
    first: Option<[f64; METRICS.len()]>,
}

/// Registers `postern_build_info` and `process_*`. Has no effect if the registry has them.
pub fn register(registry: &Registry) {
    let version = env!("CARGO_PKG_VERSION");
    let about = ["postern_build_info", "1, labelled with the version."];
    let registered = register_info(registry, about, "version", version);
    let process = Box::new(ProcessCollector { first: read() });
    let registered = registered.and_then(|()| registry.register(process));
    if let Err(error) = registered {
        tracing::debug!(%error, "process metrics not registered");
    }
}

/// Registers a gauge that is 1, with what it tells as a label.
pub(crate) fn register_info(
    registry: &Registry,
    [name, help]: [&str; 2],
    label: &str,
    value: &str,
) -> prometheus::Result<()> {
    let info = IntGaugeVec::new(Opts::new(name, help), &[label])?;
    info.with_label_values(&[value]).set(1);
    registry.register(Box::new(info))
}

impl Collector for ProcessCollector {
    /// None: only this collector has metrics of these names.
    fn desc(&self) -> Vec<&Desc> {
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = read();
        let is_exhausted = now.is_none();
        let mut values = now.or(self.first);
        if let (Some(values), Some(first)) = (&mut values, &self.first) {
            values[STARTED] = first[STARTED];
            if is_exhausted {
                values[OPEN_FILES] = values[MAX_FILES];
            }
        }
        let metrics = METRICS.into_iter().zip(values.into_iter().flatten());
        metrics
            .filter(|([name, _], _)| !is_exhausted || name.ends_with("_fds"))
            .flat_map(|(about, value)| family(about, value))
            .collect()
    }
}

fn family([name, help]: [&str; 2], value: f64) -> Vec<MetricFamily> {
    let collected = if name.ends_with("_total") {
        Counter::new(name, help).map(|counter| {
            counter.inc_by(value);
            counter.collect()
        })
    } else {
        Gauge::new(name, help).map(|gauge| {
            gauge.set(value);
            gauge.collect()
        })
    };
    collected.unwrap_or_default()
}

/// Returns the values of [`METRICS`].
fn read() -> Option<[f64; METRICS.len()]> {
    let text = |path: &str| fs::read_to_string(path).ok();
    parse(
        &text("/proc/self/stat")?,
        &text("/proc/self/status")?,
        &text("/proc/self/limits")?,
        &text("/proc/stat")?,
        fs::read_dir("/proc/self/fd").ok()?.count(),
    )
}

/// Parses the files of these names in `/proc`, see proc(5).
fn parse(
    stat: &str,
    status: &str,
    limits: &str,
    system: &str,
    open_files: usize,
) -> Option<[f64; METRICS.len()]> {
    // The name of the program is in parentheses and may contain spaces.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // The first field after the name is number 3 of the documentation.
    let ticks = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    let value = |text: &str, key: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some([
        (ticks(14)? + ticks(15)?) / TICKS_PER_SECOND,
        value(status, "VmRSS:")? * 1024.0,
        value(status, "VmSize:")? * 1024.0,
        open_files as f64,
        // `unlimited` is exported as infinity.
        value(limits, "Max open files ").unwrap_or(f64::INFINITY),
        value(status, "Threads:")?,
        value(system, "btime ")? + (ticks(22)? / TICKS_PER_SECOND).floor(),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_parsed() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194304 9 0 0 0 150 50 0 0 20 0 4 0 1200 1 2 3";
        let status = "Name:\ta\nVmSize:\t 2048 kB\nVmRSS:\t 1024 kB\nThreads:\t4\n";
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096                 files\n";
        let parsed = parse(stat, status, limits, "cpu 1 2\nbtime 1000\n", 9);
        let (resident, size) = (1_048_576.0, 2_097_152.0);
        assert_eq!(
            parsed,
            Some([2.0, resident, size, 9.0, 1024.0, 4.0, 1012.0])
        );
        let unlimited = limits.replace("1024 ", "unlimited ");
        let parsed = parse(stat, status, &unlimited, "btime 1000", 9).expect("values");
        assert_eq!(parsed[4], f64::INFINITY);
        assert_eq!(parse("", status, limits, "", 9), None);
    }
}
