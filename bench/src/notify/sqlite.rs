use std::io;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::NotifyRun;
use super::service::{NOTIFICATIONS_PATH, NotifyService, ProviderKind, all_answered};
use crate::figure::{Bound, TargetFigure};
use crate::load::LoadResult;
use crate::report::{BenchReport, ReportTable, median, progress, ranged};

/// Measures the default store of standalone: one file, synchronous=FULL.
pub(super) fn over_http(run: &NotifyRun<'_>, report: &mut BenchReport) -> io::Result<()> {
    let NotifyRun { bench, origin, .. } = *run;
    let rounds = bench.pick(3, 5);
    let seconds = bench.pick(3, 8);
    let mut seen = Vec::new();
    let (mut cost, mut delivered) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        progress(&format!("SQLite: round {round} of {rounds}"));
        let database = format!("sqlite://{}/sqlite-{round}.db", bench.folder().display());
        let service =
            NotifyService::start(bench, origin, &database, ProviderKind::Never { permits: 1 })?;
        let cpu = service.process.cpu_ns()?;
        let load =
            service
                .load(seconds)
                .run(bench.folder(), service.address, NOTIFICATIONS_PATH)?;
        cost.push(
            service.process.cpu_ns()?.saturating_sub(cpu) as f64 / 1e3 / load.requests as f64,
        );
        seen.push(load);
        drop(service);
        // The notifications that wait now are the backlog.
        let service = NotifyService::start(bench, origin, &database, ProviderKind::NULL)?;
        let (before, began) = (service.sent()?, Instant::now());
        thread::sleep(Duration::from_secs(2));
        delivered.push((service.sent()? - before) / began.elapsed().as_secs_f64());
    }
    progress("");
    let of = |value: fn(&LoadResult) -> f64| seen.iter().map(value).collect::<Vec<_>>();
    let (accepted, p99_ms) = (of(|seen| seen.per_second), of(|seen| seen.p99_us / 1e3));
    let failed = seen.iter().map(|seen| seen.failed).sum::<u64>();
    report.sheets.push(ReportTable {
        title: "SQLite, synchronous=FULL, over HTTP".to_owned(),
        columns: vec![
            "accepted/s",
            "CPU service, µs",
            "p99, ms",
            "delivered/s",
            "failed",
        ],
        rows: vec![vec![
            ranged(&accepted),
            ranged(&cost),
            ranged(&p99_ms),
            ranged(&delivered),
            failed.to_string(),
        ]],
    });
    report.rounds["sqlite"] =
        json!({"accepted": accepted, "serviceUs": cost, "p99Ms": p99_ms, "delivered": delivered});
    all_answered(seen.iter().copied())?;
    let what = "the SQLite default, synchronous=FULL, over HTTP";
    let figure = |name: &str, least, value| {
        TargetFigure::number(
            &format!("{what}: {name}"),
            Bound::AtLeast(least),
            value,
            "/s",
        )
    };
    report
        .figures
        .push(figure("accepted", 20_000.0, median(&accepted)));
    report
        .figures
        .push(figure("delivered", 25_000.0, median(&delivered)));
    Ok(())
}
