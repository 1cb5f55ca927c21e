//! The program `postern-auth`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use postern_auth::{App, AuditReader, Config, check_configuration, check_without_database};
use postern_core::Clock;
use postern_core::check::{CheckArguments, CheckResult};
use postern_core::config::{Env, load};
use postern_core::exit::{Exit, run_command};
use postern_core::identity::ASSUMED_IDENTITY;
use postern_core::output::{Output, print_line};
use postern_service::startup::{ConfigOrigin, ServiceProcess};
use postern_service::timeline::TimelineArguments;
use postern_service::{log, signals};
use postern_store::database::{Database, DatabaseOptions};

/// The allocator of all programs of this workspace; see `main.rs` of the gateway for the reason.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The authentication upstream: sign-in, registration, social sign-in and tokens.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example:\n  postern-auth --config /etc/postern/auth.toml"
)]
struct CommandLine {
    /// The configuration file.
    #[arg(long, global = true, default_value = "conf/auth.toml")]
    config: PathBuf,
    #[command(subcommand)]
    command: Option<Subcommand>,
}

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// Run the service (default).
    #[command(after_help = "Example:\n  postern-auth run --config /etc/postern/auth.toml")]
    Run,
    /// Check the configuration, pools, app clients, keys and stores.
    #[command(after_help = CHECK_EXAMPLES)]
    Check {
        #[command(flatten)]
        arguments: CheckArguments,
        /// Call no pool and no store, and check the file without the identity variables.
        #[arg(long)]
        offline: bool,
        /// Print JSON, one object per line.
        #[arg(long)]
        json: bool,
    },
    /// Read the stored audit events.
    #[command(subcommand, after_help = AUDIT_EXAMPLES)]
    Audit(AuditCommand),
    /// Print the JSON schema of the configuration, for editors.
    #[command(after_help = "Example:\n  postern-auth schema > auth.schema.json")]
    Schema,
}

#[derive(Debug, clap::Subcommand)]
enum AuditCommand {
    /// Print the audit events of a person or a request, oldest first: time, operation, outcome,
    /// and what is known of the request. Addresses are stored as keyed hashes only; search for one
    /// with --email.
    #[command(after_help = AUDIT_EXAMPLES)]
    List(TimelineArguments),
}

const CHECK_EXAMPLES: &str = "\
Examples:
  postern-auth check --config /etc/postern/auth.toml
  postern-auth check conf/auth.toml --offline --strict
  postern-auth check --json";

const AUDIT_EXAMPLES: &str = "\
Examples:
  postern-auth audit list --email ada@example.com --since 24h
  postern-auth audit list --user 6f1c7a52-0d0a-4a0e-9c0e-3a8f2f6f8a11 --json
  postern-auth audit list --request 0190f3a2-7c1e-7b6a-8f0e-2f6f8a113a8f
  postern-auth audit list --since 10m";

/// The JSON schema of the configuration. A test makes it from what the readers accept.
const SCHEMA: &str = include_str!("../auth.schema.json");

#[tokio::main]
async fn main() -> ExitCode {
    run_command(run).await
}

async fn run(arguments: CommandLine) -> Result<(), Exit> {
    let path = &arguments.config;
    match arguments.command {
        None | Some(Subcommand::Run) => Box::pin(serve(path)).await,
        Some(Subcommand::Check {
            arguments,
            offline,
            json,
        }) => {
            let results = Box::pin(check(arguments.file(path), offline)).await;
            arguments.report(results, Output { json })
        }
        Some(Subcommand::Audit(AuditCommand::List(arguments))) => {
            let config = read(path, &Env::of_process())?;
            Box::pin(list_audit_events(config, &arguments)).await
        }
        Some(Subcommand::Schema) => print_line(SCHEMA.trim_end()),
    }
}

fn read(path: &Path, env: &Env) -> Result<Config, Exit> {
    load(path, |root| Config::read(root, env))
}

async fn serve(path: &Path) -> Result<(), Exit> {
    let (env, shutdown) = (Env::of_process(), signals::install()?);
    let config = read(path, &env)?;
    log::init("postern-auth", config.log.format, &config.log.filter);
    let addresses = [config.listen, config.admin.address];
    let options = DatabaseOptions::new("postern-auth");
    let probe = async || Database::probe(&config.database, &options).await;
    let started = ServiceProcess::start(probe, addresses, &env, shutdown);
    let Some(process) = started.await? else {
        return Ok(());
    };
    let app = Box::pin(App::build(config, Clock::system())).await?;
    let origin = ConfigOrigin::of_file(path);
    let (listeners, shutdown) = process.run_with(app.health(), &origin);
    Box::pin(app.run(listeners, origin, shutdown)).await;
    tracing::info!("process stopped");
    Ok(())
}

async fn list_audit_events(mut config: Config, arguments: &TimelineArguments) -> Result<(), Exit> {
    let query = arguments.query(Clock::system().now())?;
    let reader = AuditReader::open(&mut config).await?;
    let timeline = reader.timeline(&query).await?;
    arguments.print(&timeline)
}

async fn check(path: &Path, offline: bool) -> Result<Vec<CheckResult>, Exit> {
    let env = match offline {
        true => Env::of_process().assuming(&ASSUMED_IDENTITY),
        false => Env::of_process(),
    };
    let config = read(path, &env)?;
    let good = format!("{}: good", path.display());
    let mut results = vec![CheckResult::passed("configuration", good)];
    if offline {
        results.extend(check_configuration(&config));
    } else {
        match Box::pin(App::build(config, Clock::system())).await {
            Ok(app) => results.extend(Box::pin(app.check()).await),
            Err(exit) if exit.is_usage() => return Err(exit),
            Err(exit) => {
                let config = read(path, &env)?;
                results.extend(check_without_database(&config, &exit).await?);
            }
        }
    }
    Ok(results)
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
