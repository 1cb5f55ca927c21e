use std::fs;
use std::io;
use std::thread;

use crate::bench::{BenchRun, OriginServer};
use crate::figure::{Bound, TargetFigure, short};
use crate::load::{WrkLoad, headers_script, tokens_script};
use crate::peers::{self, ORIGIN_RESPONSE, PeerRelease, PosternSetup, REQUEST_PATH};
use crate::report::{BenchReport, median};
use crate::rounds::{self, BenchPeer, LoadRequest, PeerRow, paired, range};

/// Number of tokens for the load without cache hits, used in turn: more than the token cache holds.
const NEW_TOKENS: u64 = 4_000;

/// Size of a token cache that holds far fewer than [`NEW_TOKENS`], so that each has been evicted
/// when it is used again.
const SMALL_CACHE: &str = "cache_bytes = \"256KiB\"";

fn postern(
    name: &'static str,
    how: &PosternSetup<'_>,
    bench: &BenchRun,
    origin: &OriginServer,
) -> io::Result<BenchPeer> {
    Ok(how.start(bench, origin)?.into_peer(name))
}

/// Measures the gateway with all features and a cached token.
pub(super) fn all_on(
    bench: &BenchRun,
    origin: &OriginServer,
    report: &mut BenchReport,
) -> io::Result<()> {
    let system = PeerRelease::System;
    let peers = [
        peers::nginx_proxy(bench, system, origin.address)?,
        peers::haproxy(bench, system, origin.address)?,
        peers::haproxy_rs256(bench, origin)?,
        peers::passthrough(bench, origin.address)?,
        postern("Postern, all on", &PosternSetup::default(), bench, origin)?,
    ];
    let token = origin.signer.token(&origin.issuer, 1)?;
    let question = LoadRequest {
        path: REQUEST_PATH,
        token: &token,
        body: ORIGIN_RESPONSE,
    };
    let bearer = format!("Bearer {token}");
    let script = headers_script("GET", &[("Authorization", &bearer)], "");
    let load = WrkLoad {
        connections: 64,
        seconds: bench.pick(2, 6),
        script,
    };
    let rows = rounds::measure(bench, "cost", &peers, &question, &load, bench.pick(3, 5))?;
    report.sheets.push(rounds::sheet(
        "CPU per request, the same token each time",
        &rows,
    ));
    report.rounds["cost"] = rounds::json(&rows);
    if let [nginx, _, verified, empty, postern] = rows.as_slice() {
        let all = "all on: 100 routes, RS256 token (seen before), policy, identity headers, limits, metrics, access log";
        let mut figure = |against: &str, bound, of: &PeerRow, over: &PeerRow| {
            report
                .figures
                .push(ratio(&format!("{all}: {against}"), bound, of, over));
        };
        figure("over an empty Pingora", Bound::AtMost(1.0), postern, empty);
        figure(
            "over nginx without auth",
            Bound::AtMost(1.35),
            postern,
            nginx,
        );
        figure(
            "cheaper than HAProxy RS256",
            Bound::AtLeast(2.0),
            verified,
            postern,
        );
        failures("all on", &rows, report);
    }
    Ok(())
}

/// Measures requests whose tokens are never in the cache.
pub(super) fn every_token_new(
    bench: &BenchRun,
    origin: &OriginServer,
    report: &mut BenchReport,
) -> io::Result<()> {
    let how = PosternSetup {
        tokens: SMALL_CACHE,
        ..PosternSetup::default()
    };
    let peers = [
        peers::haproxy_rs256(bench, origin)?,
        postern("Postern, no cache hit", &how, bench, origin)?,
    ];
    let tokens: Vec<String> = (10..10 + NEW_TOKENS)
        .map(|serial| origin.signer.token(&origin.issuer, serial))
        .collect::<Result<_, _>>()?;
    let file = bench.folder().join("tokens");
    fs::write(&file, tokens.join("\n"))?;
    let question = LoadRequest {
        path: REQUEST_PATH,
        token: &tokens[0],
        body: ORIGIN_RESPONSE,
    };
    let load = WrkLoad {
        connections: 64,
        seconds: bench.pick(2, 6),
        script: tokens_script(&file, REQUEST_PATH),
    };
    let rows = rounds::measure(
        bench,
        "every token new",
        &peers,
        &question,
        &load,
        bench.pick(3, 5),
    )?;
    report
        .sheets
        .push(rounds::sheet("CPU per request, every token new", &rows));
    report.rounds["everyTokenNew"] = rounds::json(&rows);
    if let [verified, postern] = rows.as_slice() {
        let what = "every token new (no cache hit): over HAProxy RS256";
        report
            .figures
            .push(ratio(what, Bound::AtMost(1.0), postern, verified));
        failures("every token new", &rows, report);
    }
    Ok(())
}

/// Measures the speed-up by a second worker.
pub(super) fn two_workers(
    bench: &BenchRun,
    origin: &OriginServer,
    report: &mut BenchReport,
) -> io::Result<()> {
    let two = PosternSetup {
        workers: 2,
        ..PosternSetup::default()
    };
    let peers = [
        postern("one worker", &PosternSetup::default(), bench, origin)?,
        postern("two workers", &two, bench, origin)?,
    ];
    let token = origin.signer.token(&origin.issuer, 1)?;
    let question = LoadRequest {
        path: REQUEST_PATH,
        token: &token,
        body: ORIGIN_RESPONSE,
    };
    let bearer = format!("Bearer {token}");
    let script = headers_script("GET", &[("Authorization", &bearer)], "");
    let load = WrkLoad {
        connections: 64,
        seconds: bench.pick(2, 6),
        script,
    };
    let rows = rounds::measure(bench, "workers", &peers, &question, &load, bench.pick(3, 5))?;
    report.sheets.push(rounds::sheet("Workers", &rows));
    report.rounds["workers"] = rounds::json(&rows);
    if let [one, two] = rows.as_slice() {
        report.figures.push(scaling(one, two));
        failures("workers", &rows, report);
    }
    Ok(())
}

/// Returns the figure of the speed-up. Two workers, the load and the origin need more than four
/// cores; with fewer, throughput would measure the load. Then it is derived from cost: if a request
/// costs no more CPU with two workers than with one, two cores serve twice as many.
fn scaling(one: &PeerRow, two: &PeerRow) -> TargetFigure {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let rates = format!(
        "{} requests/s with one, {} with two",
        short(median(&one.per_second)),
        short(median(&two.per_second))
    );
    let (ratios, how) = if cores >= 4 {
        (
            paired(&two.per_second, &one.per_second),
            format!("throughput by rounds; {rates}"),
        )
    } else {
        let ratios = paired(&one.cpu_us, &two.cpu_us)
            .iter()
            .map(|ratio| 2.0 * ratio)
            .collect();
        let blind = "cannot show threads that sleep on a lock, which spend no CPU";
        (
            ratios,
            format!(
                "derived by rounds, 2 × cost with one / cost with two; {blind}; \
                 {rates}, on cores shared with load and origin"
            ),
        )
    };
    let failed = one.failed + two.failed;
    let what = "two worker threads over one";
    rounds::figure(what, Bound::AtLeast(1.8), median(&ratios), " ×", failed)
        .noting(&format!("{}, {how}", range(&ratios)))
}

/// Returns the ratio of two costs.
fn ratio(what: &str, bound: Bound, of: &PeerRow, over: &PeerRow) -> TargetFigure {
    rounds::figure(
        what,
        bound,
        of.cost() / over.cost(),
        " ×",
        of.failed + over.failed,
    )
}

fn failures(what: &str, rows: &[PeerRow], report: &mut BenchReport) {
    let failed: u64 = rows.iter().map(|row| row.failed).sum();
    report.figures.push(TargetFigure::number(
        &format!("{what}: wrong answers"),
        Bound::AtMost(0.0),
        failed as f64,
        "",
    ));
}
