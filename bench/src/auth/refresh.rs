use std::fs;
use std::io;
use std::path::Path;

use serde_json::json;

use super::service::AuthService;
use crate::bench::BenchRun;
use crate::figure::{Bound, TargetFigure};
use crate::load::WrkLoad;
use crate::report::{BenchReport, ReportTable, median, progress, ranged};

const REFRESH_PATH: &str = "/auth/tokens/refresh";

/// Refresh token families: more than connections, so that each request uses one that is not being
/// refreshed.
const TOKEN_FAMILIES: u32 = 96;
const CONNECTIONS: u32 = 64;

/// Measures refreshes with rotation, against the local pool.
pub(super) fn rotating(
    bench: &BenchRun,
    service: &AuthService,
    report: &mut BenchReport,
) -> io::Result<()> {
    let (mut rates, mut costs, mut pool_costs, mut p99_ms, mut failed) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), 0);
    let rounds = bench.pick(3, 5);
    for round in 1..=rounds {
        let mut tokens = Vec::new();
        for family in 0..TOKEN_FAMILIES {
            progress(&format!(
                "refresh: round {round} of {rounds}: {family} of {TOKEN_FAMILIES} have signed in"
            ));
            tokens.push(service.register(&format!("refresh-{round}-{family}@example.com"))?);
        }
        let file = bench.folder().join("refresh-tokens");
        fs::write(&file, tokens.join("\n"))?;
        let load = WrkLoad {
            connections: CONNECTIONS,
            seconds: bench.pick(3, 8),
            script: script(&file),
        };
        let (before, pool) = (service.process.cpu_ns()?, service.standalone.cpu_ns()?);
        let seen = load.run(bench.folder(), service.address, REFRESH_PATH)?;
        costs.push(
            service.process.cpu_ns()?.saturating_sub(before) as f64 / 1e3 / seen.requests as f64,
        );
        pool_costs.push(
            service.standalone.cpu_ns()?.saturating_sub(pool) as f64 / 1e3 / seen.requests as f64,
        );
        rates.push(seen.per_second);
        p99_ms.push(seen.p99_us / 1e3);
        failed += seen.failed;
    }
    progress("");
    report.sheets.push(ReportTable {
        title: "Refresh, rotating, against the local pool".to_owned(),
        columns: vec![
            "refreshes/s: median (min to max)",
            "p99, ms",
            "CPU service, µs",
            "CPU pool, µs",
            "failed",
        ],
        rows: vec![vec![
            ranged(&rates),
            ranged(&p99_ms),
            ranged(&costs),
            ranged(&pool_costs),
            failed.to_string(),
        ]],
    });
    let what = "refresh against the local pool";
    report.figures.push(TargetFigure::number(
        what,
        Bound::AtLeast(2_000.0),
        median(&rates),
        "/s",
    ));
    report.figures.push(TargetFigure::number(
        &format!("{what}: refused"),
        Bound::AtMost(0.0),
        failed as f64,
        "",
    ));
    report.rounds["refresh"] =
        json!({"perSecond": rates, "p99Ms": p99_ms, "cpuUs": costs, "poolCpuUs": pool_costs});
    Ok(())
}

/// Returns a script that takes a token from the front of a queue and appends the one of the
/// response.
fn script(file: &Path) -> String {
    format!(
        "local tokens, first, last = {{}}, 1, 0\n\
         init = function()\n\
         \x20 for token in io.lines({:?}) do last = last + 1; tokens[last] = token end\n\
         end\n\
         request = function()\n\
         \x20 local token = tokens[first]\n\
         \x20 tokens[first] = nil; first = first + 1\n\
         \x20 return wrk.format('POST', {REFRESH_PATH:?}, {{['Content-Type'] = 'application/json'}}, '{{\"refreshToken\":\"' .. token .. '\"}}')\n\
         end\n\
         response = function(status, headers, body)\n\
         \x20 local token = string.match(body, '\"refreshToken\":\"([^\"]+)\"')\n\
         \x20 last = last + 1; tokens[last] = token or 'none'\n\
         end\n",
        file.display().to_string()
    )
}
