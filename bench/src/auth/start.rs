use std::io;
use std::time::{Duration, Instant};

use serde_json::json;

use super::service::{command, standalone};
use crate::bench::{BenchRun, ready};
use crate::figure::{Bound, TargetFigure};
use crate::notify;
use crate::peers::PosternSetup;
use crate::process::ChildProcess;
use crate::report::{BenchReport, ReportTable, progress, spread};

/// Measures the time from process start to readiness of each process.
pub(super) fn cold(bench: &BenchRun, report: &mut BenchReport) -> io::Result<()> {
    let rounds = bench.pick(5, 15);
    let redis = bench
        .redis
        .clone()
        .ok_or_else(|| io::Error::other("--redis URL is required: run bench/run"))?;
    let origin = bench.origin()?;
    let mut taken: [Vec<f64>; 5] = Default::default();
    let (_beside, environment) = standalone(bench, &bench.folder().join("start"))?;
    for round in 1..=rounds {
        progress(&format!("cold start: round {round} of {rounds}"));
        taken[0].push(time(|| {
            Ok(PosternSetup::default().start(bench, &origin)?.process)
        })?);
        taken[1].push(time(|| {
            let (mut command, _, admin) = command(bench, &environment, &redis)?;
            ready(
                ChildProcess::spawn("postern-auth", &mut command)?,
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
    report.sheets.push(ReportTable {
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
        report.figures.push(TargetFigure::number(
            &what,
            Bound::AtMost(most),
            middle,
            " ms",
        ));
    }
    report.rounds["coldStartMs"] = json!(taken);
    Ok(())
}

/// Returns the milliseconds until the process is ready, and stops it.
fn time(start: impl FnOnce() -> io::Result<ChildProcess>) -> io::Result<f64> {
    let began = Instant::now();
    let process = start()?;
    let taken = began.elapsed().as_secs_f64() * 1e3;
    drop(process);
    Ok(taken)
}
