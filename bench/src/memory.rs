//! `bench/run memory`: resident memory of the gateway and its peers: idle, by idle connection, with
//! many tokens.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::json;

use crate::bench::{Bench, Origin};
use crate::figure::{Bound, Figure};
use crate::host;
use crate::http;
use crate::load::{Wrk, tokens_script};
use crate::peers::{self, ANSWER, Gateway, PATH, Postern};
use crate::process::{Process, free_address};
use crate::report::{Report, Sheet, median, progress, ranged};
use crate::rounds::{self, Peer, Question, range};

/// Idle connections that are opened to each peer.
const CONNECTIONS: usize = 4_000;

/// Tokens that are remembered.
const TOKENS: u64 = 100_000;

/// Starts of everything: what an allocator keeps differs from one to the next.
const STARTS: usize = 3;

/// Runs the table.
pub(crate) fn measure(bench: &Bench) -> io::Result<Report> {
    let mut report = Report::new("memory", "Memory", bench.quick);
    report.notes.push(format!(
        "{}; {}.",
        host::line("nginx", &["-v"]),
        host::line("haproxy", &["-v"])
    ));
    let origin = bench.origin()?;
    connections(bench, &origin, &mut report)?;
    tokens(bench, &origin, &mut report)?;
    Ok(report)
}

/// The starts of one peer.
struct Row {
    name: &'static str,
    idle_mib: Vec<f64>,
    each_kib: Vec<f64>,
}

fn connections(bench: &Bench, origin: &Origin, report: &mut Report) -> io::Result<()> {
    let token = origin.signer.token(&origin.issuer, 1)?;
    let starts = bench.pick(1, STARTS);
    let mut rows: Vec<Row> = Vec::new();
    for start in 1..=starts {
        for (at, peer) in peers(bench, origin)?.iter().enumerate() {
            let what = format!("{} with {CONNECTIONS} idle connections", peer.name);
            progress(&format!("memory: start {start} of {starts}: {what}"));
            let (idle, each) = weigh(peer, &token)?;
            if rows.len() == at {
                rows.push(Row {
                    name: peer.name,
                    idle_mib: Vec::new(),
                    each_kib: Vec::new(),
                });
            }
            rows[at].idle_mib.push(idle);
            rows[at].each_kib.push(each);
        }
    }
    progress("");
    let json = |row: &Row| json!({"name": row.name, "idleMib": row.idle_mib, "perConnectionKib": row.each_kib});
    report.rounds["connections"] = rows.iter().map(json).collect();
    let cells = |row: &Row| {
        vec![
            row.name.to_owned(),
            ranged(&row.idle_mib),
            ranged(&row.each_kib),
        ]
    };
    report.sheets.push(Sheet {
        title: format!(
            "Resident memory; {CONNECTIONS} idle connections that have asked once; {starts} starts"
        ),
        columns: vec!["peer", "idle, MiB", "per idle connection, KiB"],
        rows: rows.iter().map(cells).collect(),
    });
    if let Some(ours) = rows.last() {
        let idle = Figure::number(
            "memory: idle",
            Bound::AtMost(30.0),
            median(&ours.idle_mib),
            " MiB",
        );
        report.figures.push(idle.noting(&range(&ours.idle_mib)));
        let each = median(&ours.each_kib);
        let each = Figure::number(
            "memory: per idle connection",
            Bound::AtMost(16.0),
            each,
            " KiB",
        );
        report.figures.push(each.noting(&range(&ours.each_kib)));
    }
    Ok(())
}

/// All of them, fresh; the gateway last.
fn peers(bench: &Bench, origin: &Origin) -> io::Result<[Peer; 4]> {
    let folder = bench.folder();
    let peer = |name, start: &dyn Fn(SocketAddr) -> io::Result<Process>| -> io::Result<Peer> {
        let address = free_address()?;
        Ok(Peer {
            name,
            address,
            process: start(address)?,
        })
    };
    let gateway = Postern::default().start(bench, origin)?;
    Ok([
        peer("nginx, no auth", &|address| {
            peers::nginx_proxy(folder, address, origin.address)
        })?,
        peer("HAProxy, no auth", &|address| {
            peers::haproxy(folder, address, origin)
        })?,
        peer("Pingora, empty", &|address| {
            peers::passthrough(address, origin.address)
        })?,
        Peer {
            name: "Postern, all on",
            address: gateway.address,
            process: gateway.process,
        },
    ])
}

/// MiB idle, and KiB by idle connection.
fn weigh(peer: &Peer, token: &str) -> io::Result<(f64, f64)> {
    let idle = peer.process.resident_kib()? as f64 / 1024.0;
    // The first requests make what is made once: pools, caches, buffers of threads.
    let warm = open(peer.address, 200, token)?;
    let before = peer.process.resident_kib()?;
    let held = open(peer.address, CONNECTIONS, token)?;
    let each = peer.process.resident_kib()?.saturating_sub(before) as f64 / CONNECTIONS as f64;
    drop((warm, held));
    Ok((idle, each))
}

/// Opens so many connections, asks once on each and reads the answer.
fn open(address: SocketAddr, count: usize, token: &str) -> io::Result<Vec<TcpStream>> {
    let request =
        format!("GET {PATH} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n");
    let mut space = [0; 4096];
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(request.as_bytes())?;
        let mut read = 0;
        while !space[..read].ends_with(ANSWER.as_bytes()) {
            match stream.read(&mut space[read..])? {
                0 => return Err(io::Error::other("a connection was closed")),
                bytes => read += bytes,
            }
        }
        all.push(stream);
    }
    Ok(all)
}

/// So many different tokens, each seen once. They are signed by Ed25519, for 100,000 RSA signatures
/// take minutes, and made as long as RS256 makes them.
fn tokens(bench: &Bench, origin: &Origin, report: &mut Report) -> io::Result<()> {
    progress(&format!("memory: {TOKENS} tokens are signed"));
    let made: Vec<String> = (0..TOKENS)
        .map(|serial| origin.signer.cheap_token(&origin.issuer, serial))
        .collect::<Result<_, _>>()?;
    let file = bench.folder().join("many-tokens");
    fs::write(&file, made.join("\n"))?;
    let load = Wrk {
        connections: 32,
        seconds: 5,
        script: tokens_script(&file, PATH),
    };
    let question = Question {
        path: PATH,
        token: &made[0],
        body: ANSWER,
    };
    let (mut resident, mut entries, mut failed) = (Vec::new(), Vec::new(), 0);
    for _ in 0..bench.pick(1, STARTS) {
        let how = Postern {
            tokens: "cache_bytes = \"256MiB\"",
            ..Postern::default()
        };
        let gateway = how.start(bench, origin)?;
        failed += show(bench, &gateway, &question, &load)?;
        // The gauges are brought up to date from time to time.
        std::thread::sleep(Duration::from_secs(6));
        resident.push(gateway.process.resident_kib()? as f64 / 1024.0);
        entries.push(cached(&gateway)?);
    }
    progress("");
    report.rounds["tokens"] = json!({"residentMib": resident, "cached": entries, "failed": failed});
    let what = "memory: with 100,000 tokens cached";
    let figure = rounds::figure(
        what,
        Bound::AtMost(120.0),
        median(&resident),
        " MiB",
        failed,
    );
    report.figures.push(figure.noting(&format!(
        "{}; {} in the cache",
        range(&resident),
        ranged(&entries)
    )));
    Ok(())
}

/// Shows all tokens, and tells how many requests failed.
fn show(bench: &Bench, gateway: &Gateway, question: &Question<'_>, load: &Wrk) -> io::Result<u64> {
    let answer_bytes = question.answer_bytes("Postern, all on", gateway.address)?;
    let (mut asked, mut failed, mut seconds) = (0, 0, load.seconds);
    while asked < TOKENS * 11 / 10 {
        progress(&format!("memory: {asked} of {TOKENS} tokens are shown"));
        if seconds > 60 {
            return Err(io::Error::other(format!(
                "only {asked} of {TOKENS} tokens could be shown"
            )));
        }
        // Each run begins at the first token again: those that are remembered go by quickly.
        let seen = load
            .lasting(seconds)
            .run(bench.folder(), gateway.address, PATH)?;
        let seen = seen.hold_to(answer_bytes, load.connections);
        asked = seen.requests;
        failed += seen.failed;
        seconds *= 2;
    }
    Ok(failed)
}

/// Tokens in the cache, by the gateway's own gauge.
fn cached(gateway: &Gateway) -> io::Result<f64> {
    let answer = http::once(gateway.admin, "GET", "/metrics", &[], "")?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let line = text
        .lines()
        .find(|line| line.starts_with("postern_token_cache{unit=\"entries\""));
    Ok(line
        .and_then(|line| line.rsplit(' ').next()?.parse().ok())
        .unwrap_or(f64::NAN))
}
