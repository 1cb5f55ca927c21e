//! The program `postern-proxy`: its command line and its commands.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use http::{HeaderMap, HeaderName, HeaderValue};
use postern_core::Clock;
use postern_core::check::{CheckArguments, CheckResult};
use postern_core::config::{self, ConfigFile, Env};
use postern_core::exit::{Exit, parse_arguments};
use postern_core::output::{Output, print_line};
use postern_core::token::{Verifier, VerifierOptions};
use postern_proxy::api_keys::{self, ApiKeys, NewApiKey, is_api_key};
use postern_proxy::config::TestToken;
use postern_proxy::{
    App, CallerSource, Config, ConfigWarning, FoundWarnings, InheritedListeners, InheritedSockets,
};
use postern_service::service_manager::ServiceManager;
use postern_service::{log, signals};

/// mimalloc, because Pingora allocates and frees 64 KiB per response body, for which the system
/// allocator returns memory to the kernel each time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const DAY: Duration = Duration::from_secs(86_400);

/// Time for blocking calls after the gateway has ended.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

#[path = "main/examples.rs"]
mod examples;

/// Postern's edge gateway.
#[derive(Parser)]
#[command(version, name = "postern-proxy", after_help = examples::PROGRAM)]
struct CliArguments {
    /// Path of the configuration file.
    #[arg(long, global = true, default_value = "conf/proxy.toml")]
    config: PathBuf,
    #[command(subcommand)]
    command: Option<CliCommand>,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Run the gateway (default).
    #[command(after_help = examples::RUN)]
    Run {
        /// Take over the listening sockets from the process with the same `handover.socket`,
        /// which then drains and exits (hot restart).
        #[arg(long)]
        take_over: bool,
    },
    /// Check the configuration and the files that it names, and run its tests.
    #[command(after_help = examples::CHECK)]
    Check {
        #[command(flatten)]
        arguments: CheckArguments,
        /// Print JSON, one object per line.
        #[arg(long)]
        json: bool,
    },
    /// Explain the route and the policy decision of a request.
    #[command(after_help = examples::EXPLAIN)]
    Explain(ExplainArguments),
    /// Print which requests are decided differently by two configurations.
    #[command(after_help = examples::DIFF)]
    Diff(DiffArguments),
    /// Manage API keys.
    #[command(after_help = examples::CREATE)]
    ApiKey {
        #[command(subcommand)]
        command: ApiKeyCommand,
    },
    /// Print the JSON schema of the configuration, for editors.
    #[command(after_help = examples::SCHEMA)]
    Schema,
}

/// The arguments of the `diff` command.
#[derive(Args)]
struct DiffArguments {
    /// The configuration file in use.
    old: PathBuf,
    /// The configuration file to compare with it.
    new: PathBuf,
    /// Exit with status 1 if there is such a change.
    #[arg(long, value_name = "KIND")]
    fail_on: Option<FailOn>,
    /// Print JSON, one change per line.
    #[arg(long)]
    json: bool,
}

/// Changes that let `diff` fail.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// A request that was rejected and no longer is.
    Widened,
    /// Any change.
    Any,
}

#[derive(Subcommand)]
enum ApiKeyCommand {
    /// Create a key: print it, and the entry for the file that `[api_keys]` names.
    #[command(after_help = examples::CREATE)]
    Create(CreateArguments),
}

/// The arguments of the `api-key create` command.
#[derive(Args)]
struct CreateArguments {
    /// Name of the service, as in the policies of routes.
    #[arg(long)]
    name: String,
    /// Scopes, separated by commas.
    #[arg(long, value_delimiter = ',')]
    scopes: Vec<String>,
    /// Days after which the key expires; without it, it does not.
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    expires_in_days: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The arguments of the `explain` command.
#[derive(Args)]
struct ExplainArguments {
    /// HTTP method, such as GET.
    method: String,
    /// Path or absolute URL.
    url: String,
    /// Caller: none, user, user:SUBJECT, service:NAME, or a real token, which is verified.
    #[arg(long, default_value = "none")]
    token: String,
    /// Request header, such as `X-Beta: 1`; can be repeated.
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Client address, for access lists; without it the address is unknown.
    #[arg(long, value_name = "ADDRESS")]
    client_address: Option<IpAddr>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments: CliArguments = match parse_arguments() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let env = Env::of_process();
    Exit::report(
        match arguments
            .command
            .unwrap_or(CliCommand::Run { take_over: false })
        {
            CliCommand::Run { take_over } => run(&arguments.config, &env, take_over),
            CliCommand::Check {
                arguments: given,
                json,
            } => check(&arguments.config, &env, &given, Output { json }),
            CliCommand::Explain(request) => explain(&arguments.config, &env, request),
            CliCommand::Diff(arguments) => diff(&env, &arguments),
            CliCommand::ApiKey {
                command: ApiKeyCommand::Create(arguments),
            } => create_api_key(arguments),
            CliCommand::Schema => schema(),
        },
    )
}

fn run(path: &Path, env: &Env, take_over: bool) -> Result<(), Exit> {
    let cannot_start = |error| Exit::unavailable(format!("cannot start the runtime: {error}"));
    // The number of threads is in the configuration, which may take a while to read.
    let mut early = tokio::runtime::Builder::new_current_thread();
    let early = early.enable_all().build().map_err(cannot_start)?;
    early.block_on(async { signals::ignore_requests() })?;
    let config = load(path, env)?;
    log::init("postern-proxy", config.log.format, &config.log.filter);
    let inherited = InheritedSockets::from_environment()?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = config.workers {
        runtime.worker_threads(workers);
    }
    let runtime = runtime.enable_all().build().map_err(cannot_start)?;
    let ended = runtime.block_on(async {
        let shutdown = signals::install()?;
        let (sockets, previous) = if take_over {
            if !inherited.is_empty() {
                return Err(Exit::usage(
                    "--take-over cannot be combined with LISTEN_FDS",
                ));
            }
            let path = config
                .handover
                .as_ref()
                .ok_or_else(|| Exit::usage("--take-over needs [handover] socket"))?;
            let inherited = InheritedListeners::take(path)?;
            (inherited.sockets, Some(inherited.previous))
        } else {
            (inherited, None)
        };
        let listeners = sockets.bind_listeners(&config).await?;
        let app = App::build(config, Clock::system())?.watch(path.to_owned(), env.clone());
        let app = app.supervised(ServiceManager::from_env(env));
        match previous {
            Some(previous) => app.take_over(listeners, previous, shutdown).await?,
            None => app.run(listeners, shutdown).await,
        }
        Ok(())
    });
    // The operating system may still wait for a name server.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    ended
}

/// Reads the file, runs its route tests and checks the files that it names.
fn load(path: &Path, env: &Env) -> Result<Config, Exit> {
    config::load(path, |root| {
        let config = Config::read(root, env)?;
        postern_proxy::check_files(root, &config);
        Some(config)
    })
}

/// Reads the file as [`load`] does, with the warnings about it.
fn load_with_warnings(path: &Path, env: &Env) -> Result<(Config, Vec<ConfigWarning>), Exit> {
    let (file, now) = (ConfigFile::read(path)?, Clock::system().now());
    let (config, found) = file.decode(|root| {
        let config = Config::read(root, env)?;
        postern_proxy::check_files(root, &config);
        let found = FoundWarnings::of(root, &config, now);
        Some((config, found))
    })?;
    Ok((config, found.locate(&file)))
}

#[expect(clippy::print_stderr, reason = "the output of a command")]
fn check(path: &Path, env: &Env, arguments: &CheckArguments, output: Output) -> Result<(), Exit> {
    let path = arguments.file(path);
    let (config, warnings) = match load_with_warnings(path, env) {
        Ok(loaded) => loaded,
        Err(exit) => return arguments.report(Err(exit), output),
    };
    let (routes, tests) = (config.routes.len(), config.tests.len());
    let good = format!("{}: good: {routes} routes, {tests} tests", path.display());
    if output.json {
        let mut results = vec![CheckResult::passed("configuration", good)];
        let warned = |warning: &ConfigWarning| {
            let detail = format!("{}: {warning}", warning.place());
            CheckResult::warning("configuration", detail)
        };
        results.extend(warnings.iter().map(warned));
        return arguments.report(Ok(results), output);
    }
    for warning in &warnings {
        eprintln!("{}: warning: {warning}", warning.place());
    }
    print_line(&good)?;
    match arguments.strict && !warnings.is_empty() {
        true => Err(Exit::failed(format!("{} warnings", warnings.len()))),
        false => Ok(()),
    }
}

fn explain(path: &Path, env: &Env, request: ExplainArguments) -> Result<(), Exit> {
    let token = request.token.as_str();
    // Also if a route test fails: an explanation shows why.
    let config = config::load(path, |root| Config::decode(root, env))?;
    let caller = match TestToken::parse(token) {
        Some(assumed) => CallerSource::Assumed(assumed),
        None => verify(&config, token)?,
    };
    let (method, url, json) = (&request.method, &request.url, request.json);
    let headers: HeaderMap = request.headers.into_iter().collect();
    let address = request.client_address.map(|address| address.to_canonical());
    let text = postern_proxy::explain(&config, method, url, &headers, &caller, address);
    Output { json }.explanation(&text)
}

/// Compares two configurations, without the files that they name.
#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the output of a command"
)]
fn diff(env: &Env, arguments: &DiffArguments) -> Result<(), Exit> {
    let (new, json) = (&arguments.new, arguments.json);
    let read = |path: &Path| config::load(path, |root| Config::read(root, env));
    let (before, after) = (read(&arguments.old)?, read(new)?);
    let found = postern_proxy::differences(&before, &after)
        .map_err(|error| Exit::usage(error.to_string()))?;
    let unknown = postern_proxy::uncompared_changes(&before, &after);
    if let Some(unknown) = &unknown {
        eprintln!("{}: {unknown}", new.display());
    }
    for difference in &found {
        match json {
            true => println!("{}", serde_json::json!(difference)),
            false => println!("{difference}"),
        }
    }
    let widened = found.iter().filter(|it| it.widened).count();
    if !json {
        println!("{} changes, {widened} widened", found.len());
    }
    match arguments.fail_on {
        Some(FailOn::Widened) if widened > 0 || unknown.is_some() => Err(Exit::failed(format!(
            "{}: more callers reach something, or may",
            new.display()
        ))),
        Some(FailOn::Any) if !found.is_empty() || unknown.is_some() => Err(Exit::failed(format!(
            "{}: requests change their decision",
            new.display()
        ))),
        Some(_) | None => Ok(()),
    }
}

/// Parses `NAME: VALUE`.
fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let field = text.split_once(':').and_then(|(name, value)| {
        Some((
            HeaderName::try_from(name).ok()?,
            HeaderValue::try_from(value.trim()).ok()?,
        ))
    });
    field.ok_or_else(|| "must be a header such as X-Beta: 1".to_owned())
}

/// Verifies a real token with the keys of its issuer, or an API key with the file.
fn verify(config: &Config, token: &str) -> Result<CallerSource, Exit> {
    if let Some(keys) = &config.api_keys {
        let verdict = ApiKeys::load(&keys.file)?.verify(token, Clock::system().now());
        match verdict {
            Ok(caller) => return Ok(CallerSource::Verified(caller)),
            Err(problem) if is_api_key(token) => {
                return Ok(CallerSource::Rejected(problem.code().as_str()));
            }
            // Not a key.
            Err(_) => {}
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| Exit::unavailable(format!("cannot start the runtime: {error}")))?;
    let options = VerifierOptions {
        limits: config.identity.token_limits,
        ..VerifierOptions::default()
    };
    let verifier = Verifier::new(config.issuers(&[]), options);
    Ok(match runtime.block_on(verifier.verify(token)) {
        Ok(caller) => CallerSource::Verified(caller),
        Err(refusal) => CallerSource::Rejected(refusal.code().as_str()),
    })
}

fn create_api_key(arguments: CreateArguments) -> Result<(), Exit> {
    let new = NewApiKey {
        name: arguments.name,
        scopes: arguments.scopes,
        lifetime: arguments.expires_in_days.map(|days| DAY * days),
    };
    let mut random = [0; 38];
    getrandom::fill(&mut random)
        .map_err(|error| Exit::unavailable(format!("no random numbers: {error}")))?;
    let created = api_keys::create(&new, &random, Clock::system().now())?;
    let (key, entry) = (created.key.expose(), &created.entry);
    let text = format!(
        "# The key, which is not shown again:\n{key}\n\n\
         # The entry for the file that [api_keys] names:\n{entry}"
    );
    let json = arguments.json;
    Output { json }.record(&text, &serde_json::json!({ "key": key, "entry": entry }))
}

#[expect(clippy::print_stdout, reason = "the output of a command")]
fn schema() -> Result<(), Exit> {
    print!("{}", postern_proxy::SCHEMA);
    Ok(())
}

#[cfg(test)]
mod tests {
    use postern_core::testing::assert_commands_documented;

    use super::*;

    #[test]
    fn every_command_has_a_text_and_an_example() {
        assert_commands_documented::<CliArguments>();
    }
}
