use std::io;

use serde_json::json;

use super::Run;
use super::service::{Carrier, PATH, Service};
use crate::figure::{Bound, Figure, short};
use crate::report::{Report, Sheet, median, progress};

/// The default store of standalone: one file, synchronous=FULL.
pub(super) fn over_http(run: &Run<'_>, report: &mut Report) -> io::Result<()> {
    let Run { bench, origin, .. } = *run;
    let rounds = bench.pick(3, 5);
    let mut accepted = Vec::new();
    let mut delivered = Vec::new();
    let mut failed = 0;
    for round in 1..=rounds {
        progress(&format!("SQLite: round {round} of {rounds}"));
        let database = format!("sqlite://{}/sqlite-{round}.db", bench.folder().display());
        let seconds = bench.pick(3, 8);
        let service = Service::start(bench, origin, &database, Carrier::Never { permits: 1 })?;
        let seen = service.load(seconds).run(bench.folder(), service.address, PATH)?;
        accepted.push(seen.per_second);
        failed += seen.failed;
        drop(service);
        // What waits now is the backlog.
        let service = Service::start(bench, origin, &database, Carrier::NULL)?;
        let before = service.attempts()?;
        std::thread::sleep(std::time::Duration::from_secs(2));
        delivered.push((service.attempts()? - before) / 2.0);
    }
    progress("");
    report.sheets.push(Sheet {
        title: "SQLite, synchronous=FULL, over HTTP".to_owned(),
        columns: vec!["accepted/s", "delivered/s", "failed"],
        rows: vec![vec![short(median(&accepted)), short(median(&delivered)), failed.to_string()]],
    });
    let what = "the SQLite default, synchronous=FULL, over HTTP";
    let figure = |name: &str, least, value| {
        Figure::number(&format!("{what}: {name}"), Bound::AtLeast(least), value, "/s")
    };
    report.figures.push(figure("accepted", 20_000.0, median(&accepted)));
    report.figures.push(figure("delivered", 25_000.0, median(&delivered)));
    report.rounds["sqlite"] = json!({"accepted": accepted, "delivered": delivered});
    Ok(())
}
