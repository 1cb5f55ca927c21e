//! The machine of a measurement, and the CPU used by other processes meanwhile.

use std::fs;
use std::io;
use std::process::Command;
use std::time::Instant;

use crate::process::{all_cpu_ns, own_cpu_ns};

/// Measures the CPU time used by other processes and by the host of a virtual machine.
pub(crate) struct ForeignCpuMonitor {
    since: Instant,
    all: u64,
    own: u64,
}

impl ForeignCpuMonitor {
    pub(crate) fn watch() -> io::Result<Self> {
        Ok(Self {
            since: Instant::now(),
            all: all_cpu_ns()?,
            own: own_cpu_ns()?,
        })
    }

    /// Returns the CPU time used by others since the start, in percent of one core.
    pub(crate) fn percent(&self) -> io::Result<f64> {
        let all = all_cpu_ns()?.saturating_sub(self.all) as f64;
        let own = own_cpu_ns()?.saturating_sub(self.own) as f64;
        let elapsed = self.since.elapsed().as_nanos() as f64;
        Ok(((all - own) / elapsed * 100.0).max(0.0))
    }
}

/// Returns commit, processor, kernel and versions of the peers.
pub(crate) fn describe() -> String {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("unknown");
    let dirty = if line(
        "git",
        &["status", "--porcelain", "--", ".", ":!bench/results"],
    )
    .is_empty()
    {
        ""
    } else {
        " with changes"
    };
    format!(
        "Commit {}{dirty}; {} cores, {}; {} GiB; Linux {}.",
        line("git", &["rev-parse", "--short", "HEAD"]),
        std::thread::available_parallelism().map_or(0, usize::from),
        processor.trim_start_matches([' ', '\t', ':']),
        memory_gib(),
        line("uname", &["-r"]),
    )
}

/// Returns the first line of a program's output.
pub(crate) fn line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| {
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        text
    });
    text.ok()
        .and_then(|text| text.lines().next().map(str::to_owned))
        .unwrap_or_default()
}

fn memory_gib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0).div_ceil(1 << 20)
}
