use std::fs;
use std::io;
use std::net::SocketAddr;

use crate::bench::{Bench, Origin};
use crate::figure::{Bound, Figure};
use crate::load::{Wrk, headers_script, tokens_script};
use crate::peers::{self, ANSWER, PATH, Postern};
use crate::process::{Process, free_address};
use crate::report::Report;
use crate::rounds::{self, Peer, Question, Row};

/// Tokens of the load without a cache hit: more than the gateway is given room for, in turn.
const NEW_TOKENS: u64 = 4_000;

/// Bytes that hold far fewer than [`NEW_TOKENS`], so that each has been forgotten when it comes again.
const SMALL_CACHE: &str = "cache_bytes = \"256KiB\"";

/// Starts a peer on a free port.
fn peer(name: &'static str, start: impl Fn(SocketAddr) -> io::Result<Process>) -> io::Result<Peer> {
    let address = free_address()?;
    Ok(Peer { name, address, process: start(address)? })
}

fn postern(name: &'static str, how: &Postern<'_>, bench: &Bench, origin: &Origin) -> io::Result<Peer> {
    let gateway = how.start(bench, origin)?;
    Ok(Peer { name, address: gateway.address, process: gateway.process })
}

/// Everything on, with a token that was seen before.
pub(super) fn all_on(bench: &Bench, origin: &Origin, report: &mut Report) -> io::Result<()> {
    let (folder, key) = (bench.folder(), Some(origin.signer.public_pem.as_str()));
    let peers = [
        peer("nginx, no auth", |address| peers::nginx_proxy(folder, address, origin.address))?,
        peer("HAProxy, no auth", |address| peers::haproxy(folder, address, origin.address, None))?,
        peer("HAProxy, RS256", |address| peers::haproxy(folder, address, origin.address, key))?,
        peer("Pingora, empty", |address| peers::passthrough(address, origin.address))?,
        postern("Postern, all on", &Postern::default(), bench, origin)?,
    ];
    let token = origin.signer.token(&origin.issuer, 1)?;
    let question = Question { path: PATH, token: &token, body: ANSWER };
    let bearer = format!("Bearer {token}");
    let script = headers_script("GET", &[("Authorization", &bearer)], "");
    let load = Wrk { connections: 64, seconds: bench.pick(2, 6), script };
    let rows = rounds::measure(bench, "cost", &peers, &question, &load, bench.pick(3, 5))?;
    report.sheets.push(rounds::sheet("CPU per request, the same token each time", &rows));
    report.rounds["cost"] = rounds::json(&rows);
    if let [nginx, _, verified, empty, postern] = rows.as_slice() {
        let all = "all on: 100 routes, RS256 token (seen before), policy, identity headers, limits, metrics, access log";
        let mut ratio = |against: &str, bound, value| {
            report.figures.push(Figure::number(&format!("{all}: {against}"), bound, value, " ×"));
        };
        ratio("over an empty Pingora", Bound::AtMost(1.0), postern.cost() / empty.cost());
        ratio("over nginx without auth", Bound::AtMost(1.35), postern.cost() / nginx.cost());
        ratio("cheaper than HAProxy RS256", Bound::AtLeast(2.0), verified.cost() / postern.cost());
        failures("all on", &rows, report);
    }
    Ok(())
}

/// No token twice within the memory of the cache.
pub(super) fn every_token_new(bench: &Bench, origin: &Origin, report: &mut Report) -> io::Result<()> {
    let (folder, key) = (bench.folder(), Some(origin.signer.public_pem.as_str()));
    let how = Postern { tokens: SMALL_CACHE, ..Postern::default() };
    let peers = [
        peer("HAProxy, RS256", |address| peers::haproxy(folder, address, origin.address, key))?,
        postern("Postern, no cache hit", &how, bench, origin)?,
    ];
    let tokens: Vec<String> = (10..10 + NEW_TOKENS)
        .map(|serial| origin.signer.token(&origin.issuer, serial))
        .collect::<Result<_, _>>()?;
    let file = folder.join("tokens");
    fs::write(&file, tokens.join("\n"))?;
    let question = Question { path: PATH, token: &tokens[0], body: ANSWER };
    let load = Wrk { connections: 64, seconds: bench.pick(2, 6), script: tokens_script(&file, PATH) };
    let rows = rounds::measure(bench, "every token new", &peers, &question, &load, bench.pick(3, 5))?;
    report.sheets.push(rounds::sheet("CPU per request, every token new", &rows));
    report.rounds["everyTokenNew"] = rounds::json(&rows);
    if let [verified, postern] = rows.as_slice() {
        let what = "every token new (no cache hit): over HAProxy RS256";
        report.figures.push(Figure::number(what, Bound::AtMost(1.0), postern.cost() / verified.cost(), " ×"));
        failures("every token new", &rows, report);
    }
    Ok(())
}

/// What the second worker costs. Two workers, the load and the origin do not fit on two cores, so that throughput
/// would tell of them and not of the gateway: as long as a request costs no more CPU with two workers than with one,
/// two cores carry twice as much.
pub(super) fn two_workers(bench: &Bench, origin: &Origin, report: &mut Report) -> io::Result<()> {
    let two = Postern { workers: 2, ..Postern::default() };
    let peers = [
        postern("one worker", &Postern::default(), bench, origin)?,
        postern("two workers", &two, bench, origin)?,
    ];
    let token = origin.signer.token(&origin.issuer, 1)?;
    let question = Question { path: PATH, token: &token, body: ANSWER };
    let bearer = format!("Bearer {token}");
    let script = headers_script("GET", &[("Authorization", &bearer)], "");
    let load = Wrk { connections: 64, seconds: bench.pick(2, 6), script };
    let rows = rounds::measure(bench, "workers", &peers, &question, &load, bench.pick(3, 5))?;
    report.sheets.push(rounds::sheet("Workers", &rows));
    report.rounds["workers"] = rounds::json(&rows);
    if let [one, two] = rows.as_slice() {
        let value = 2.0 * one.cost() / two.cost();
        let figure = Figure::number("two worker threads over one", Bound::AtLeast(1.8), value, " ×");
        report.figures.push(figure.noting("from CPU per request: load and origin share the two cores"));
    }
    Ok(())
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
