use std::hint::black_box;
use std::io;
use std::time::Instant;

use postern_bench::paths::BenchRoutes;
use serde_json::json;

use crate::bench::{BenchRun, OriginServer};
use crate::figure::{Bound, TargetFigure};
use crate::report::{BenchReport, ReportTable, median, progress};

/// Sizes of the route table.
const SIZES: [usize; 3] = [10, 1_000, 10_000];

/// Measures the time to match a route, by the size of the table.
pub(super) fn matching(
    bench: &BenchRun,
    _origin: &OriginServer,
    report: &mut BenchReport,
) -> io::Result<()> {
    let tables: Vec<BenchRoutes> = SIZES.iter().map(|size| BenchRoutes::of(*size)).collect();
    let (rounds, times) = bench.pick((15, 100_000), (51, 400_000));
    let mut taken: Vec<Vec<f64>> = SIZES.iter().map(|_| Vec::new()).collect();
    for round in 1..=rounds {
        progress(&format!("route match: round {round} of {rounds}"));
        for (table, taken) in tables.iter().zip(&mut taken) {
            let began = Instant::now();
            for turn in 0..times {
                black_box(table.find(black_box(turn)));
            }
            taken.push(began.elapsed().as_nanos() as f64 / times as f64);
        }
    }
    progress("");
    let middles: Vec<f64> = taken.iter().map(|taken| median(taken)).collect();
    let rows = SIZES
        .iter()
        .zip(&middles)
        .map(|(size, ns)| vec![size.to_string(), format!("{ns:.0}")])
        .collect();
    report.sheets.push(ReportTable {
        title: "Route match".to_owned(),
        columns: vec!["routes", "ns"],
        rows,
    });
    report.rounds["routeMatchNs"] = json!(taken);
    if let [few, thousand, many] = middles.as_slice() {
        let flat = (thousand.max(*many) / few - 1.0) * 100.0;
        let what = "route match among 10, 1,000 and 10,000 routes: slower than among 10 by";
        report
            .figures
            .push(TargetFigure::number(what, Bound::AtMost(10.0), flat, " %"));
        report.figures.push(TargetFigure::number(
            "route match among 1,000 routes",
            Bound::AtMost(300.0),
            *thousand,
            " ns",
        ));
    }
    Ok(())
}

/// Measures allocations per request, with a separate program that has a counting allocator.
pub(super) fn allocations(
    bench: &BenchRun,
    _origin: &OriginServer,
    report: &mut BenchReport,
) -> io::Result<()> {
    progress("allocations");
    let output = bench.program("postern-bench-allocations")?.output()?;
    let counted: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| io::Error::other("postern-bench-allocations failed"))?;
    progress("");
    let number = |name: &str| counted[name].as_f64().unwrap_or(f64::NAN);
    let (empty, all_on) = (number("passthrough"), number("gateway"));
    let figure = TargetFigure::number(
        "allocations added per request to the empty pass-through",
        Bound::AtMost(4.0),
        all_on - empty,
        "",
    );
    report
        .figures
        .push(figure.noting(&format!("{all_on:.1} against {empty:.1}")));
    Ok(())
}
