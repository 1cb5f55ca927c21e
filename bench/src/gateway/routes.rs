use std::hint::black_box;
use std::io;
use std::time::Instant;

use postern_bench::paths::Routes;
use serde_json::json;

use crate::bench::{Bench, Origin};
use crate::figure::{Bound, Figure};
use crate::report::{Report, Sheet, median, progress};

/// Sizes of the table.
const SIZES: [usize; 3] = [10, 1_000, 10_000];

/// Nanoseconds to find a route, by the size of the table.
pub(super) fn matching(bench: &Bench, _origin: &Origin, report: &mut Report) -> io::Result<()> {
    let tables: Vec<Routes> = SIZES.iter().map(|size| Routes::of(*size)).collect();
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
    report.sheets.push(Sheet {
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
            .push(Figure::number(what, Bound::AtMost(10.0), flat, " %"));
        report.figures.push(Figure::number(
            "route match among 1,000 routes",
            Bound::AtMost(300.0),
            *thousand,
            " ns",
        ));
    }
    Ok(())
}

/// Allocations per request, counted by a program of their own, whose allocator counts.
pub(super) fn allocations(bench: &Bench, _origin: &Origin, report: &mut Report) -> io::Result<()> {
    progress("allocations");
    let output = bench.program("postern-bench-allocations")?.output()?;
    let counted: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| io::Error::other("postern-bench-allocations did not count"))?;
    progress("");
    let number = |name: &str| counted[name].as_f64().unwrap_or(f64::NAN);
    let (empty, all_on) = (number("passthrough"), number("gateway"));
    let figure = Figure::number(
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
