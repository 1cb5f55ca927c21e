//! `bench/run memory`: resident memory of the gateway and its peers: idle, per idle connection,
//! with many tokens.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::json;

use crate::bench::{BenchRun, OriginServer};
use crate::figure::{Bound, TargetFigure};
use crate::host;
use crate::http;
use crate::load::{WrkLoad, tokens_script};
use crate::peers::{self, ORIGIN_RESPONSE, PosternSetup, REQUEST_PATH, RunningGateway};
use crate::process::{ChildProcess, free_address};
use crate::report::{BenchReport, ReportTable, median, progress, ranged};
use crate::rounds::{self, BenchPeer, LoadRequest, range};

/// Idle connections opened to each peer.
const IDLE_CONNECTIONS: usize = 4_000;

/// Cached tokens.
const CACHED_TOKENS: u64 = 100_000;

/// Number of starts, because the memory that an allocator retains varies from start to start.
const PROCESS_STARTS: usize = 3;

/// Measures the table.
pub(crate) fn measure(bench: &BenchRun) -> io::Result<BenchReport> {
    let mut report = BenchReport::new("memory", "Memory", bench.quick);
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

/// The measurements of one peer, by start.
struct MemoryRow {
    name: &'static str,
    idle_mib: Vec<f64>,
    each_kib: Vec<f64>,
}

fn connections(
    bench: &BenchRun,
    origin: &OriginServer,
    report: &mut BenchReport,
) -> io::Result<()> {
    let token = origin.signer.token(&origin.issuer, 1)?;
    let starts = bench.pick(1, PROCESS_STARTS);
    let mut rows: Vec<MemoryRow> = Vec::new();
    for start in 1..=starts {
        for (at, peer) in peers(bench, origin)?.iter().enumerate() {
            let what = format!("{} with {IDLE_CONNECTIONS} idle connections", peer.name);
            progress(&format!("memory: start {start} of {starts}: {what}"));
            let (idle, each) = measure_memory(peer, &token)?;
            if rows.len() == at {
                rows.push(MemoryRow {
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
    let json = |row: &MemoryRow| json!({"name": row.name, "idleMib": row.idle_mib, "perConnectionKib": row.each_kib});
    report.rounds["connections"] = rows.iter().map(json).collect();
    let cells = |row: &MemoryRow| {
        vec![
            row.name.to_owned(),
            ranged(&row.idle_mib),
            ranged(&row.each_kib),
        ]
    };
    report.sheets.push(ReportTable {
        title: format!(
            "Resident memory; {IDLE_CONNECTIONS} idle connections that have asked once; {starts} starts"
        ),
        columns: vec!["peer", "idle, MiB", "per idle connection, KiB"],
        rows: rows.iter().map(cells).collect(),
    });
    if let Some(ours) = rows.last() {
        let idle = TargetFigure::number(
            "memory: idle",
            Bound::AtMost(30.0),
            median(&ours.idle_mib),
            " MiB",
        );
        report.figures.push(idle.noting(&range(&ours.idle_mib)));
        let each = median(&ours.each_kib);
        let each = TargetFigure::number(
            "memory: per idle connection",
            Bound::AtMost(16.0),
            each,
            " KiB",
        );
        report.figures.push(each.noting(&range(&ours.each_kib)));
    }
    Ok(())
}

/// Starts all peers, the gateway last.
fn peers(bench: &BenchRun, origin: &OriginServer) -> io::Result<[BenchPeer; 4]> {
    let folder = bench.folder();
    let peer =
        |name, start: &dyn Fn(SocketAddr) -> io::Result<ChildProcess>| -> io::Result<BenchPeer> {
            let address = free_address()?;
            Ok(BenchPeer {
                name,
                address,
                process: start(address)?,
            })
        };
    let gateway = PosternSetup::default().start(bench, origin)?;
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
        BenchPeer {
            name: "Postern, all on",
            address: gateway.address,
            process: gateway.process,
        },
    ])
}

/// Measures MiB when idle, and KiB per idle connection.
fn measure_memory(peer: &BenchPeer, token: &str) -> io::Result<(f64, f64)> {
    let idle = peer.process.resident_kib()? as f64 / 1024.0;
    // The first requests allocate pools, caches and thread buffers once.
    let warm = open(peer.address, 200, token)?;
    let before = peer.process.resident_kib()?;
    let held = open(peer.address, IDLE_CONNECTIONS, token)?;
    let each = peer.process.resident_kib()?.saturating_sub(before) as f64 / IDLE_CONNECTIONS as f64;
    drop((warm, held));
    Ok((idle, each))
}

/// Opens connections, and sends one request on each.
fn open(address: SocketAddr, count: usize, token: &str) -> io::Result<Vec<TcpStream>> {
    let request = format!(
        "GET {REQUEST_PATH} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    let mut space = [0; 4096];
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(request.as_bytes())?;
        let mut read = 0;
        while !space[..read].ends_with(ORIGIN_RESPONSE.as_bytes()) {
            match stream.read(&mut space[read..])? {
                0 => return Err(io::Error::other("a connection was closed")),
                bytes => read += bytes,
            }
        }
        all.push(stream);
    }
    Ok(all)
}

/// Measures many different tokens, each verified once. They are signed with Ed25519, because
/// 100,000 RSA signatures take minutes, and padded to the length of RS256 tokens.
fn tokens(bench: &BenchRun, origin: &OriginServer, report: &mut BenchReport) -> io::Result<()> {
    progress(&format!("memory: {CACHED_TOKENS} tokens are signed"));
    let made: Vec<String> = (0..CACHED_TOKENS)
        .map(|serial| origin.signer.cheap_token(&origin.issuer, serial))
        .collect::<Result<_, _>>()?;
    let file = bench.folder().join("many-tokens");
    fs::write(&file, made.join("\n"))?;
    let load = WrkLoad {
        connections: 32,
        seconds: 5,
        script: tokens_script(&file, REQUEST_PATH),
    };
    let question = LoadRequest {
        path: REQUEST_PATH,
        token: &made[0],
        body: ORIGIN_RESPONSE,
    };
    let (mut resident, mut entries, mut failed) = (Vec::new(), Vec::new(), 0);
    for _ in 0..bench.pick(1, PROCESS_STARTS) {
        let how = PosternSetup {
            tokens: "cache_bytes = \"256MiB\"",
            ..PosternSetup::default()
        };
        let gateway = how.start(bench, origin)?;
        failed += send_tokens(bench, &gateway, &question, &load)?;
        // The gauges are updated periodically.
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

/// Sends all tokens and returns the number of failed requests.
fn send_tokens(
    bench: &BenchRun,
    gateway: &RunningGateway,
    question: &LoadRequest<'_>,
    load: &WrkLoad,
) -> io::Result<u64> {
    let answer_bytes = question.answer_bytes("Postern, all on", gateway.address)?;
    let (mut asked, mut failed, mut seconds) = (0, 0, load.seconds);
    while asked < CACHED_TOKENS * 11 / 10 {
        progress(&format!(
            "memory: {asked} of {CACHED_TOKENS} tokens are shown"
        ));
        if seconds > 60 {
            return Err(io::Error::other(format!(
                "only {asked} of {CACHED_TOKENS} tokens could be shown"
            )));
        }
        // Each run begins at the first token again; cached ones are fast.
        let seen = load
            .lasting(seconds)
            .run(bench.folder(), gateway.address, REQUEST_PATH)?;
        let seen = seen.hold_to(answer_bytes, load.connections);
        asked = seen.requests;
        failed += seen.failed;
        seconds *= 2;
    }
    Ok(failed)
}

/// Returns the number of cached tokens, from the gateway's metrics.
fn cached(gateway: &RunningGateway) -> io::Result<f64> {
    let answer = http::once(gateway.admin, "GET", "/metrics", &[], "")?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let line = text
        .lines()
        .find(|line| line.starts_with("postern_token_cache{unit=\"entries\""));
    Ok(line
        .and_then(|line| line.rsplit(' ').next()?.parse().ok())
        .unwrap_or(f64::NAN))
}
