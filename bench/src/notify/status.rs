use std::fs;
use std::io;

use serde_json::{Value, json};

use super::NotifyRun;
use super::backlog::{NORMAL, fill, prepare};
use super::service::{NotifyService, ProviderKind, all_answered};
use crate::figure::{Bound, TargetFigure};
use crate::http;
use crate::load::{LoadResult, WrkLoad, headers_script};
use crate::report::{BenchReport, ReportTable, median, progress, ranged};

const DATABASE: &str = "bench_status";

/// Number of notifications that are requested in turn in the uncached case.
const UNCACHED_IDS: u32 = 20_000;

/// Names of the two cases in the figures.
const CACHED_CASE: &str = "cached: the same one, 304 by If-None-Match";
const UNCACHED_CASE: &str = "not cached: 20,000 in turn";

/// Measures GET of one status repeatedly, and of many in turn.
pub(super) fn read(run: &NotifyRun<'_>, report: &mut BenchReport) -> io::Result<()> {
    let NotifyRun {
        bench,
        postgres,
        origin,
        ..
    } = *run;
    let database = prepare(bench, postgres, origin, DATABASE)?;
    fill(postgres, DATABASE, NORMAL, UNCACHED_IDS, 60)?;
    let service =
        NotifyService::start(bench, origin, &database, ProviderKind::Never { permits: 1 })?;
    let ids = postgres.ask(
        DATABASE,
        &format!(
            "SELECT id FROM notify_record WHERE lane = {NORMAL} AND creator = 'service:bench' LIMIT {UNCACHED_IDS}"
        ),
    )?;
    let file = bench.folder().join("ids");
    fs::write(&file, &ids)?;
    let bearer = format!("Bearer {}", service.token);
    // The last notification in the queue is not attempted meanwhile, so its ETag does not change.
    let one = format!("/notifications/{}", ids.lines().max().unwrap_or_default());
    let answer = http::once(
        service.address,
        "GET",
        &one,
        &[("Authorization", &bearer)],
        "",
    )?
    .expect(200)?;
    // A client that polls for a change sends the last ETag.
    let tag = answer
        .header("etag")
        .ok_or_else(|| io::Error::other("a status without a tag"))?;
    let same = WrkLoad {
        connections: 64,
        seconds: bench.pick(2, 6),
        script: headers_script(
            "GET",
            &[("Authorization", &bearer), ("If-None-Match", tag)],
            "",
        ),
    };
    let turns = WrkLoad {
        script: in_turn(&file, &bearer),
        ..same.clone()
    };
    let mut sides: [Vec<StatusRound>; 2] = Default::default();
    let rounds = bench.pick(3, 5);
    for round in 1..=rounds {
        progress(&format!("status: round {round} of {rounds}"));
        for (side, load) in sides.iter_mut().zip([&same, &turns]) {
            load.lasting(1).run(bench.folder(), service.address, &one)?;
            let before = service.process.cpu_ns()?;
            let seen = load.run(bench.folder(), service.address, &one)?;
            let cpu_us = service.process.cpu_ns()?.saturating_sub(before) as f64
                / 1e3
                / seen.requests as f64;
            side.push(StatusRound { seen, cpu_us });
        }
    }
    progress("");
    let known = [("Authorization", bearer.as_str()), ("If-None-Match", tag)];
    http::once(service.address, "GET", &one, &known, "")?.expect(304)?;
    tell(&sides, report)
}

/// The result of one load, and the CPU microseconds of the service per response.
struct StatusRound {
    seen: LoadResult,
    cpu_us: f64,
}

fn of(rounds: &[StatusRound], value: impl Fn(&StatusRound) -> f64) -> Vec<f64> {
    rounds.iter().map(value).collect()
}

fn tell(sides: &[Vec<StatusRound>; 2], report: &mut BenchReport) -> io::Result<()> {
    let line = |(name, rounds): (&str, &Vec<StatusRound>)| {
        vec![
            name.to_owned(),
            ranged(&of(rounds, |round| round.seen.per_second)),
            ranged(&of(rounds, |round| round.cpu_us)),
            ranged(&of(rounds, |round| round.seen.p99_us / 1e3)),
            rounds
                .iter()
                .map(|round| round.seen.failed)
                .sum::<u64>()
                .to_string(),
        ]
    };
    report.sheets.push(ReportTable {
        title: "GET of a status".to_owned(),
        columns: vec!["which", "answers/s", "CPU service, µs", "p99, ms", "failed"],
        rows: [CACHED_CASE, UNCACHED_CASE]
            .into_iter()
            .zip(sides)
            .map(line)
            .collect(),
    });
    let round = |round: &StatusRound| {
        let StatusRound { seen, cpu_us } = round;
        json!({"perSecond": seen.per_second, "serviceUs": cpu_us, "p99Ms": seen.p99_us / 1e3})
    };
    let [same, turns] = sides
        .each_ref()
        .map(|rounds| rounds.iter().map(round).collect::<Value>());
    report.rounds["status"] = json!({"same": same, "inTurn": turns});
    all_answered(sides.iter().flatten().map(|round| round.seen))?;
    for ((name, least), rounds) in [(CACHED_CASE, 60_000.0), (UNCACHED_CASE, 25_000.0)]
        .into_iter()
        .zip(sides)
    {
        let rate = median(&of(rounds, |round| round.seen.per_second));
        let what = format!("GET status, {name}");
        report.figures.push(TargetFigure::number(
            &what,
            Bound::AtLeast(least),
            rate,
            "/s",
        ));
    }
    Ok(())
}

fn in_turn(file: &std::path::Path, bearer: &str) -> String {
    format!(
        "local made, at = {{}}, 0\n\
         init = function()\n\
         \x20 for id in io.lines({:?}) do\n\
         \x20   made[#made + 1] = wrk.format('GET', '/notifications/' .. id, {{['Authorization'] = {bearer:?}}})\n\
         \x20 end\n\
         end\n\
         request = function() at = at % #made + 1; return made[at] end\n",
        file.display().to_string()
    )
}
