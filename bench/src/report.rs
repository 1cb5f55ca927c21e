//! Tables: on the terminal, as Markdown and as JSON under `bench/results/`.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;

use serde_json::json;

/// The rounds of one peer.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) cpu_us: Vec<f64>,
    pub(crate) per_second: Vec<f64>,
    pub(crate) failed: u64,
    pub(crate) resident_kib: u64,
}

/// Minimum, median and maximum.
pub(crate) fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    (at(0), at(sorted.len() / 2), at(sorted.len().saturating_sub(1)))
}

/// Writes the table to the terminal and to `<results>/<name>.md` and `.json`. The first row is the base.
pub(crate) fn write(name: &str, title: &str, rows: &[Row], results: &Path) -> io::Result<()> {
    let base = rows.first().map_or(f64::NAN, |row| spread(&row.cpu_us).1);
    let mut text = format!("# {title}\n\n{}\n\n", machine());
    text.push_str(
        "| proxy | CPU per request, µs (min, median, max) | ratio | requests/s | failed | resident |\n",
    );
    text.push_str("|---|---|---|---|---|---|\n");
    for row in rows {
        let (least, middle, most) = spread(&row.cpu_us);
        let (_, rate, _) = spread(&row.per_second);
        text.push_str(&format!(
            "| {} | {least:.1} **{middle:.1}** {most:.1} | {:.2} | {rate:.0} | {} | {:.1} MiB |\n",
            row.name,
            middle / base,
            row.failed,
            row.resident_kib as f64 / 1024.0,
        ));
    }
    fs::create_dir_all(results)?;
    fs::write(results.join(format!("{name}.md")), &text)?;
    let data: Vec<_> = rows
        .iter()
        .map(|row| json!({"name": row.name, "cpuUs": row.cpu_us, "perSecond": row.per_second, "failed": row.failed, "residentKib": row.resident_kib}))
        .collect();
    fs::write(
        results.join(format!("{name}.json")),
        serde_json::to_vec_pretty(&json!({"title": title, "machine": machine(), "rows": data}))?,
    )?;
    io::stdout().write_all(text.as_bytes())
}

/// What it ran on: commit, processor, peers.
fn machine() -> String {
    let line = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok();
        let text = output.map(|output| {
            let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.push_str(&String::from_utf8_lossy(&output.stderr));
            text
        });
        text.and_then(|text| text.lines().next().map(str::to_owned)).unwrap_or_else(|| "unknown".to_owned())
    };
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    format!(
        "Commit {}; {} cores, {}; {}; {}.",
        line("git", &["rev-parse", "--short", "HEAD"]),
        std::thread::available_parallelism().map_or(0, usize::from),
        processor.trim_start_matches([' ', '\t', ':']),
        line("nginx", &["-v"]),
        line("haproxy", &["-v"]),
    )
}
