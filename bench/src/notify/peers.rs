use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench::BenchRun;
use crate::postgres::PostgresServer;
use crate::report::{BenchReport, ReportTable, progress, ranged};

/// The environment of the peers.
#[derive(Debug)]
pub(super) struct QueuePeers {
    /// Script of pgbench.
    script: PathBuf,
    rows: String,
    graphile: String,
    boss: String,
}

/// Rates of single rows and single adds, by round.
#[derive(Debug, Default)]
pub(super) struct SingleAddRates {
    pub(super) rows: Vec<f64>,
    pub(super) graphile: Vec<f64>,
    pub(super) boss: Vec<f64>,
}

/// Inserts three rows in one statement, as for one notification: PostgreSQL's capacity without a
/// queue around it. Ids ascend, as the service's do.
const INSERT_ROWS_SQL: &str = "\
WITH id AS MATERIALIZED (SELECT nextval('ord') AS ord),
made AS MATERIALIZED (SELECT ord, lpad(to_hex(ord), 32, '0')::uuid AS id FROM id),
r AS (INSERT INTO notify_record (id, lane, creator, template, template_version, locale, recipient, variables, created_at)
  SELECT id, 4, 'bench', 'welcome', 1, 'en', '{\"email\":\"ada@example.com\"}', '{\"name\":\"Ada\"}', 1763600000000 FROM made),
q AS (INSERT INTO notify_queue (id, lane, ord, fence, attempt) SELECT id, 4, ord, 0, 0 FROM made)
INSERT INTO notify_result (id, attempt, kind, at) SELECT id, 0, 1, 1763600000000 FROM made;
";

/// The schema of the notification upstream.
const NOTIFY_SCHEMA_SQL: &str =
    include_str!("../../../notify-upstream/src/store/schema/postgres_1.sql");

/// Prepares the peers' single rows and adds, which run in the same rounds as what they are compared
/// with.
pub(super) fn single_rows(
    bench: &BenchRun,
    postgres: &PostgresServer,
    report: &mut BenchReport,
) -> io::Result<QueuePeers> {
    let rows = postgres.database("bench_rows")?;
    postgres.ask("bench_rows", NOTIFY_SCHEMA_SQL)?;
    postgres.ask("bench_rows", "CREATE SEQUENCE ord CACHE 100")?;
    let script = bench.folder().join("rows.sql");
    fs::write(&script, INSERT_ROWS_SQL.replace('\n', " "))?;
    let (graphile, boss) = (
        postgres.database("bench_graphile")?,
        postgres.database("bench_boss")?,
    );
    report
        .notes
        .push("Cells with rounds behind them: median (minimum to maximum).".to_owned());
    Ok(QueuePeers {
        script,
        rows,
        graphile,
        boss,
    })
}

impl QueuePeers {
    /// Runs a round of pgbench.
    pub(super) fn rows(&self, seconds: u32, singles: &mut SingleAddRates) -> io::Result<()> {
        progress("pgbench: single rows");
        singles
            .rows
            .push(pgbench(&self.script, &self.rows, seconds)?);
        Ok(())
    }

    /// Runs a round of adds of graphile-worker and of pg-boss.
    pub(super) fn adds(
        &self,
        bench: &BenchRun,
        seconds: u32,
        singles: &mut SingleAddRates,
    ) -> io::Result<()> {
        progress("graphile-worker: single adds");
        singles.graphile.push(node(
            bench,
            "graphile-worker.mjs",
            "add",
            &self.graphile,
            seconds,
        )?);
        progress("pg-boss: single adds");
        singles
            .boss
            .push(node(bench, "pg-boss.mjs", "add", &self.boss, seconds)?);
        Ok(())
    }
}

impl SingleAddRates {
    pub(super) fn sheet(&self, title: &str) -> ReportTable {
        let peers = [
            ("pgbench, 32 clients, the same three rows", &self.rows),
            ("graphile-worker, 32 callers", &self.graphile),
            ("pg-boss, 32 callers", &self.boss),
        ];
        let measured = peers.into_iter().filter(|(_, taken)| !taken.is_empty());
        ReportTable {
            title: title.to_owned(),
            columns: vec!["peer", "adds/s"],
            rows: measured
                .map(|(name, taken)| vec![name.to_owned(), ranged(taken)])
                .collect(),
        }
    }
}

fn pgbench(script: &Path, url: &str, seconds: u32) -> io::Result<f64> {
    let output = Command::new("pgbench")
        .args([
            "-n",
            "-M",
            "prepared",
            "-c",
            "32",
            "-j",
            "1",
            "-T",
            &seconds.to_string(),
            "-f",
        ])
        .arg(script)
        .arg(url)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let rate = said.lines().find_map(|line| {
        line.strip_prefix("tps = ")?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    });
    rate.ok_or_else(|| {
        io::Error::other(format!(
            "pgbench: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    })
}

/// Runs a script of `bench/peers` and returns its rate per second.
pub(super) fn node(
    bench: &BenchRun,
    script: &str,
    what: &str,
    url: &str,
    seconds: u32,
) -> io::Result<f64> {
    let folder = bench.tools.join("peers");
    let output = Command::new("node")
        .args([script, what, url, &seconds.to_string()])
        .current_dir(&folder)
        .output()
        .map_err(|error| io::Error::other(format!("node in {}: {error}", folder.display())))?;
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|_| {
        io::Error::other(format!(
            "{script}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    })?;
    let number = |name: &str| said[name].as_f64().unwrap_or(f64::NAN);
    Ok(number("count") / number("seconds"))
}
