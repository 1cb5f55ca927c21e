//! The program `postern-console`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use postern_common::config::{Env, load};
use postern_common::exit::{Exit, parse_arguments};
use postern_common::http::bind;
use postern_common::{Clock, log};
use postern_console::{App, Config};

/// The allocator of all programs of this workspace; see `main.rs` of the gateway for the reason.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The web console for operators, support and developers.
#[derive(Debug, Parser)]
#[command(version)]
struct CommandLine {
    /// The configuration file.
    #[arg(long, global = true, default_value = "conf/console.toml")]
    config: PathBuf,
    #[command(subcommand)]
    command: Option<Subcommand>,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// Prints the JSON schema of the configuration, for editors.
    Schema,
}

/// The JSON schema of the configuration. A test makes it from what the readers accept.
const SCHEMA: &str = include_str!("../console.schema.json");

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
    log::init("postern-console", config.log.format, &config.log.filter);
    let listener = bind(config.listen).await?;
    let shutdown = postern_common::signals::on_termination()
        .map_err(|error| Exit::unavailable(format!("cannot install signal handlers: {error}")))?;
    let address = config.listen;
    let app = App::build(config, Clock::system())?;
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(%address, version, config_file = %arguments.config.display(), "listening");
    app.run(listener, shutdown).await;
    tracing::info!("process stopped");
    Ok(())
}
