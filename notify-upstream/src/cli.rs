//! Commands: checks, the history of a notification, delivery reports. What changes something goes
//! through the admin API.
//!
//! Input: command line arguments, and a message on standard input for `dsn`. Output: text and an
//! exit status. Depends on `app`, `config`, the store and the modules whose data it prints; no
//! module depends on it.

mod check;
mod dsn;
mod lookup;
mod serve;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use postern_core::check::CheckArguments;
use postern_core::config::{Env, load};
use postern_core::exit::{Exit, run_command};
use postern_core::output::{Output, print_line};
use postern_store::database::{Database, DatabaseOptions};

use crate::Config;
use crate::notification::NotificationId;
use crate::store::{Store, StoreError};

/// The notification service. Without a command, runs the service.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example:\n  postern-notify --config /etc/postern/notify.toml"
)]
struct Arguments {
    /// The configuration file.
    #[arg(long, default_value = "conf/notify.toml", global = true)]
    config: PathBuf,
    /// Print JSON, one object per line.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Option<OperatorCommand>,
}

#[derive(Debug, Subcommand)]
pub(super) enum OperatorCommand {
    /// Run the service (default).
    #[command(after_help = "Example:\n  postern-notify run --config /etc/postern/notify.toml")]
    Run,
    /// Check the configuration, the templates and key files that it names, and the database.
    #[command(after_help = "\
Examples:
  postern-notify check --config /etc/postern/notify.toml
  postern-notify check conf/notify.toml --offline --strict")]
    Check {
        #[command(flatten)]
        arguments: CheckArguments,
        /// Do not connect to the database.
        #[arg(long)]
        offline: bool,
    },
    /// Print what happened to a notification: attempts, replies of providers, delivery reports.
    #[command(after_help = "\
Examples:
  postern-notify show 019aa0c4-8f00-7c3a-b5d1-5a7f0c2e9d11
  postern-notify show 019aa0c4-8f00-7c3a-b5d1-5a7f0c2e9d11 --json")]
    Show {
        /// Notification id.
        #[arg(value_parser = notification_id)]
        id: NotificationId,
    },
    /// Print the JSON schema of the configuration, for editors.
    #[command(after_help = "Example:\n  postern-notify schema > notify.schema.json")]
    Schema,
    /// Read a delivery status notification (RFC 3464) from standard input, as piped by a mail
    /// server.
    #[command(after_help = "Example:\n  postern-notify dsn < report.eml")]
    Dsn,
}

/// Runs the program with the arguments of the process.
pub async fn run() -> ExitCode {
    run_command(async |arguments: Arguments| {
        let Arguments {
            config,
            json,
            command,
        } = arguments;
        match command {
            None => Box::pin(serve::serve(&config)).await,
            Some(command) => Box::pin(command.run(&config, Output { json })).await,
        }
    })
    .await
}

/// The JSON schema of the configuration. A test makes it from what the readers accept.
const SCHEMA: &str = include_str!("../notify.schema.json");

fn read_config(path: &Path, env: &Env) -> Result<Config, Exit> {
    load(path, |root| Config::read(root, env))
}

// === impl OperatorCommand ===

impl OperatorCommand {
    async fn run(self, config: &Path, output: Output) -> Result<(), Exit> {
        match self {
            Self::Run => Box::pin(serve::serve(config)).await,
            Self::Check { arguments, offline } => {
                let results = Box::pin(check::run(arguments.file(config), offline)).await;
                arguments.report(results, output)
            }
            Self::Show { id } => Box::pin(lookup::show(&read(config)?, id, output)).await,
            Self::Schema => print_line(SCHEMA.trim_end()),
            Self::Dsn => Box::pin(dsn::run(read(config), output)).await,
        }
    }
}

fn read(config: &Path) -> Result<Config, Exit> {
    read_config(config, &Env::of_process())
}

async fn open(config: &Config) -> Result<Store, Exit> {
    open_database(&config.database).await
}

async fn open_database(url: &str) -> Result<Store, Exit> {
    let database = Database::open(url, DatabaseOptions::for_command("postern-notify-cli")).await?;
    Store::open_migrated(&database, 3).await
}

impl From<StoreError> for Exit {
    fn from(error: StoreError) -> Self {
        Self::unavailable(error.to_string())
    }
}

fn notification_id(text: &str) -> Result<NotificationId, &'static str> {
    NotificationId::parse(text).ok_or("must be the id of a notification")
}

#[cfg(test)]
mod tests;
