//! The program `postern-console`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use postern_console::{App, Config};
use postern_core::Clock;
use postern_core::check::{CheckArguments, CheckResult};
use postern_core::config::{Env, load};
use postern_core::exit::{Exit, run_command};
use postern_core::output::{Output, print_line};
use postern_service::http::bind;
use postern_service::log;
use postern_service::startup::ConfigOrigin;

/// The allocator of all programs of this workspace; see `main.rs` of the gateway for the reason.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The web console for operators, support and developers.
#[derive(Debug, Parser)]
#[command(version)]
#[command(after_help = "Example:\n  postern-console --config /etc/postern/console.toml")]
struct CommandLine {
    /// The configuration file.
    #[arg(long, global = true, default_value = "conf/console.toml")]
    config: PathBuf,
    #[command(subcommand)]
    command: Option<Subcommand>,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// Run the console (default).
    #[command(after_help = "Example:\n  postern-console run --config /etc/postern/console.toml")]
    Run,
    /// Check the configuration. No process is called.
    #[command(
        after_help = "Examples:\n  postern-console check conf/console.toml\n  postern-console check --json"
    )]
    Check {
        #[command(flatten)]
        arguments: CheckArguments,
        /// Print JSON, one object per line.
        #[arg(long)]
        json: bool,
    },
    /// Print a one-time link that signs in as operator, also without a gateway. For root and the user of
    /// the console.
    #[command(after_help = "Example:\n  postern-console link")]
    Link {
        /// The file that the running console has written (`sign_in.link_file`).
        #[arg(long, default_value = "/run/postern-console/link")]
        file: PathBuf,
    },
    /// Print the JSON schema of the configuration, for editors.
    #[command(after_help = "Example:\n  postern-console schema > console.schema.json")]
    Schema,
}

/// The JSON schema of the configuration. A test makes it from what the readers accept.
const SCHEMA: &str = include_str!("../console.schema.json");

#[tokio::main]
async fn main() -> ExitCode {
    run_command(run).await
}

async fn run(arguments: CommandLine) -> Result<(), Exit> {
    match arguments.command {
        None | Some(Subcommand::Run) => Box::pin(serve(&arguments.config)).await,
        Some(Subcommand::Check {
            arguments: check,
            json,
        }) => {
            let path = check.file(&arguments.config);
            let good = format!("{}: good", path.display());
            let good = read(path).map(|_| vec![CheckResult::passed("configuration", good)]);
            check.report(good, Output { json })
        }
        Some(Subcommand::Link { file }) => {
            let link = postern_console::link::request(&file).await?;
            print_line(link.expose())
        }
        Some(Subcommand::Schema) => print_line(SCHEMA.trim_end()),
    }
}

fn read(path: &Path) -> Result<Config, Exit> {
    load(path, |root| Config::read(root, &Env::of_process()))
}

async fn serve(path: &Path) -> Result<(), Exit> {
    let shutdown = postern_service::signals::install()?;
    let config = read(path)?;
    log::init("postern-console", config.log.format, &config.log.filter);
    let listener = bind(config.listen).await?;
    ConfigOrigin::of_file(path).log_hangups();
    let address = config.listen;
    let app = App::build(config, Clock::system())?;
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(%address, version, config_file = %path.display(), "listening");
    app.run(listener, shutdown).await;
    tracing::info!("process stopped");
    Ok(())
}

#[cfg(test)]
mod tests {
    use postern_core::testing::assert_commands_documented;

    use super::*;

    #[test]
    fn every_command_has_a_text_and_an_example() {
        assert_commands_documented::<CommandLine>();
    }
}
