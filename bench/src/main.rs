//! `postern-bench`: measures each table of `bench/README.md` with one command, side by side with
//! the peers.
//!
//! Run `bench/run`, which builds everything and installs the peers first.

mod auth;
mod bench;
mod edge_origin;
mod figure;
mod gateway;
mod host;
mod http;
mod http2;
mod load;
mod memory;
mod notify;
mod peers;
mod plot;
mod postgres;
mod process;
mod redis;
mod report;
mod rounds;
mod statistics;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use postern_bench::passthrough::{self, TlsListener};

use crate::bench::{BenchRun, BenchSettings};
use crate::report::BenchReport;

/// The same allocator as the programs under test, because this program is the empty pass-through.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(about = "Measures Postern side by side with its peers")]
struct DriverArguments {
    #[command(subcommand)]
    table: BenchTable,
}

#[derive(Subcommand)]
enum BenchTable {
    /// The gateway, compared with nginx, HAProxy and an empty Pingora pass-through.
    Gateway(BenchSettings),
    /// The notification upstream, compared with pgbench, graphile-worker and pg-boss.
    Notify(BenchSettings),
    /// The authentication upstream, and the cold start of every process.
    Auth(BenchSettings),
    /// Memory: idle, per idle connection, with many cached tokens.
    Memory(BenchSettings),
    /// The empty Pingora pass-through (started by `gateway`).
    Passthrough {
        /// Listening address.
        #[arg(long)]
        listen: SocketAddr,
        /// Listening address for TLS.
        #[arg(long)]
        tls: SocketAddr,
        /// Certificate and chain, PEM.
        #[arg(long)]
        certificate: PathBuf,
        /// Its private key, PEM.
        #[arg(long)]
        key: PathBuf,
        /// Address of the origin.
        #[arg(long)]
        origin: SocketAddr,
    },
    /// The origin of the edge loads (started by `gateway`).
    EdgeOrigin {
        /// Listening address.
        #[arg(long)]
        listen: SocketAddr,
    },
}

#[expect(
    clippy::print_stderr,
    reason = "a command-line tool prints its error to standard error"
)]
fn main() -> ExitCode {
    let outcome = match DriverArguments::parse().table {
        BenchTable::Gateway(settings) => run(&settings, gateway::measure),
        BenchTable::Notify(settings) => run(&settings, notify::measure),
        BenchTable::Auth(settings) => run(&settings, auth::measure),
        BenchTable::Memory(settings) => run(&settings, memory::measure),
        BenchTable::Passthrough {
            listen,
            tls,
            certificate,
            key,
            origin,
        } => {
            let tls = TlsListener {
                address: tls,
                certificate: &certificate,
                key: &key,
            };
            passthrough::run(listen, tls, origin)
        }
        BenchTable::EdgeOrigin { listen } => edge_origin::run(listen),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("postern-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(
    settings: &BenchSettings,
    measure: fn(&BenchRun) -> io::Result<BenchReport>,
) -> io::Result<()> {
    let bench = BenchRun::new(settings)?;
    measure(&bench)?.write(&settings.results, &settings.raw, bench.only.as_deref())
}
