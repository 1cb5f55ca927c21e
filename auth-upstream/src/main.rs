//! The program `postern-auth`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use postern_auth::{App, AuditReader, Config};
use postern_common::config::{Env, load};
use postern_common::exit::{Exit, parse_arguments};
use postern_common::startup::{ConfigOrigin, ServiceProcess};
use postern_common::timeline::TimelineArguments;
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

#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// Reads the stored audit events.
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Checks pools, app clients, keys, clock and stores, and reports configuration errors.
    Check,
    /// Prints the JSON schema of the configuration, for editors.
    Schema,
}

#[derive(Debug, clap::Subcommand)]
enum AuditCommand {
    /// Prints the audit events of a person or a request, oldest first: time, operation, outcome,
    /// and what is known of the request. Addresses are stored as keyed hashes only; search for one
    /// with --email.
    #[command(after_help = AUDIT_EXAMPLES)]
    List(TimelineArguments),
}

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
    match arguments.command {
        Some(Subcommand::Check) => return Box::pin(check(config)).await,
        Some(Subcommand::Audit(AuditCommand::List(arguments))) => {
            return Box::pin(list_audit_events(config, &arguments)).await;
        }
        Some(Subcommand::Schema) | None => {}
    }
    log::init("postern-auth", config.log.format, &config.log.filter);
    let addresses = [config.listen, config.admin.address];
    let Some(process) =
        ServiceProcess::start("postern-auth", &config.database, addresses, &env).await?
    else {
        return Ok(());
    };
    let app = Box::pin(App::build(config, Clock::system())).await?;
    let origin = ConfigOrigin::of_file(&arguments.config);
    let (listeners, shutdown) = process.run_with(app.health(), &origin);
    Box::pin(app.run(listeners, origin, shutdown)).await;
    tracing::info!("process stopped");
    Ok(())
}

async fn list_audit_events(mut config: Config, arguments: &TimelineArguments) -> Result<(), Exit> {
    let query = arguments.query(Clock::system().now())?;
    let reader = AuditReader::open(&mut config).await?;
    let timeline = reader.timeline(&query).await?;
    arguments.write(&timeline, &mut std::io::stdout().lock());
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
