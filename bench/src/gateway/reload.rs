use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::bench::{Bench, Origin};
use crate::figure::{Bound, Figure};
use crate::http;
use crate::load::{Seen, Wrk, headers_script};
use crate::peers::{Gateway, PATH, Postern};
use crate::process::signal;
use crate::report::{Report, median, progress};

/// A file of ten thousand routes goes live under load, again and again.
pub(super) fn ten_thousand_routes(bench: &Bench, origin: &Origin, report: &mut Report) -> io::Result<()> {
    let large = Postern { routes: 10_000, ..Postern::default() };
    let gateway = large.start(bench, origin)?;
    let bearer = format!("Bearer {}", origin.signer.token(&origin.issuer, 1)?);
    let script = headers_script("GET", &[("Authorization", &bearer)], "");
    // Few connections: a queue of requests that wait for one another would hide a step.
    let load = Wrk { connections: 4, seconds: bench.pick(3, 6), script };
    let rounds = bench.pick(3, 7);
    let (mut quiet, mut disturbed, mut to_live) = (Vec::new(), Vec::new(), Vec::new());
    let (mut failed, mut version) = (0, version(&gateway)?);
    for round in 1..=rounds {
        progress(&format!("reload: round {round} of {rounds}"));
        let still = load.run(bench.folder(), gateway.address, PATH)?;
        let text = fs::read_to_string(&gateway.file)?;
        let during = thread::scope(|scope| -> io::Result<Seen> {
            let running = scope.spawn(|| load.run(bench.folder(), gateway.address, PATH));
            thread::sleep(Duration::from_secs(1));
            to_live.push(reload(&gateway, &format!("{text}# {round}\n"), &mut version)?);
            running.join().map_err(|_| io::Error::other("the load panicked"))?
        })?;
        failed += still.failed + during.failed;
        quiet.push(still.p99_us / 1000.0);
        disturbed.push(during.p99_us / 1000.0);
    }
    progress("");
    let loaded = |what: &str| format!("reload of a 10,000-route file: {what}");
    let figures = &mut report.figures;
    figures.push(Figure::number(&loaded("to live"), Bound::AtMost(100.0), median(&to_live), " ms"));
    figures.push(Figure::number(&loaded("failed requests"), Bound::AtMost(0.0), failed as f64, ""));
    let step = median(&disturbed) / median(&quiet);
    let figure =
        Figure::number(&loaded("p99 over that of a run without one"), Bound::AtMost(1.2), step, " ×");
    figures.push(figure.noting(&format!("{:.2} ms against {:.2} ms", median(&disturbed), median(&quiet))));
    report.rounds["reload"] = json!({"toLiveMs": to_live, "p99Ms": disturbed, "p99MsWithout": quiet});
    Ok(())
}

/// Writes the file, says so, and waits until it is live; milliseconds.
fn reload(gateway: &Gateway, text: &str, version: &mut u64) -> io::Result<f64> {
    let fresh = gateway.file.with_extension("fresh");
    fs::write(&fresh, text)?;
    fs::rename(&fresh, &gateway.file)?;
    let began = Instant::now();
    signal("-HUP", gateway.process.id());
    let mut client = http::Client::connect(gateway.admin)?;
    loop {
        let answer = client.ask("GET", "/config/status", &[], "")?.json();
        let live = answer["version"].as_u64().unwrap_or(0);
        if live > *version {
            *version = live;
            return Ok(began.elapsed().as_secs_f64() * 1e3);
        }
        if began.elapsed() > Duration::from_secs(10) {
            return Err(io::Error::other(format!("the new file is not live after 10 s: {answer}")));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn version(gateway: &Gateway) -> io::Result<u64> {
    let answer = http::once(gateway.admin, "GET", "/config/status", &[], "")?.expect(200)?;
    Ok(answer.json()["version"].as_u64().unwrap_or(0))
}
