use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::service::Service;
use crate::bench::Bench;
use crate::figure::{Bound, Figure};
use crate::http;
use crate::load::Wrk;
use crate::redis;
use crate::report::{Report, Sheet, median, progress, ranged};

/// Keeps a copy of everything, to be put back when all tokens have been exchanged.
const KEEP: &str = "local n = 0; for _, k in ipairs(redis.call('keys', 'postern:*')) do \
                    redis.call('copy', k, 'kept:' .. k, 'replace'); n = n + 1 end; return n";

const RESTORE: &str = "local n = 0; for _, k in ipairs(redis.call('keys', 'kept:*')) do \
                       redis.call('copy', k, string.sub(k, 6), 'replace'); n = n + 1 end; return n";

const FORGET: &str = "local n = 0; for _, k in ipairs(redis.call('keys', 'kept:*')) do redis.call('del', k); n = n + 1 end; return n";

/// Who signs in, each in a browser of its own: two sign-ins of one person wait for each other. Each
/// makes the pool hash twice.
const PEOPLE: [&str; 2] = ["ada", "grace"];

/// Temporary tokens of real social sign-ins, each exchanged once a round.
pub(super) fn once_each(bench: &Bench, service: &Service, report: &mut Report) -> io::Result<()> {
    // A temporary token lives for five minutes: what there is after two must do.
    let patience = Duration::from_secs(bench.pick(30, 120));
    progress(&format!(
        "temporary tokens: {} s of sign-ins",
        patience.as_secs()
    ));
    let bodies: io::Result<Vec<Vec<String>>> = std::thread::scope(|scope| {
        let browsers: Vec<_> = PEOPLE
            .map(|person| scope.spawn(move || sign_ins(service, person, patience)))
            .into();
        let joined = browsers
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join);
        joined
            .map(|end| end.map_err(|_| io::Error::other("a browser panicked"))?)
            .collect()
    });
    let bodies = bodies?.concat();
    let count = bodies.len();
    let file = bench.folder().join("temporary-tokens");
    fs::write(&file, bodies.join("\n"))?;
    redis::eval(&service.redis, KEEP)?;
    let (mut rates, mut costs, mut failed) = (Vec::new(), Vec::new(), 0);
    let rounds = bench.pick(9, 25);
    for round in 1..=rounds {
        progress(&format!("exchange: round {round} of {rounds}"));
        redis::eval(&service.redis, RESTORE)?;
        // More time than it takes: the script stops when every token has been sent, and tells when
        // that was.
        let load = Wrk {
            connections: 64,
            seconds: 2,
            script: once(&file),
        };
        let before = service.process.cpu_ns()?;
        let seen = load.run(bench.folder(), service.address, "/auth/tokens/exchange")?;
        costs.push(
            service.process.cpu_ns()?.saturating_sub(before) as f64 / 1e3 / seen.requests as f64,
        );
        rates.push(seen.per_second);
        failed += seen.failed;
    }
    redis::eval(&service.redis, FORGET)?;
    progress("");
    let burst_ms = count as f64 / median(&rates) * 1e3;
    report.sheets.push(Sheet {
        title: format!(
            "Exchange of {count} temporary tokens, each once a round: bursts of {burst_ms:.0} ms"
        ),
        columns: vec![
            "exchanges/s: median (min to max)",
            "CPU service, µs",
            "failed",
        ],
        rows: vec![vec![ranged(&rates), ranged(&costs), failed.to_string()]],
    });
    let figure = Figure::number(
        "temporary token exchange, Redis",
        Bound::AtLeast(15_000.0),
        median(&rates),
        "/s",
    );
    report.figures.push(figure);
    report.figures.push(Figure::number(
        "temporary token exchange: refused",
        Bound::AtMost(0.0),
        failed as f64,
        "",
    ));
    report.rounds["exchange"] = json!({"perSecond": rates, "cpuUs": costs});
    Ok(())
}

/// Signs in again and again for so long; the bodies of the exchanges.
fn sign_ins(service: &Service, person: &str, patience: Duration) -> io::Result<Vec<String>> {
    let (began, mut bodies) = (Instant::now(), Vec::new());
    while began.elapsed() < patience {
        bodies.push(format!(
            "{{\"temporaryToken\":\"{}\"}}",
            sign_in(service, person)?
        ));
    }
    Ok(bodies)
}

/// A script that sends each body once and then stops. Its own clock says how long that took: `wrk`
/// waits for the whole time that it was given.
fn once(file: &Path) -> String {
    format!(
        "local ffi = require('ffi')\n\
         ffi.cdef('typedef struct {{ long s; long us; }} moment; int gettimeofday(moment *, void *);')\n\
         local function now()\n\
         \x20 local at = ffi.new('moment'); ffi.C.gettimeofday(at, nil)\n\
         \x20 return tonumber(at.s) * 1e6 + tonumber(at.us)\n\
         end\n\
         local loader\n\
         setup = function(thread) loader = thread end\n\
         spent_us = function() return loader:get('took') end\n\
         local made, at = {{}}, 0\n\
         init = function()\n\
         \x20 for body in io.lines({:?}) do\n\
         \x20   made[#made + 1] = wrk.format('POST', '/auth/tokens/exchange', {{['Content-Type'] = 'application/json'}}, body)\n\
         \x20 end\n\
         end\n\
         local began\n\
         request = function() began = began or now(); at = at % #made + 1; return made[at] end\n\
         local answers = 0\n\
         response = function()\n\
         \x20 answers = answers + 1\n\
         \x20 if answers + 64 > #made then took = now() - began; wrk.thread:stop() end\n\
         end\n",
        file.display().to_string()
    )
}

/// One social sign-in, as a browser does it; the temporary token.
fn sign_in(service: &Service, person: &str) -> io::Result<String> {
    let provider = service.address_of("POSTERN_SOCIAL_URL")?;
    let to = |answer: http::Answer| -> io::Result<String> {
        let location = answer.header("location").map(str::to_owned);
        location.ok_or_else(|| {
            io::Error::other(format!(
                "no redirect: {}",
                String::from_utf8_lossy(&answer.body)
            ))
        })
    };
    let begin = to(http::once(
        service.address,
        "GET",
        "/auth/social/login",
        &[],
        "",
    )?)?;
    let (path, query) = path_of(&begin).split_once('?').unwrap_or_default();
    let form = format!("{query}&person={person}");
    let length = form.len().to_string();
    let headers = [
        ("Content-Type", "application/x-www-form-urlencoded"),
        ("Content-Length", length.as_str()),
    ];
    let chosen = to(http::Client::connect(provider)?.send("POST", path, &headers, &form)?)?;
    let page = to(http::once(
        service.address,
        "GET",
        path_of(&chosen),
        &[],
        "",
    )?)?;
    let token = page
        .split_once("#temporaryToken=")
        .map(|(_, token)| token.to_owned());
    token.ok_or_else(|| io::Error::other(format!("no temporary token in {page}")))
}

/// What stands behind the authority.
fn path_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').map_or("/", |at| &rest[at..])
}
