//! `postern-bench`: the tables of `bench/README.md`, each made by one command, side by side with
//! the peers.
//!
//! `bench/run` builds everything and installs the peers first; run that.

mod auth;
mod bench;
mod figure;
mod gateway;
mod host;
mod http;
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

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::bench::{Bench, Settings};
use crate::report::Report;

/// The same as the programs under test have: the empty pass-through is to be built alike.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(about = "Measures Postern side by side with its peers")]
struct Arguments {
    #[command(subcommand)]
    table: Table,
}

#[derive(Subcommand)]
enum Table {
    /// The gateway beside nginx, HAProxy and an empty Pingora pass-through.
    Gateway(Settings),
    /// The notification upstream beside pgbench, graphile-worker and pg-boss.
    Notify(Settings),
    /// The authentication upstream, and cold starts of every process.
    Auth(Settings),
    /// Memory: idle, by idle connection, with many tokens cached.
    Memory(Settings),
    /// The empty Pingora pass-through itself (started by `gateway`).
    Passthrough {
        /// Where it listens.
        #[arg(long)]
        listen: SocketAddr,
        /// Where it forwards to.
        #[arg(long)]
        origin: SocketAddr,
    },
}

#[expect(
    clippy::print_stderr,
    reason = "a command-line tool tells its failure to its terminal"
)]
fn main() -> ExitCode {
    let outcome = match Arguments::parse().table {
        Table::Gateway(settings) => run(&settings, gateway::measure),
        Table::Notify(settings) => run(&settings, notify::measure),
        Table::Auth(settings) => run(&settings, auth::measure),
        Table::Memory(settings) => run(&settings, memory::measure),
        Table::Passthrough { listen, origin } => postern_bench::passthrough::run(listen, origin),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("postern-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings, measure: fn(&Bench) -> io::Result<Report>) -> io::Result<()> {
    let bench = Bench::new(settings)?;
    measure(&bench)?.write(&settings.results, bench.only.as_deref())
}
