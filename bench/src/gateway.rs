//! CPU per request of each proxy under the same load, in interleaved rounds.

use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;

use crate::load::wrk;
use crate::peers;
use crate::process::{Process, free_address};
use crate::report::{self, Row};
use crate::token::Signer;

/// One proxy under test.
struct Peer {
    name: &'static str,
    address: SocketAddr,
    process: Process,
}

/// Runs the table.
pub(crate) fn measure(quick: bool, binaries: &Path, results: &Path) -> io::Result<()> {
    let folder = std::env::temp_dir().join(format!("postern-bench-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let outcome = measure_in(&folder, quick, binaries, results);
    fs::remove_dir_all(&folder)?;
    outcome
}

fn measure_in(folder: &Path, quick: bool, binaries: &Path, results: &Path) -> io::Result<()> {
    let signer = Signer::generate()?;
    let origin_address = free_address()?;
    let issuer = format!("http://{origin_address}/pool");
    let _origin = peers::origin(folder, origin_address, &signer)?;
    let peers = start(folder, origin_address, &signer, &issuer, binaries)?;
    let token = signer.token(&issuer, 1)?;
    let (rounds, seconds) = if quick { (2, 2) } else { (5, 6) };
    let mut rows: Vec<Row> = peers
        .iter()
        .map(|peer| Row {
            name: peer.name,
            cpu_us: Vec::new(),
            per_second: Vec::new(),
            failed: 0,
            resident_kib: 0,
        })
        .collect();
    for round in 1..=rounds {
        for (peer, row) in peers.iter().zip(&mut rows) {
            write!(io::stderr(), "\rround {round} of {rounds}: {:24}", peer.name)?;
            wrk(peer.address, peers::PATH, &token, 1)?;
            let before = peer.process.cpu_ns()?;
            let seen = wrk(peer.address, peers::PATH, &token, seconds)?;
            let spent = peer.process.cpu_ns()? - before;
            row.cpu_us.push(spent as f64 / 1000.0 / seen.requests as f64);
            row.per_second.push(seen.per_second);
            row.failed += seen.failed;
            row.resident_kib = peer.process.resident_kib()?;
        }
    }
    writeln!(io::stderr())?;
    report::write("gateway", "Gateway: CPU per request", &rows, results)
}

fn start(
    folder: &Path,
    origin: SocketAddr,
    signer: &Signer,
    issuer: &str,
    binaries: &Path,
) -> io::Result<Vec<Peer>> {
    let mut started = Vec::new();
    let mut add = |name, start: &dyn Fn(SocketAddr) -> io::Result<Process>| -> io::Result<()> {
        let address = free_address()?;
        started.push(Peer { name, address, process: start(address)? });
        Ok(())
    };
    add("nginx, no auth", &|address| peers::nginx_proxy(folder, address, origin))?;
    add("HAProxy, no auth", &|address| peers::haproxy(folder, address, origin, None))?;
    add("HAProxy, RS256", &|address| peers::haproxy(folder, address, origin, Some(&signer.public_pem)))?;
    add("Pingora, empty", &|address| peers::passthrough(address, origin))?;
    add("Postern, all on", &|address| peers::postern(folder, address, origin, issuer, binaries))?;
    Ok(started)
}
