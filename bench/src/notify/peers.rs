use std::fs;
use std::io;
use std::process::Command;

use serde_json::json;

use crate::bench::Bench;
use crate::figure::short;
use crate::postgres::Postgres;
use crate::report::{Report, Sheet, median, progress};

/// What the peers did a second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peers {
    /// pgbench, single rows.
    pub(super) rows: f64,
    pub(super) graphile_adds: f64,
    pub(super) boss_adds: f64,
}

/// Three rows in one statement, as one notification has them: what PostgreSQL does without a queue around it.
const ROWS: &str = "\
WITH id AS (SELECT gen_random_uuid() AS id),
r AS (INSERT INTO notify_record (id, lane, creator, template, template_version, locale, recipient, variables, created_at)
  SELECT id, 4, 'bench', 'welcome', 1, 'en', '{\"email\":\"ada@example.com\"}', '{\"name\":\"Ada\"}', 1763600000000 FROM id),
q AS (INSERT INTO notify_queue (id, lane, ord, fence, attempt) SELECT id, 4, nextval('ord'), 0, 0 FROM id)
INSERT INTO notify_result (id, attempt, kind, at) SELECT id, 0, 1, 1763600000000 FROM id;
";

/// The tables of the notification upstream.
const SCHEMA: &str = include_str!("../../../notify-upstream/src/store/schema/postgres_1.sql");

/// Single adds of the peers, in interleaved rounds.
pub(super) fn single_rows(bench: &Bench, postgres: &Postgres, report: &mut Report) -> io::Result<Peers> {
    postgres.database("bench_rows")?;
    postgres.ask("bench_rows", SCHEMA)?;
    postgres.ask("bench_rows", "CREATE SEQUENCE ord CACHE 100")?;
    let (graphile, boss) = (postgres.database("bench_graphile")?, postgres.database("bench_boss")?);
    let (rounds, seconds) = bench.pick((2, 4), (5, 10));
    let mut taken: [Vec<f64>; 3] = Default::default();
    for round in 1..=rounds {
        progress(&format!("single adds: round {round} of {rounds}: pgbench"));
        taken[0].push(pgbench(bench, &postgres.url("bench_rows"), seconds)?);
        progress(&format!("single adds: round {round} of {rounds}: graphile-worker"));
        taken[1].push(node(bench, "graphile-worker.mjs", "add", &graphile, seconds)?);
        progress(&format!("single adds: round {round} of {rounds}: pg-boss"));
        taken[2].push(node(bench, "pg-boss.mjs", "add", &boss, seconds)?);
    }
    progress("");
    let names =
        ["pgbench, 32 clients, the same three rows", "graphile-worker, 32 callers", "pg-boss, 32 callers"];
    let rows = names
        .iter()
        .zip(&taken)
        .map(|(name, taken)| vec![(*name).to_owned(), short(median(taken))])
        .collect();
    report.sheets.push(Sheet {
        title: "Peers: single adds".to_owned(),
        columns: vec!["peer", "adds/s"],
        rows,
    });
    report.rounds["singleAdds"] =
        json!({"pgbench": taken[0], "graphileWorker": taken[1], "pgBoss": taken[2]});
    Ok(Peers { rows: median(&taken[0]), graphile_adds: median(&taken[1]), boss_adds: median(&taken[2]) })
}

fn pgbench(bench: &Bench, url: &str, seconds: u32) -> io::Result<f64> {
    let script = bench.folder().join("rows.sql");
    fs::write(&script, ROWS.replace('\n', " "))?;
    let output = Command::new("pgbench")
        .args(["-n", "-M", "prepared", "-c", "32", "-j", "1", "-T", &seconds.to_string(), "-f"])
        .arg(&script)
        .arg(url)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let rate =
        said.lines().find_map(|line| line.strip_prefix("tps = ")?.split_whitespace().next()?.parse().ok());
    rate.ok_or_else(|| {
        io::Error::other(format!("pgbench: {}", String::from_utf8_lossy(&output.stderr).trim()))
    })
}

/// Runs one of `bench/peers`; how many a second.
pub(super) fn node(bench: &Bench, script: &str, what: &str, url: &str, seconds: u32) -> io::Result<f64> {
    let folder = bench.tools.join("peers");
    let output = Command::new("node")
        .args([script, what, url, &seconds.to_string()])
        .current_dir(&folder)
        .output()
        .map_err(|error| io::Error::other(format!("node in {}: {error}", folder.display())))?;
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|_| {
        io::Error::other(format!("{script}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    })?;
    let number = |name: &str| said[name].as_f64().unwrap_or(f64::NAN);
    Ok(number("count") / number("seconds"))
}
