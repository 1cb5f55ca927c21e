//! The metrics that every process exports: its version, and its use of CPU time, memory and file
//! descriptors as Linux reports it in `/proc/self`. On other systems only the version is exported.

use std::fs;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, IntGauge, IntGaugeVec, Opts, Registry};

/// Clock ticks per second in `/proc`, the same on all architectures that are supported (proc(5)).
const TICKS_PER_SECOND: u32 = 100;

/// Reads `/proc/self` when metrics are collected.
#[derive(Debug)]
struct ProcessCollector {
    cpu: Counter,
    resident: IntGauge,
    virtual_memory: IntGauge,
    open_files: IntGauge,
    max_files: IntGauge,
    threads: IntGauge,
    started: IntGauge,
    /// Concurrent collections must not count CPU time twice.
    collecting: Mutex<()>,
}

/// The values of one collection.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ProcessUsage {
    cpu_s: f64,
    resident_bytes: i64,
    virtual_bytes: i64,
    open_files: i64,
    max_files: i64,
    threads: i64,
    started_s: i64,
}

/// Registers `postern_build_info` and `process_*`. Has no effect if the registry has them.
pub fn register(registry: &Registry) {
    let registered = build_info().and_then(|info| registry.register(Box::new(info)));
    let registered = registered
        .and_then(|()| ProcessCollector::new())
        .and_then(|collector| registry.register(Box::new(collector)));
    if let Err(error) = registered {
        tracing::debug!(%error, "process metrics not registered");
    }
}

fn build_info() -> prometheus::Result<IntGaugeVec> {
    let options = Opts::new("postern_build_info", "1, labelled with the version.");
    let info = IntGaugeVec::new(options, &["version"])?;
    info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    Ok(info)
}

// === impl ProcessCollector ===

impl ProcessCollector {
    fn new() -> prometheus::Result<Self> {
        Ok(Self {
            cpu: Counter::new(
                "process_cpu_seconds_total",
                "Total user and system CPU time in seconds.",
            )?,
            resident: IntGauge::new(
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
            )?,
            virtual_memory: IntGauge::new(
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes.",
            )?,
            open_files: IntGauge::new("process_open_fds", "Number of open file descriptors.")?,
            max_files: IntGauge::new(
                "process_max_fds",
                "Maximum number of open file descriptors.",
            )?,
            threads: IntGauge::new("process_threads", "Number of threads.")?,
            started: IntGauge::new(
                "process_start_time_seconds",
                "Start time of the process since the Unix epoch in seconds.",
            )?,
            collecting: Mutex::new(()),
        })
    }

    fn gauges(&self) -> [&IntGauge; 6] {
        [
            &self.resident,
            &self.virtual_memory,
            &self.open_files,
            &self.max_files,
            &self.threads,
            &self.started,
        ]
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        let gauges = self.gauges().into_iter().flat_map(Collector::desc);
        self.cpu.desc().into_iter().chain(gauges).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _collecting = self.collecting.lock();
        let Some(usage) = ProcessUsage::read() else {
            return Vec::new();
        };
        // A counter is never decreased, should the kernel round differently.
        self.cpu.inc_by((usage.cpu_s - self.cpu.get()).max(0.0));
        let values = [
            usage.resident_bytes,
            usage.virtual_bytes,
            usage.open_files,
            usage.max_files,
            usage.threads,
            usage.started_s,
        ];
        for (gauge, value) in self.gauges().into_iter().zip(values) {
            gauge.set(value);
        }
        let gauges = self.gauges().into_iter().flat_map(Collector::collect);
        self.cpu.collect().into_iter().chain(gauges).collect()
    }
}

// === impl ProcessUsage ===

impl ProcessUsage {
    fn read() -> Option<Self> {
        let text = |path: &str| fs::read_to_string(path).ok();
        let open_files = fs::read_dir("/proc/self/fd").ok()?.count();
        Self::parse(
            &text("/proc/self/stat")?,
            &text("/proc/self/status")?,
            &text("/proc/self/limits")?,
            &text("/proc/stat")?,
        )
        .map(|usage| Self {
            open_files: i64::try_from(open_files).unwrap_or(i64::MAX),
            ..usage
        })
    }

    /// Parses the files of these names in `/proc`, see proc(5).
    fn parse(stat: &str, status: &str, limits: &str, system: &str) -> Option<Self> {
        // The name of the program is in parentheses and may contain spaces.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        // The first field after the name is number 3 of the documentation.
        let field = |number: usize| fields.get(number - 3)?.parse::<u32>().ok();
        let started_ticks: i64 = fields.get(22 - 3)?.parse().ok()?;
        let ticks = f64::from(field(14)?) + f64::from(field(15)?);
        let value = |text: &str, key: &str| -> Option<i64> {
            let line = text.lines().find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let booted_s = value(system, "btime ")?;
        Some(Self {
            cpu_s: ticks / f64::from(TICKS_PER_SECOND),
            resident_bytes: value(status, "VmRSS:")? * 1024,
            virtual_bytes: value(status, "VmSize:")? * 1024,
            open_files: 0,
            // `unlimited` is exported as the largest number.
            max_files: value(limits, "Max open files ").unwrap_or(i64::MAX),
            threads: value(status, "Threads:")?,
            started_s: booted_s + started_ticks / i64::from(TICKS_PER_SECOND),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_parsed() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194304 9 0 0 0 150 50 0 0 20 0 4 0 1200 1 2 3";
        let status = "Name:\ta\nVmSize:\t 2048 kB\nVmRSS:\t 1024 kB\nThreads:\t4\n";
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096                 files\n";
        let usage = ProcessUsage::parse(stat, status, limits, "cpu 1 2\nbtime 1000\n");
        let expected = ProcessUsage {
            cpu_s: 2.0,
            resident_bytes: 1 << 20,
            virtual_bytes: 2 << 20,
            open_files: 0,
            max_files: 1024,
            threads: 4,
            started_s: 1012,
        };
        assert_eq!(usage, Some(expected));
        assert_eq!(ProcessUsage::parse("", status, limits, ""), None);
    }

    #[test]
    fn registry_exports_version_and_process_once() {
        let registry = Registry::new();
        register(&registry);
        register(&registry);
        let families = registry.gather();
        let names: Vec<&str> = families.iter().map(MetricFamily::name).collect();
        let expected = [
            "postern_build_info",
            "process_cpu_seconds_total",
            "process_max_fds",
            "process_open_fds",
            "process_resident_memory_bytes",
            "process_start_time_seconds",
            "process_threads",
            "process_virtual_memory_bytes",
        ];
        assert_eq!(names, expected);
        let resident = &families[4].get_metric()[0];
        assert!(resident.get_gauge().get_value() > 100_000.0);
    }
}
