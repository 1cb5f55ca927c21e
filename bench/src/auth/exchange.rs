use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::service::Service;
use crate::bench::Bench;
use crate::figure::{Bound, Figure, short};
use crate::http;
use crate::load::Wrk;
use crate::redis;
use crate::report::{Report, Sheet, median, progress};

/// Keeps a copy of everything, to be put back when all tokens have been exchanged.
const KEEP: &str = "local n = 0; for _, k in ipairs(redis.call('keys', 'postern:*')) do \
                    redis.call('copy', k, 'kept:' .. k, 'replace'); n = n + 1 end; return n";

const RESTORE: &str = "local n = 0; for _, k in ipairs(redis.call('keys', 'kept:*')) do \
                       redis.call('copy', k, string.sub(k, 6), 'replace'); n = n + 1 end; return n";

const FORGET: &str = "local n = 0; for _, k in ipairs(redis.call('keys', 'kept:*')) do redis.call('del', k); n = n + 1 end; return n";

/// Temporary tokens of real social sign-ins, each exchanged once a round.
pub(super) fn once_each(bench: &Bench, service: &Service, report: &mut Report) -> io::Result<()> {
    let wanted = bench.pick(1_500, 10_000);
    let (mut bodies, mut count, began) = (String::new(), 0, Instant::now());
    // A temporary token lives for five minutes: what there is after two must do.
    while count < wanted && began.elapsed() < Duration::from_secs(120) {
        bodies.push_str(&format!("{{\"temporaryToken\":\"{}\"}}\n", sign_in(service)?));
        count += 1;
        if count % 50 == 0 {
            progress(&format!("temporary tokens: {count} of {wanted} sign-ins"));
        }
    }
    let file = bench.folder().join("temporary-tokens");
    fs::write(&file, bodies)?;
    redis::eval(&service.redis, KEEP)?;
    let (mut rates, mut costs, mut failed) = (Vec::new(), Vec::new(), 0);
    let rounds = bench.pick(5, 9);
    for round in 1..=rounds {
        progress(&format!("exchange: round {round} of {rounds}"));
        redis::eval(&service.redis, RESTORE)?;
        // More time than it takes: the script stops when every token has been sent.
        let load = Wrk { connections: 64, seconds: 20, script: once(&file) };
        let before = service.process.cpu_ns()?;
        let seen = load.run(bench.folder(), service.address, "/auth/tokens/exchange")?;
        costs.push((service.process.cpu_ns()? - before) as f64 / 1e3 / seen.requests as f64);
        rates.push(seen.per_second);
        failed += seen.failed;
    }
    redis::eval(&service.redis, FORGET)?;
    progress("");
    report.sheets.push(Sheet {
        title: format!("Exchange of {count} temporary tokens, each once a round"),
        columns: vec!["exchanges/s", "CPU service, µs", "failed"],
        rows: vec![vec![short(median(&rates)), format!("{:.1}", median(&costs)), failed.to_string()]],
    });
    let figure =
        Figure::number("temporary token exchange, Redis", Bound::AtLeast(15_000.0), median(&rates), "/s");
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

/// A script that sends each body once and then stops.
fn once(file: &Path) -> String {
    format!(
        "local made, at = {{}}, 0\n\
         init = function()\n\
         \x20 for body in io.lines({:?}) do\n\
         \x20   made[#made + 1] = wrk.format('POST', '/auth/tokens/exchange', {{['Content-Type'] = 'application/json'}}, body)\n\
         \x20 end\n\
         end\n\
         request = function() at = at % #made + 1; return made[at] end\n\
         local answers = 0\n\
         response = function() answers = answers + 1; if answers + 64 > #made then wrk.thread:stop() end end\n",
        file.display().to_string()
    )
}

/// One social sign-in, as a browser does it; the temporary token.
fn sign_in(service: &Service) -> io::Result<String> {
    let provider = service.address_of("POSTERN_SOCIAL_URL")?;
    let to = |answer: http::Answer| -> io::Result<String> {
        let location = answer.header("location").map(str::to_owned);
        location.ok_or_else(|| {
            io::Error::other(format!("no redirect: {}", String::from_utf8_lossy(&answer.body)))
        })
    };
    let begin = to(http::once(service.address, "GET", "/auth/social/login", &[], "")?)?;
    let (path, query) = path_of(&begin).split_once('?').unwrap_or_default();
    let form = format!("{query}&person=grace");
    let length = form.len().to_string();
    let headers =
        [("Content-Type", "application/x-www-form-urlencoded"), ("Content-Length", length.as_str())];
    let chosen = to(http::Client::connect(provider)?.send("POST", path, &headers, &form)?)?;
    let page = to(http::once(service.address, "GET", path_of(&chosen), &[], "")?)?;
    let token = page.split_once("#temporaryToken=").map(|(_, token)| token.to_owned());
    token.ok_or_else(|| io::Error::other(format!("no temporary token in {page}")))
}

/// What stands behind the authority.
fn path_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').map_or("/", |at| &rest[at..])
}
