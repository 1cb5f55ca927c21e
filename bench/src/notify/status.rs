use std::fs;
use std::io;

use serde_json::{Value, json};

use super::Run;
use super::backlog::{NORMAL, fill, prepare};
use super::service::{Carrier, Service, all_answered};
use crate::figure::{Bound, Figure};
use crate::http;
use crate::load::{Seen, Wrk, headers_script};
use crate::report::{Report, Sheet, median, progress, ranged};

const DATABASE: &str = "bench_status";

/// Notifications that are asked for in turn where none is to be remembered.
const IDS: u32 = 20_000;

/// What is asked for, in the words of the figures.
const SAME: &str = "cached: the same one, 304 by If-None-Match";
const TURNS: &str = "not cached: 20,000 in turn";

/// GET of one status again and again, and of very many in turn.
pub(super) fn read(run: &Run<'_>, report: &mut Report) -> io::Result<()> {
    let Run {
        bench,
        postgres,
        origin,
        ..
    } = *run;
    let database = prepare(bench, postgres, origin, DATABASE)?;
    fill(postgres, DATABASE, NORMAL, IDS, 60)?;
    let service = Service::start(bench, origin, &database, Carrier::Never { permits: 1 })?;
    let ids = postgres.ask(
        DATABASE,
        &format!(
            "SELECT id FROM notify_record WHERE lane = {NORMAL} AND creator = 'service:bench' LIMIT {IDS}"
        ),
    )?;
    let file = bench.folder().join("ids");
    fs::write(&file, &ids)?;
    let bearer = format!("Bearer {}", service.token);
    // The last in line is not attempted meanwhile, so that its tag stays.
    let one = format!("/notifications/{}", ids.lines().max().unwrap_or_default());
    let answer = http::once(
        service.address,
        "GET",
        &one,
        &[("Authorization", &bearer)],
        "",
    )?
    .expect(200)?;
    // As somebody who waits for a change asks: with the tag of what was seen last.
    let tag = answer
        .header("etag")
        .ok_or_else(|| io::Error::other("a status without a tag"))?;
    let same = Wrk {
        connections: 64,
        seconds: bench.pick(2, 6),
        script: headers_script(
            "GET",
            &[("Authorization", &bearer), ("If-None-Match", tag)],
            "",
        ),
    };
    let turns = Wrk {
        script: in_turn(&file, &bearer),
        ..same.clone()
    };
    let mut sides: [Vec<Round>; 2] = Default::default();
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
            side.push(Round { seen, cpu_us });
        }
    }
    progress("");
    let known = [("Authorization", bearer.as_str()), ("If-None-Match", tag)];
    http::once(service.address, "GET", &one, &known, "")?.expect(304)?;
    tell(&sides, report)
}

/// What one load saw, and the CPU microseconds of the service for each answer.
struct Round {
    seen: Seen,
    cpu_us: f64,
}

fn of(rounds: &[Round], value: impl Fn(&Round) -> f64) -> Vec<f64> {
    rounds.iter().map(value).collect()
}

fn tell(sides: &[Vec<Round>; 2], report: &mut Report) -> io::Result<()> {
    let line = |(name, rounds): (&str, &Vec<Round>)| {
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
    report.sheets.push(Sheet {
        title: "GET of a status".to_owned(),
        columns: vec!["which", "answers/s", "CPU service, µs", "p99, ms", "failed"],
        rows: [SAME, TURNS].into_iter().zip(sides).map(line).collect(),
    });
    let round = |round: &Round| {
        let Round { seen, cpu_us } = round;
        json!({"perSecond": seen.per_second, "serviceUs": cpu_us, "p99Ms": seen.p99_us / 1e3})
    };
    let [same, turns] = sides
        .each_ref()
        .map(|rounds| rounds.iter().map(round).collect::<Value>());
    report.rounds["status"] = json!({"same": same, "inTurn": turns});
    all_answered(sides.iter().flatten().map(|round| round.seen))?;
    for ((name, least), rounds) in [(SAME, 60_000.0), (TURNS, 25_000.0)].into_iter().zip(sides) {
        let rate = median(&of(rounds, |round| round.seen.per_second));
        let what = format!("GET status, {name}");
        report
            .figures
            .push(Figure::number(&what, Bound::AtLeast(least), rate, "/s"));
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
