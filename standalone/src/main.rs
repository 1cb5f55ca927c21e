//! The `postern` command: all of Postern in one process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use postern::{Options, TimelineSources};
use postern_core::config::Env;
use postern_core::decode::parse_duration;
use postern_core::exit::{Exit, parse_arguments};
use postern_core::health::Health;
use postern_core::output::{Output, print_line};
use postern_core::{Clock, Secret};
use postern_service::log;
use postern_service::service_manager::ServiceManager;
use postern_service::timeline::{TimelineArguments, TimelineSelector, parse_id};
use tokio::runtime::{Builder, Runtime};

/// Pingora allocates and frees 64 KiB for each response body, which makes the system allocator
/// return memory to the operating system each time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs Postern in one process: gateway, authentication, notifications, identity pool, and
/// development services
#[derive(Debug, Parser)]
#[command(version, name = "postern", after_help = PROGRAM_EXAMPLES)]
struct CommandLine {
    /// Data folder
    #[arg(long, global = true, default_value = "./var", value_name = "FOLDER")]
    data_dir: PathBuf,
    #[command(flatten)]
    run: RunOptions,
    #[command(subcommand)]
    command: Option<CliCommand>,
}

#[derive(Debug, Args)]
struct RunOptions {
    /// Listening address of the gateway [default: 127.0.0.1 and the port of --port]. A non-loopback
    /// address requires --config
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Port of the gateway; the other parts use the 12 following ports. 0 lets the operating system
    /// assign all ports
    #[arg(long, default_value_t = 8500)]
    port: u16,
    /// Run the three services from proxy.toml, auth.toml, and notify.toml in this folder, without
    /// development services
    #[arg(long, value_name = "FOLDER")]
    config: Option<PathBuf>,
    /// Override built-in settings with proxy.toml, auth.toml, and notify.toml in this folder (each
    /// is optional). Development services keep running
    #[arg(long, value_name = "FOLDER", conflicts_with = "config")]
    overrides: Option<PathBuf>,
    /// Lifetime of users' access tokens, 10s to 24h, to try their expiry [default: 1h]
    #[arg(long, value_name = "DURATION", conflicts_with = "config", value_parser = lifetime)]
    access_token_lifetime: Option<Duration>,
    /// Number of worker threads [default: one per core]
    #[arg(long)]
    workers: Option<usize>,
    /// Log filter for standard error: a level, or a filter such as info,postern_auth=debug
    #[arg(long, default_value = "warn", value_name = "FILTER")]
    log: String,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Print a new token of a service account, from the running postern
    #[command(after_help = TOKEN_EXAMPLES)]
    Token {
        /// Service account: auth, notify, actor, or document
        #[arg(long, value_name = "NAME")]
        service: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a new one-time link to the console of the running postern, which signs in as operator.
    /// An unused earlier link is no longer valid
    #[command(after_help = CONSOLE_LINK_EXAMPLE)]
    ConsoleLink,
    /// Print what happened to a person, a request or a notification: sign-ins, notifications and
    /// requests in the order of time
    #[command(after_help = TIMELINE_EXAMPLES)]
    Timeline(TimelineOptions),
    /// List and change the users of the running postern's pool, or, with POSTERN_AUTH_ADMIN_URL and
    /// POSTERN_ADMIN_TOKEN, those of another postern-auth
    #[command(subcommand, after_help = USER_EXAMPLES)]
    User(UserCommand),
}

#[derive(Debug, Subcommand)]
enum UserCommand {
    /// List users: e-mail address, status, subject
    #[command(after_help = USER_EXAMPLES)]
    List {
        /// The beginning of the address
        #[arg(long, default_value = "", value_name = "EMAIL")]
        email: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a user to a group, which is in the next access token
    #[command(after_help = USER_EXAMPLES)]
    AddToGroup {
        /// E-mail address
        #[arg(long, value_name = "EMAIL")]
        user: String,
        /// Name of a group of the pool
        #[arg(long)]
        group: String,
    },
    /// Read a new password from standard input, and end all sign-ins of the user
    #[command(after_help = USER_EXAMPLES)]
    SetPassword {
        /// E-mail address
        #[arg(long, value_name = "EMAIL")]
        user: String,
    },
}

#[derive(Debug, Args)]
struct TimelineOptions {
    #[command(flatten)]
    query: TimelineArguments,
    /// Notification id
    #[arg(long, value_name = "ID", conflicts_with_all = ["email", "user", "request"])]
    notification: Option<String>,
    /// Access log of the gateway, for its requests [default: that of the data folder]
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,
    /// Folder with auth.toml and notify.toml, whose databases are read [default: the databases in
    /// the data folder]
    #[arg(long = "config", id = "timeline_config", value_name = "FOLDER")]
    config: Option<PathBuf>,
}

const PROGRAM_EXAMPLES: &str = "\
Examples:
  postern
  postern --data-dir /var/lib/postern --port 9000
  postern --config /etc/postern --listen 0.0.0.0:8500";

const CONSOLE_LINK_EXAMPLE: &str = "\
Example:
  postern console-link --data-dir /var/lib/postern";

const TOKEN_EXAMPLES: &str = "\
Examples:
  postern token --service notify
  postern token --service notify --json";

const USER_EXAMPLES: &str = "\
Examples:
  postern user list --email ada@
  postern user add-to-group --user ada@example.com --group admin
  postern user set-password --user ada@example.com < password.txt";

const TIMELINE_EXAMPLES: &str = "\
Examples:
  postern timeline --email ada@example.com --since 24h
  postern timeline --config /etc/postern --user 6f1c7a52-0d0a-4a0e-9c0e-3a8f2f6f8a11 --json
  postern timeline --request 0190f3a2-7c1e-7b6a-8f0e-2f6f8a113a8f --access-log /var/log/postern/access.log
  postern timeline --notification 019aa0c4-8f00-7c3a-b5d1-5a7f0c2e9d11

Services with databases of their own need --config and their environment variables.";

fn main() -> ExitCode {
    let started_at = Instant::now();
    let arguments: CommandLine = match parse_arguments() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let filter = if arguments.command.is_some() {
        "error"
    } else {
        arguments.run.log.as_str()
    };
    if let Err(reason) = log::check(filter) {
        return Exit::report(Err(Exit::usage(format!("--log {filter}: {reason}"))));
    }
    log::init("postern", log::Format::Text, filter);
    Exit::report(runtime(arguments.run.workers).and_then(|runtime| {
        let outcome = runtime.block_on(execute(arguments, started_at));
        runtime.shutdown_background();
        outcome
    }))
}

async fn execute(arguments: CommandLine, started_at: Instant) -> Result<(), Exit> {
    let folder = arguments.data_dir;
    match arguments.command {
        None => Box::pin(run(folder, arguments.run, started_at)).await,
        Some(CliCommand::Token { service, json }) => {
            let token = Box::pin(postern::service_token(&folder, &service)).await?;
            let token = token.expose();
            Output { json }.record(token, &serde_json::json!({ "token": token }))
        }
        Some(CliCommand::ConsoleLink) => {
            print_line(Box::pin(postern::console_link(&folder)).await?.expose())
        }
        Some(CliCommand::Timeline(options)) => Box::pin(timeline(folder, options)).await,
        Some(CliCommand::User(command)) => Box::pin(user(folder, command)).await,
    }
}

fn runtime(workers: Option<usize>) -> Result<Runtime, Exit> {
    let mut builder = Builder::new_multi_thread();
    if let Some(workers) = workers {
        if !(1..=256).contains(&workers) {
            return Err(Exit::usage("--workers: must be 1 to 256"));
        }
        builder.worker_threads(workers);
    }
    let failed = |error| Exit::unavailable(format!("cannot start threads: {error}"));
    builder.enable_all().build().map_err(failed)
}

async fn run(data_dir: PathBuf, run: RunOptions, started_at: Instant) -> Result<(), Exit> {
    let shutdown = postern_service::signals::install()?;
    let running = match run.config {
        Some(folder) => {
            let env = Env::of_process();
            let clock = Clock::system();
            Box::pin(postern::start_configured(&folder, run.listen, &env, clock)).await?
        }
        None => {
            let options = Options {
                listen: run.listen,
                port: run.port,
                overrides: run.overrides,
                access_token_lifetime: run.access_token_lifetime,
                ..Options::new(data_dir)
            };
            Box::pin(postern::start(options)).await?
        }
    };
    // Absolute, because the printed commands may be run from another directory.
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("postern"));
    let program = program.display().to_string();
    print_line(postern::greeting(&running, &program, started_at.elapsed()).trim_end())?;
    if let Some(service_manager) = ServiceManager::from_env(&Env::of_process()) {
        tokio::spawn(service_manager.report_health(Health::new(), shutdown.clone()));
    }
    running.run(shutdown).await
}

async fn timeline(data_dir: PathBuf, options: TimelineOptions) -> Result<(), Exit> {
    let mut query = options.query.query(Clock::system().now())?;
    if let Some(id) = &options.notification {
        let id = parse_id(id).ok_or_else(|| Exit::usage("--notification must be an identifier"))?;
        query.selector = TimelineSelector::Notification(id);
    }
    let sources = TimelineSources {
        config: options.config,
        data_dir,
        access_log: options.access_log,
    };
    let timeline = postern::timeline(&sources, &query, &Env::of_process()).await?;
    options.query.print(&timeline)
}

async fn user(data_dir: PathBuf, command: UserCommand) -> Result<(), Exit> {
    let users = postern::Users::open(&data_dir, &Env::of_process())?;
    match command {
        UserCommand::List { email, json } => {
            for user in users.list(&email).await? {
                let member = |name: &str| user[name].as_str().unwrap_or("-");
                let (email, status, name) = (member("email"), member("status"), member("subject"));
                let is_disabled = user["enabled"] == false;
                let disabled = if is_disabled { " DISABLED" } else { "" };
                Output { json }.record(&format!("{email} {status}{disabled} {name}"), &user)?;
            }
            Ok(())
        }
        UserCommand::AddToGroup { user, group } => {
            let body = serde_json::json!({ "group": group });
            users.change(&user, "add-to-group", &body).await
        }
        UserCommand::SetPassword { user } => {
            let body = serde_json::json!({ "newPassword": password()?.expose() });
            users.change(&user, "set-password", &body).await
        }
    }
}

fn lifetime(text: &str) -> Result<Duration, &'static str> {
    let valid = Duration::from_secs(10)..=Duration::from_secs(86_400);
    let lifetime = parse_duration(text).filter(|lifetime| valid.contains(lifetime));
    lifetime.ok_or("must be 10s to 24h")
}

fn password() -> Result<Secret, Exit> {
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .map_err(|error| Exit::unavailable(format!("cannot read the password: {error}")))?;
    Ok(Secret::from(line.trim_end_matches(['\r', '\n'])))
}

#[cfg(test)]
mod tests {
    use postern_core::testing::assert_commands_documented;

    use super::*;

    #[test]
    fn lifetime_of_tokens_is_bounded() {
        assert_eq!(lifetime("5m"), Ok(Duration::from_secs(300)));
        for text in ["9s", "25h", "5"] {
            lifetime(text).expect_err(text);
        }
    }

    #[test]
    fn every_command_has_a_text_and_an_example() {
        assert_commands_documented::<CommandLine>();
    }
}
