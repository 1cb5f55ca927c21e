//! `bench/run memory`: resident memory of the gateway and its peers: idle, by idle connection, with many tokens.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::json;

use crate::bench::{Bench, Origin};
use crate::figure::{Bound, Figure, short};
use crate::host;
use crate::load::{Wrk, tokens_script};
use crate::peers::{self, PATH, Postern};
use crate::process::{Process, free_address};
use crate::report::{Report, Sheet, progress};
use crate::rounds::Peer;

/// Idle connections that are opened to each peer.
const CONNECTIONS: usize = 4_000;

/// Tokens that are remembered.
const TOKENS: u64 = 100_000;

/// Runs the table.
pub(crate) fn measure(bench: &Bench) -> io::Result<Report> {
    let mut report = Report::new("memory", "Memory", bench.quick);
    report.notes.push(format!("{}; {}.", host::line("nginx", &["-v"]), host::line("haproxy", &["-v"])));
    let origin = bench.origin()?;
    connections(bench, &origin, &mut report)?;
    tokens(bench, &origin, &mut report)?;
    Ok(report)
}

fn connections(bench: &Bench, origin: &Origin, report: &mut Report) -> io::Result<()> {
    let folder = bench.folder();
    let peer = |name, start: &dyn Fn(SocketAddr) -> io::Result<Process>| -> io::Result<Peer> {
        let address = free_address()?;
        Ok(Peer { name, address, process: start(address)? })
    };
    let gateway = Postern::default().start(bench, origin)?;
    let peers = [
        peer("nginx, no auth", &|address| peers::nginx_proxy(folder, address, origin.address))?,
        peer("HAProxy, no auth", &|address| peers::haproxy(folder, address, origin.address, None))?,
        peer("Pingora, empty", &|address| peers::passthrough(address, origin.address))?,
        Peer { name: "Postern, all on", address: gateway.address, process: gateway.process },
    ];
    let token = origin.signer.token(&origin.issuer, 1)?;
    let mut rows = Vec::new();
    let mut ours = (f64::NAN, f64::NAN);
    for peer in &peers {
        progress(&format!("memory: {} with {CONNECTIONS} idle connections", peer.name));
        let idle = peer.process.resident_kib()? as f64 / 1024.0;
        // The first requests make what is made once: pools, caches, buffers of threads.
        let warm = open(peer.address, 200, &token)?;
        let before = peer.process.resident_kib()?;
        let held = open(peer.address, CONNECTIONS, &token)?;
        let each = peer.process.resident_kib()?.saturating_sub(before) as f64 / CONNECTIONS as f64;
        drop((warm, held));
        rows.push(vec![peer.name.to_owned(), format!("{idle:.1}"), format!("{each:.1}")]);
        ours = (idle, each);
    }
    progress("");
    report.rounds["memory"] = json!(rows);
    report.sheets.push(Sheet {
        title: format!("Resident memory; {CONNECTIONS} idle connections that have asked once"),
        columns: vec!["peer", "idle, MiB", "per idle connection, KiB"],
        rows,
    });
    report.figures.push(Figure::number("memory: idle", Bound::AtMost(30.0), ours.0, " MiB"));
    report.figures.push(Figure::number("memory: per idle connection", Bound::AtMost(16.0), ours.1, " KiB"));
    Ok(())
}

/// Opens so many connections, asks once on each and reads the answer.
fn open(address: SocketAddr, count: usize, token: &str) -> io::Result<Vec<TcpStream>> {
    let request = format!("GET {PATH} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n");
    let mut space = [0; 4096];
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(request.as_bytes())?;
        let mut read = 0;
        while !space[..read].ends_with(peers::ANSWER.as_bytes()) {
            match stream.read(&mut space[read..])? {
                0 => return Err(io::Error::other("a connection was closed")),
                bytes => read += bytes,
            }
        }
        all.push(stream);
    }
    Ok(all)
}

/// So many different tokens, each seen once. They are signed by Ed25519, for 100,000 RSA signatures take minutes, and
/// made as long as RS256 makes them.
fn tokens(bench: &Bench, origin: &Origin, report: &mut Report) -> io::Result<()> {
    progress(&format!("memory: {TOKENS} tokens are signed"));
    let made: Vec<String> = (0..TOKENS)
        .map(|serial| origin.signer.cheap_token(&origin.issuer, serial))
        .collect::<Result<_, _>>()?;
    let file = bench.folder().join("many-tokens");
    fs::write(&file, made.join("\n"))?;
    let how = Postern { tokens: "cache_bytes = \"256MiB\"", ..Postern::default() };
    let gateway = how.start(bench, origin)?;
    let script = tokens_script(&file, PATH);
    let load = Wrk { connections: 32, seconds: 5, script };
    let cached = |name: &str| -> io::Result<f64> {
        let answer = crate::http::once(gateway.admin, "GET", "/metrics", &[], "")?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let line =
            text.lines().find(|line| line.starts_with(&format!("postern_token_cache{{unit=\"{name}\"")));
        Ok(line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(f64::NAN))
    };
    let (mut asked, mut seconds) = (0, 5);
    while asked < TOKENS * 11 / 10 {
        progress(&format!("memory: {asked} of {TOKENS} tokens are shown"));
        if seconds > 60 {
            return Err(io::Error::other(format!("only {asked} of {TOKENS} tokens could be shown")));
        }
        // Each run begins at the first token again: those that are remembered go by quickly.
        asked = load.lasting(seconds).run(bench.folder(), gateway.address, PATH)?.requests;
        seconds *= 2;
    }
    // The gauges are brought up to date from time to time.
    std::thread::sleep(Duration::from_secs(6));
    progress("");
    let resident = gateway.process.resident_kib()? as f64 / 1024.0;
    let figure = Figure::number("memory: with 100,000 tokens cached", Bound::AtMost(120.0), resident, " MiB");
    report.figures.push(figure.noting(&format!("{} in the cache", short(cached("entries")?))));
    Ok(())
}
