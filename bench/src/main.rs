//! `postern-bench`: the tables of `bench/README.md`, each made by one command, side by side with the peers.
//!
//! `bench/run` builds everything and installs the peers first; run that.

mod gateway;
mod load;
mod passthrough;
mod peers;
mod process;
mod report;
mod token;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Measures Postern side by side with its peers")]
struct Arguments {
    #[command(subcommand)]
    table: Table,
}

#[derive(Subcommand)]
enum Table {
    /// CPU per request of the gateway, nginx, HAProxy and an empty Pingora pass-through.
    Gateway {
        /// Fewer and shorter rounds: to see that it works, not to quote.
        #[arg(long)]
        quick: bool,
        /// Folder with the release binaries.
        #[arg(long)]
        binaries: PathBuf,
        /// Folder that the results go to.
        #[arg(long)]
        results: PathBuf,
    },
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

#[expect(clippy::print_stderr, reason = "a command-line tool tells its failure to its terminal")]
fn main() -> ExitCode {
    let outcome = match Arguments::parse().table {
        Table::Gateway { quick, binaries, results } => gateway::measure(quick, &binaries, &results),
        Table::Passthrough { listen, origin } => passthrough::run(listen, origin),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("postern-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
