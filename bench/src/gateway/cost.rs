use std::fs;
use std::io;
use std::net::SocketAddr;
use std::thread;

use crate::bench::{Bench, Origin};
use crate::figure::{Bound, Figure, short};
use crate::load::{Wrk, headers_script, tokens_script};
use crate::peers::{self, ANSWER, PATH, Postern};
use crate::process::{Process, free_address};
use crate::report::{Report, median};
use crate::rounds::{self, Peer, Question, Row, paired, range};

/// Tokens of the load without a cache hit: more than the gateway is given room for, in turn.
const NEW_TOKENS: u64 = 4_000;

/// Bytes that hold far fewer than [`NEW_TOKENS`], so that each has been forgotten when it comes
/// again.
const SMALL_CACHE: &str = "cache_bytes = \"256KiB\"";

/// Starts a peer on a free port.
fn peer(name: &'static str, start: impl Fn(SocketAddr) -> io::Result<Process>) -> io::Result<Peer> {
    let address = free_address()?;
    Ok(Peer {
        name,
        address,
        process: start(address)?,
    })
}

fn postern(
    name: &'static str,
    how: &Postern<'_>,
    bench: &Bench,
    origin: &Origin,
) -> io::Result<Peer> {
    let gateway = how.start(bench, origin)?;
    Ok(Peer {
        name,
        address: gateway.address,
        process: gateway.process,
    })
}

/// Everything on, with a token that was seen before.
pub(super) fn all_on(bench: &Bench, origin: &Origin, report: &mut Report) -> io::Result<()> {
    let folder = bench.folder();
    let peers = [
        peer("nginx, no auth", |address| {
            peers::nginx_proxy(folder, address, origin.address)
        })?,
        peer("HAProxy, no auth", |address| {
            peers::haproxy(folder, address, origin)
        })?,
        peer("HAProxy, RS256", |address| {
            peers::haproxy_rs256(folder, address, origin)
        })?,
        peer("Pingora, empty", |address| {
            peers::passthrough(address, origin.address)
        })?,
        postern("Postern, all on", &Postern::default(), bench, origin)?,
    ];
    let token = origin.signer.token(&origin.issuer, 1)?;
    let question = Question {
        path: PATH,
        token: &token,
        body: ANSWER,
    };
    let bearer = format!("Bearer {token}");
    let script = headers_script("GET", &[("Authorization", &bearer)], "");
    let load = Wrk {
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
        let mut figure = |against: &str, bound, of: &Row, over: &Row| {
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

/// No token twice within the memory of the cache.
pub(super) fn every_token_new(
    bench: &Bench,
    origin: &Origin,
    report: &mut Report,
) -> io::Result<()> {
    let folder = bench.folder();
    let how = Postern {
        tokens: SMALL_CACHE,
        ..Postern::default()
    };
    let peers = [
        peer("HAProxy, RS256", |address| {
            peers::haproxy_rs256(folder, address, origin)
        })?,
        postern("Postern, no cache hit", &how, bench, origin)?,
    ];
    let tokens: Vec<String> = (10..10 + NEW_TOKENS)
        .map(|serial| origin.signer.token(&origin.issuer, serial))
        .collect::<Result<_, _>>()?;
    let file = folder.join("tokens");
    fs::write(&file, tokens.join("\n"))?;
    let question = Question {
        path: PATH,
        token: &tokens[0],
        body: ANSWER,
    };
    let load = Wrk {
        connections: 64,
        seconds: bench.pick(2, 6),
        script: tokens_script(&file, PATH),
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

/// What the second worker is worth.
pub(super) fn two_workers(bench: &Bench, origin: &Origin, report: &mut Report) -> io::Result<()> {
    let two = Postern {
        workers: 2,
        ..Postern::default()
    };
    let peers = [
        postern("one worker", &Postern::default(), bench, origin)?,
        postern("two workers", &two, bench, origin)?,
    ];
    let token = origin.signer.token(&origin.issuer, 1)?;
    let question = Question {
        path: PATH,
        token: &token,
        body: ANSWER,
    };
    let bearer = format!("Bearer {token}");
    let script = headers_script("GET", &[("Authorization", &bearer)], "");
    let load = Wrk {
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

/// Two workers, the load and the origin do not fit on fewer than four cores: throughput would tell
/// of them and not of the gateway. There it is derived: as long as a request costs no more CPU with
/// two workers than with one, two cores carry twice as much.
fn scaling(one: &Row, two: &Row) -> Figure {
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

/// The cost of one over the cost of another.
fn ratio(what: &str, bound: Bound, of: &Row, over: &Row) -> Figure {
    rounds::figure(
        what,
        bound,
        of.cost() / over.cost(),
        " ×",
        of.failed + over.failed,
    )
}

fn failures(what: &str, rows: &[Row], report: &mut Report) {
    let failed: u64 = rows.iter().map(|row| row.failed).sum();
    report.figures.push(Figure::number(
        &format!("{what}: wrong answers"),
        Bound::AtMost(0.0),
        failed as f64,
        "",
    ));
}
