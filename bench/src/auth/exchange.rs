use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::service::AuthService;
use crate::bench::BenchRun;
use crate::figure::{Bound, TargetFigure};
use crate::http;
use crate::load::WrkLoad;
use crate::redis;
use crate::report::{BenchReport, ReportTable, median, progress, ranged};

/// Redis script that copies all keys, to be restored after the tokens have been exchanged.
const COPY_KEYS_SCRIPT: &str = "local n = 0; for _, k in ipairs(redis.call('keys', 'postern:*')) do \
                    redis.call('copy', k, 'kept:' .. k, 'replace'); n = n + 1 end; return n";

const RESTORE_KEYS_SCRIPT: &str = "local n = 0; for _, k in ipairs(redis.call('keys', 'kept:*')) do \
                       redis.call('copy', k, string.sub(k, 6), 'replace'); n = n + 1 end; return n";

const DELETE_COPIES_SCRIPT: &str = "local n = 0; for _, k in ipairs(redis.call('keys', 'kept:*')) do redis.call('del', k); n = n + 1 end; return n";

/// Users who sign in, each in a separate browser, because concurrent sign-ins of one user wait for
/// each other. Each sign-in makes the pool hash twice.
const USERS: [&str; 2] = ["ada", "grace"];

/// Measures the exchange of temporary tokens of real social sign-ins, each exchanged once per
/// round.
pub(super) fn once_each(
    bench: &BenchRun,
    service: &AuthService,
    report: &mut BenchReport,
) -> io::Result<()> {
    // A temporary token is valid for five minutes, so sign-ins are limited to two.
    let duration = Duration::from_secs(bench.pick(30, 120));
    progress(&format!(
        "temporary tokens: {} s of sign-ins",
        duration.as_secs()
    ));
    let bodies: io::Result<Vec<Vec<String>>> = std::thread::scope(|scope| {
        let browsers: Vec<_> = USERS
            .map(|person| scope.spawn(move || sign_ins(service, person, duration)))
            .into();
        let joined = browsers
            .into_iter()
            .map(std::thread::ScopedJoinHandle::join);
        joined
            .map(|end| end.map_err(|_| io::Error::other("a sign-in thread panicked"))?)
            .collect()
    });
    let bodies = bodies?.concat();
    let count = bodies.len();
    let file = bench.folder().join("temporary-tokens");
    fs::write(&file, bodies.join("\n"))?;
    redis::eval(&service.redis, COPY_KEYS_SCRIPT)?;
    let (mut rates, mut costs, mut failed) = (Vec::new(), Vec::new(), 0);
    let rounds = bench.pick(9, 25);
    for round in 1..=rounds {
        progress(&format!("exchange: round {round} of {rounds}"));
        redis::eval(&service.redis, RESTORE_KEYS_SCRIPT)?;
        // The duration is an upper bound: the script stops when every token has been sent, and
        // reports the time.
        let load = WrkLoad {
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
    redis::eval(&service.redis, DELETE_COPIES_SCRIPT)?;
    progress("");
    let burst_ms = count as f64 / median(&rates) * 1e3;
    report.sheets.push(ReportTable {
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
    let figure = TargetFigure::number(
        "temporary token exchange, Redis",
        Bound::AtLeast(15_000.0),
        median(&rates),
        "/s",
    );
    report.figures.push(figure);
    report.figures.push(TargetFigure::number(
        "temporary token exchange: refused",
        Bound::AtMost(0.0),
        failed as f64,
        "",
    ));
    report.rounds["exchange"] = json!({"perSecond": rates, "cpuUs": costs});
    Ok(())
}

/// Signs in repeatedly for `duration` and returns the bodies of the exchanges.
fn sign_ins(service: &AuthService, person: &str, duration: Duration) -> io::Result<Vec<String>> {
    let (began, mut bodies) = (Instant::now(), Vec::new());
    while began.elapsed() < duration {
        bodies.push(format!(
            "{{\"temporaryToken\":\"{}\"}}",
            sign_in(service, person)?
        ));
    }
    Ok(bodies)
}

/// Returns a script that sends each body once and then stops. It measures its own time, because
/// `wrk` runs for the whole configured duration.
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

/// Performs one social sign-in as a browser does and returns the temporary token.
fn sign_in(service: &AuthService, person: &str) -> io::Result<String> {
    let provider = service.address_of("POSTERN_SOCIAL_URL")?;
    let to = |answer: http::HttpResponse| -> io::Result<String> {
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
    let chosen = to(http::HttpClient::connect(provider)?.send("POST", path, &headers, &form)?)?;
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

/// Returns the path of a URL.
fn path_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').map_or("/", |at| &rest[at..])
}
