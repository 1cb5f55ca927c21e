//! The gateway as a process of its own.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use postern_common::config::{self, Env};
use postern_common::exit::Exit;
use postern_common::{Clock, Shutdown, log};
use postern_proxy::{App, Config, Listeners};
use tokio::net::TcpListener;

/// Postern's gateway.
#[derive(Parser)]
#[command(version, name = "postern-proxy")]
struct Arguments {
    /// The configuration.
    #[arg(long, global = true, default_value = "conf/proxy.toml")]
    config: PathBuf,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Serve (the default).
    Run,
    /// Say everything that is wrong with the configuration, and run its tests.
    Check,
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            return Exit::report(Err(Exit::usage(error.to_string().trim_end())));
        }
        Err(help) => return help.print().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS),
    };
    let env = Env::of_process();
    Exit::report(match arguments.command.unwrap_or(Command::Run) {
        Command::Run => run(&arguments.config, &env),
        Command::Check => check(&arguments.config, &env),
    })
}

fn run(path: &Path, env: &Env) -> Result<(), Exit> {
    log::init(log::Format::Json, env.get("POSTERN_LOG").unwrap_or("info"));
    let config = config::load(path, |root| Config::read(root, env))?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = config.workers {
        runtime.worker_threads(workers);
    }
    let runtime =
        runtime.enable_all().build().map_err(|error| Exit::unavailable(format!("no runtime: {error}")))?;
    runtime.block_on(async {
        let shutdown =
            Shutdown::on_signals().map_err(|error| Exit::unavailable(format!("no signals: {error}")))?;
        let listeners = bind(&config).await?;
        let app = App::build(config, Clock::system())?.watch(path.to_owned(), env.clone());
        app.run(listeners, shutdown).await;
        Ok(())
    })
}

async fn bind(config: &Config) -> Result<Listeners, Exit> {
    let mut public = Vec::with_capacity(config.listen.len());
    for listen in &config.listen {
        public.push(listen_on(listen.address).await?);
    }
    let admin = match config.admin {
        Some(address) => Some(listen_on(address).await?),
        None => None,
    };
    Ok(Listeners { public, admin })
}

async fn listen_on(address: std::net::SocketAddr) -> Result<TcpListener, Exit> {
    TcpListener::bind(address)
        .await
        .map_err(|error| Exit::unavailable(format!("cannot listen on {address}: {error}")))
}

#[expect(clippy::print_stdout, reason = "the answer of a command")]
fn check(path: &Path, env: &Env) -> Result<(), Exit> {
    let config = config::load(path, |root| Config::read(root, env))?;
    let (routes, tests) = (config.routes.len(), config.tests.len());
    postern_proxy::check(&config)?;
    println!("{}: good: {routes} routes, {tests} tests", path.display());
    Ok(())
}
