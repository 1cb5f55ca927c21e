use std::io;
use std::time::{Duration, Instant};

use serde_json::json;

use super::service::{command, standalone};
use crate::bench::{Bench, ready};
use crate::figure::{Bound, Figure};
use crate::notify;
use crate::peers::Postern;
use crate::process::Process;
use crate::report::{Report, Sheet, progress, spread};

/// From the start of a process to its readiness, of each.
pub(super) fn cold(bench: &Bench, report: &mut Report) -> io::Result<()> {
    let rounds = bench.pick(5, 15);
    let redis = bench
        .redis
        .clone()
        .ok_or_else(|| io::Error::other("needs --redis URL: start it by bench/run"))?;
    let origin = bench.origin()?;
    let mut taken: [Vec<f64>; 5] = Default::default();
    let (_beside, environment) = standalone(bench, &bench.folder().join("start"))?;
    for round in 1..=rounds {
        progress(&format!("cold start: round {round} of {rounds}"));
        taken[0].push(time(|| {
            Ok(Postern::default().start(bench, &origin)?.process)
        })?);
        taken[1].push(time(|| {
            let (mut command, _, admin) = command(bench, &environment, &redis)?;
            ready(
                Process::spawn("postern-auth", &mut command)?,
                admin,
                Duration::from_millis(2),
            )
        })?);
        let database = format!("sqlite://{}/start-{round}.db", bench.folder().display());
        taken[2].push(time(|| notify::start(bench, &origin, &database))?);
        let folder = bench.folder().join(format!("first-{round}"));
        taken[3].push(time(|| Ok(standalone(bench, &folder)?.0))?);
        taken[4].push(time(|| Ok(standalone(bench, &folder)?.0))?);
    }
    progress("");
    let names = [
        "proxy",
        "auth",
        "notify",
        "standalone, first start",
        "standalone, again",
    ];
    let line = |(name, taken): (&&str, &Vec<f64>)| {
        let (least, middle, most) = spread(taken);
        vec![
            (*name).to_owned(),
            format!("{middle:.0} ({least:.0} to {most:.0})"),
        ]
    };
    report.sheets.push(Sheet {
        title: "Cold start to ready".to_owned(),
        columns: vec!["process", "ms: median (min to max)"],
        rows: names.iter().zip(&taken).map(line).collect(),
    });
    for ((name, taken), most) in names
        .iter()
        .zip(&taken)
        .zip([150.0, 300.0, 300.0, 800.0, 800.0])
    {
        let (_, middle, _) = spread(taken);
        let what = format!("cold start to ready: {name}");
        report
            .figures
            .push(Figure::number(&what, Bound::AtMost(most), middle, " ms"));
    }
    report.rounds["coldStartMs"] = json!(taken);
    Ok(())
}

/// Milliseconds until it is ready; it is stopped again.
fn time(start: impl FnOnce() -> io::Result<Process>) -> io::Result<f64> {
    let began = Instant::now();
    let process = start()?;
    let taken = began.elapsed().as_secs_f64() * 1e3;
    drop(process);
    Ok(taken)
}
