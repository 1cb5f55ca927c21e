//! The command line of `postern-test-cluster`.

use std::path::PathBuf;

use clap::Parser;

/// Runs a complete installation under faults and checks that its guarantees hold.
#[derive(Clone, Debug, Parser)]
#[command(name = "tests/cluster", version)]
pub struct Options {
    /// Seed of the schedule of faults and of the requests.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Seconds of requests under faults.
    #[arg(long, default_value_t = 3600)]
    pub seconds: u64,
    /// Mean seconds between two faults.
    #[arg(long, default_value_t = 20)]
    pub interval: u64,
    /// Notifications per second; other requests are proportional to it.
    #[arg(long, default_value_t = 10)]
    pub rate: u32,
    /// Kinds of faults, as named in the output; all if there are none.
    #[arg(long, value_delimiter = ',')]
    pub faults: Vec<String>,
    /// Folder for the history and the logs of the processes, which is kept.
    #[arg(long, default_value = "var/cluster")]
    pub folder: PathBuf,
    /// Checks this history instead of running anything.
    #[arg(long)]
    pub check: Option<PathBuf>,
}
