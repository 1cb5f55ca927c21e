//! `postern-notify`: the notification upstream as a process of its own, and its operator's tools.

mod cli;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use postern_common::config::{Env, load};
use postern_common::exit::Exit;
use postern_common::http::bind;
use postern_common::start::until_database;
use postern_common::supervisor::Supervisor;
use postern_common::{Clock, log};
use postern_notify::{App, Config, Listeners};

/// The one that all of Postern has; the gateway's `main.rs` says why.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The notification upstream: accepts, queues, delivers, tells. Without a command it serves.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The configuration file.
    #[arg(long, default_value = "conf/notify.toml", global = true)]
    config: PathBuf,
    #[command(subcommand)]
    command: Option<cli::Command>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match Arguments::try_parse() {
        Ok(Arguments {
            config,
            command: None,
        }) => Exit::report(Box::pin(serve(&config)).await),
        Ok(Arguments {
            config,
            command: Some(command),
        }) => Exit::report(Box::pin(command.run(&config)).await),
        Err(error) if error.use_stderr() => {
            Exit::report(Err(Exit::usage(error.to_string().trim_end())))
        }
        Err(help) => match help.print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
    }
}

fn read_config(path: &Path, env: &Env) -> Result<Config, Exit> {
    load(path, |root| Config::read(root, env))
}

async fn serve(config: &Path) -> Result<(), Exit> {
    let env = Env::of_process();
    let config = read_config(config, &env)?;
    log::init(config.log.format, &config.log.filter);
    let (public, admin) = (bind(config.listen).await?, bind(config.admin).await?);
    let shutdown = postern_common::signals::on_termination()
        .map_err(|error| Exit::unavailable(format!("cannot install signal handlers: {error}")))?;
    let supervisor = Supervisor::of(&env);
    let sockets = (&public, &admin);
    if !until_database(
        &config.database,
        "postern-notify",
        sockets,
        supervisor.as_ref(),
        &shutdown,
    )
    .await?
    {
        return Ok(());
    }
    let app = Box::pin(App::build(config, Clock::system())).await?;
    if let Some(supervisor) = supervisor {
        tokio::spawn(supervisor.follow(app.health(), shutdown.clone()));
    }
    Box::pin(app.run(
        Listeners {
            public,
            admin: Some(admin),
        },
        shutdown,
    ))
    .await;
    Ok(())
}
