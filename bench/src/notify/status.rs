use std::fs;
use std::io;

use serde_json::json;

use super::Run;
use super::backlog::{NORMAL, fill, prepare};
use super::service::{Carrier, Service};
use crate::figure::{Bound, Figure, short};
use crate::http;
use crate::load::{Wrk, headers_script};
use crate::report::{Report, Sheet, median, progress};

const DATABASE: &str = "bench_status";

/// Notifications that are asked for in turn where none is to be remembered.
const IDS: u32 = 20_000;

/// GET of one status again and again, and of very many in turn.
pub(super) fn read(run: &Run<'_>, report: &mut Report) -> io::Result<()> {
    let Run { bench, postgres, origin, .. } = *run;
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
    let one = format!("/notifications/{}", ids.lines().next().unwrap_or_default());
    let answer = http::once(service.address, "GET", &one, &[("Authorization", &bearer)], "")?.expect(200)?;
    // As somebody who waits for a change asks: with the tag of what was seen last.
    let tag = answer.header("etag").ok_or_else(|| io::Error::other("a status without a tag"))?;
    let same = Wrk {
        connections: 64,
        seconds: bench.pick(2, 6),
        script: headers_script("GET", &[("Authorization", &bearer), ("If-None-Match", tag)], ""),
    };
    let turns = Wrk { script: in_turn(&file, &bearer), ..same.clone() };
    let mut taken: [Vec<f64>; 2] = Default::default();
    let mut cost: [Vec<f64>; 2] = Default::default();
    let mut failed = 0;
    let rounds = bench.pick(3, 5);
    for round in 1..=rounds {
        progress(&format!("status: round {round} of {rounds}"));
        for (at, load) in [&same, &turns].into_iter().enumerate() {
            load.lasting(1).run(bench.folder(), service.address, &one)?;
            let before = service.process.cpu_ns()?;
            let seen = load.run(bench.folder(), service.address, &one)?;
            cost[at].push((service.process.cpu_ns()? - before) as f64 / 1e3 / seen.requests as f64);
            taken[at].push(seen.per_second);
            failed += seen.failed;
        }
    }
    progress("");
    tell(&taken, &cost, failed, report);
    Ok(())
}

fn tell(taken: &[Vec<f64>; 2], cost: &[Vec<f64>; 2], failed: u64, report: &mut Report) {
    let line = |(name, (taken, cost)): (&str, (&Vec<f64>, &Vec<f64>))| {
        vec![name.to_owned(), short(median(taken)), format!("{:.1}", median(cost)), failed.to_string()]
    };
    report.sheets.push(Sheet {
        title: "GET of a status".to_owned(),
        columns: vec!["which", "answers/s", "CPU service, µs", "failed in all"],
        rows: ["the same one, with its tag (304)", "20,000 in turn"]
            .into_iter()
            .zip(taken.iter().zip(cost))
            .map(line)
            .collect(),
    });
    report.figures.push(Figure::number(
        "GET status, cached",
        Bound::AtLeast(60_000.0),
        median(&taken[0]),
        "/s",
    ));
    report.figures.push(Figure::number(
        "GET status, not cached",
        Bound::AtLeast(25_000.0),
        median(&taken[1]),
        "/s",
    ));
    report.rounds["status"] = json!({"same": taken[0], "inTurn": taken[1]});
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
