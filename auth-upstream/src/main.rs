//! The program `postern-auth`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use postern_auth::{App, Config};
use postern_common::config::{Env, load};
use postern_common::exit::{Exit, parse_arguments};
use postern_common::startup::ServiceProcess;
use postern_common::{Clock, log};

/// The allocator of all programs of this workspace; see `main.rs` of the gateway for the reason.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The authentication upstream: sign-in, registration, social sign-in and tokens.
#[derive(Debug, Parser)]
#[command(version)]
struct CommandLine {
    /// The configuration file.
    #[arg(long, global = true, default_value = "conf/auth.toml")]
    config: PathBuf,
    #[command(subcommand)]
    command: Option<Subcommand>,
}

#[derive(Clone, Copy, Debug, clap::Subcommand)]
enum Subcommand {
    /// Checks pools, app clients, keys, clock and stores, and reports configuration errors.
    Check,
    /// Prints the JSON schema of the configuration, for editors.
    Schema,
}

/// The JSON schema of the configuration. A test makes it from what the readers accept.
const SCHEMA: &str = include_str!("../auth.schema.json");

#[tokio::main]
async fn main() -> ExitCode {
    match parse_arguments() {
        Ok(arguments) => Exit::report(Box::pin(run(arguments)).await),
        Err(code) => code,
    }
}

async fn run(arguments: CommandLine) -> Result<(), Exit> {
    if let Some(Subcommand::Schema) = arguments.command {
        // Standard output may be closed early, for instance by `head`.
        let _closed = std::io::stdout().write_all(SCHEMA.as_bytes());
        return Ok(());
    }
    let env = Env::of_process();
    let config = load(&arguments.config, |root| Config::read(root, &env))?;
    if let Some(Subcommand::Check) = arguments.command {
        return Box::pin(check(config)).await;
    }
    log::init(config.log.format, &config.log.filter);
    let addresses = [config.listen, config.admin.address];
    let Some(process) =
        ServiceProcess::start("postern-auth", &config.database, addresses, &env).await?
    else {
        return Ok(());
    };
    let app = Box::pin(App::build(config, Clock::system())).await?;
    let (listeners, shutdown) = process.run_with(app.health());
    Box::pin(app.run(listeners, shutdown)).await;
    Ok(())
}

async fn check(config: Config) -> Result<(), Exit> {
    let app = Box::pin(App::build(config, Clock::system())).await?;
    let results = app.check().await;
    let mut out = std::io::stdout().lock();
    for result in &results {
        // Standard output may be closed early, for instance by `head`.
        let _closed = writeln!(out, "{result}");
    }
    match results.iter().filter(|result| result.is_fault()).count() {
        0 => Ok(()),
        faults => Err(Exit::unavailable(format!(
            "{faults} of {} checks failed",
            results.len()
        ))),
    }
}
