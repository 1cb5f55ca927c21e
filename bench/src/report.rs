//! Reports: a table on the terminal, the same as Markdown with plots in `bench/results/`, and every
//! round as JSON in a folder of its own.

use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use serde_json::{Value, json};

use crate::bench::{BenchRun, PUBLISHED_PROFILE};
use crate::figure::{TargetFigure, short};
use crate::host::{self, ForeignCpuMonitor};
use crate::plot::LineChart;

/// The report of one table.
pub(crate) struct BenchReport {
    /// Name of the files, such as `gateway`.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Versions of the peers and other notes for readers.
    pub(crate) notes: Vec<String>,
    pub(crate) sheets: Vec<ReportTable>,
    pub(crate) figures: Vec<TargetFigure>,
    pub(crate) plots: Vec<LineChart>,
    /// Results of every round, for re-evaluation.
    pub(crate) rounds: Value,
    /// CPU used by other processes during each part, in percent of one core.
    foreign_cpu: Vec<String>,
    /// Parts that could not be measured, with the reason.
    broken: Vec<String>,
}

/// A table of strings.
pub(crate) struct ReportTable {
    pub(crate) title: String,
    pub(crate) columns: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl BenchReport {
    pub(crate) fn new(name: &'static str, title: &'static str, bench: &BenchRun) -> Self {
        let mut notes = vec![host::describe()];
        if bench.quick {
            notes.push("Quick rounds: a functional check, not for publication.".to_owned());
        }
        if bench.profile != PUBLISHED_PROFILE {
            notes.push(format!(
                "Built with the profile {}: not for publication.",
                bench.profile
            ));
        }
        Self {
            name,
            title,
            notes,
            sheets: Vec::new(),
            figures: Vec::new(),
            plots: Vec::new(),
            rounds: json!({}),
            foreign_cpu: Vec::new(),
            broken: Vec::new(),
        }
    }

    /// Measures a part if it is selected, and the CPU of other processes meanwhile. A failure does
    /// not prevent the other parts.
    pub(crate) fn part(
        &mut self,
        bench: &BenchRun,
        name: &str,
        measure: impl FnOnce(&mut Self) -> io::Result<()>,
    ) {
        if !bench.wants(name) {
            return;
        }
        let watched = ForeignCpuMonitor::watch().and_then(|foreign_cpu| {
            measure(self)?;
            foreign_cpu.percent()
        });
        progress("");
        match watched {
            Ok(percent) => self.foreign_cpu.push(format!("{name} {percent:.0} %")),
            Err(error) => self
                .broken
                .push(format!("{name}: {error}{}", bench.last_log_lines())),
        }
    }

    /// Writes the report to the terminal and to the results folder, and the rounds to the folder
    /// `raw`. A partial report does not replace the complete one.
    ///
    /// # Errors
    /// A folder cannot be written, or a part could not be measured.
    pub(crate) fn write(&self, results: &Path, raw: &Path, only: Option<&str>) -> io::Result<()> {
        fs::create_dir_all(results)?;
        fs::create_dir_all(raw)?;
        let name = [Some(self.name), only]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join("-");
        let mut text = self.text();
        for plot in &self.plots {
            let file = format!("{name}-{}.svg", plot.name);
            fs::write(results.join(&file), plot.svg()?)?;
            text.push_str(&format!("\n![{}]({file})\n", plot.title));
        }
        fs::write(results.join(format!("{name}.md")), &text)?;
        let figures: Vec<_> = self
            .figures
            .iter()
            .map(|figure| {
                json!({"what": figure.what, "reach": figure.reach, "value": figure.value, "reached": figure.reached})
            })
            .collect();
        let data = json!({
            "title": self.title, "notes": self.notes, "figures": figures, "rounds": self.rounds,
            "foreign_cpu": self.foreign_cpu,
        });
        let rounds = raw.join(format!("{name}.json"));
        fs::write(&rounds, serde_json::to_vec_pretty(&data)?)?;
        writeln!(io::stdout(), "{text}\nEvery round: {}", rounds.display())?;
        if self.broken.is_empty() {
            Ok(())
        } else {
            Err(io::Error::other(self.broken.join("; ")))
        }
    }

    fn text(&self) -> String {
        let mut text = format!("# {}\n\n{}\n", self.title, self.notes.join("\n"));
        for sheet in &self.sheets {
            text.push_str(&format!("\n## {}\n\n", sheet.title));
            text.push_str(&table(&sheet.columns, &sheet.rows));
        }
        let rows: Vec<Vec<String>> = self
            .figures
            .iter()
            .map(|figure| {
                let verdict = figure.verdict().to_owned();
                vec![
                    figure.what.clone(),
                    figure.reach.clone(),
                    figure.value.clone(),
                    verdict,
                ]
            })
            .collect();
        text.push_str("\n## Figures\n\n");
        text.push_str(&table(&["figure", "reach", "measured", "reached"], &rows));
        if !self.foreign_cpu.is_empty() {
            text.push_str(&format!(
                "\nCPU of other processes, of one core: {}.\n",
                self.foreign_cpu.join(", ")
            ));
        }
        for broken in &self.broken {
            text.push_str(&format!("\nNot measured: {broken}\n"));
        }
        text
    }
}

/// Formats a Markdown table with aligned columns.
fn table(columns: &[&str], rows: &[Vec<String>]) -> String {
    let width = |at: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(at))
            .map(|cell| cell.chars().count());
        cells
            .chain([columns[at].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        format!("| {} |\n", padded.join(" | "))
    };
    let mut text = line(&mut columns.iter().copied());
    text.push_str(&format!(
        "|{}\n",
        widths
            .iter()
            .map(|width| format!("{}|", "-".repeat(width + 2)))
            .collect::<String>()
    ));
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// Returns minimum, median and maximum.
pub(crate) fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let (low, high) = (sorted.len().saturating_sub(1) / 2, sorted.len() / 2);
    (
        at(0),
        f64::midpoint(at(low), at(high)),
        at(sorted.len().saturating_sub(1)),
    )
}

/// Formats `median (min to max)`, or a single number alone.
pub(crate) fn ranged(values: &[f64]) -> String {
    let (least, middle, most) = spread(values);
    match values {
        [_, _, ..] => format!("{} ({} to {})", short(middle), short(least), short(most)),
        [_] | [] => short(middle),
    }
}

/// Returns the median.
pub(crate) fn median(values: &[f64]) -> f64 {
    spread(values).1
}

/// Prints a progress line that replaces the previous one, on a terminal only.
pub(crate) fn progress(text: &str) {
    if !io::stderr().is_terminal() {
        return;
    }
    let _no_terminal = write!(io::stderr(), "\r\x1b[K{text}").and_then(|()| io::stderr().flush());
}
