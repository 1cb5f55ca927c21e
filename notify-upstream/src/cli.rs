//! Commands for operators: templates, dead letters, the suppression list, delivery reports.
//!
//! Input: command line arguments, and a message on standard input for `dsn`. Output: text and an
//! exit status. Depends on `app`, `config`, the store and the modules whose data it prints; no
//! module depends on it.

mod dsn;
mod serve;
mod suppression;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use postern_common::Clock;
use postern_common::clock::Timestamp;
use postern_common::config::{Env, load};
use postern_common::database::{Database, DatabaseOptions};
use postern_common::exit::{Exit, parse_arguments};
use serde_json::{Map, Value};

use crate::Config;
use crate::notification::{Channel, NotificationId, OrderSequence};
use crate::store::{DeadFilter, Store};
use crate::templates::{Locale, MessageContent, TemplateName, Templates, VariableAuthor};

use self::suppression::SuppressionCommand;

/// The notification service. Without a command, runs the service.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The configuration file.
    #[arg(long, default_value = "conf/notify.toml", global = true)]
    config: PathBuf,
    #[command(subcommand)]
    command: Option<OperatorCommand>,
}

#[derive(Debug, Subcommand)]
pub(super) enum OperatorCommand {
    /// Check or preview templates.
    #[command(subcommand)]
    Templates(TemplateCommand),
    /// List, replay or drop notifications that failed permanently.
    #[command(subcommand)]
    Dead(DeadLetterCommand),
    /// List or remove suppressed and unsubscribed addresses.
    #[command(subcommand)]
    Suppression(SuppressionCommand),
    /// Check the database configuration.
    Check,
    /// Print the JSON schema of the configuration, for editors.
    Schema,
    /// Read a delivery status notification (RFC 3464) from standard input, as piped by a mail
    /// server.
    Dsn,
}

#[derive(Debug, Subcommand)]
pub(super) enum TemplateCommand {
    /// Load all templates and print every error, or the variants found.
    Check(TemplateFolder),
    /// Render one template.
    Preview {
        /// Name of the template.
        name: String,
        /// Channel: email, sms or push.
        #[arg(long, default_value = "email")]
        channel: String,
        /// Requested locale.
        #[arg(long)]
        locale: Option<String>,
        /// Variables as a JSON object.
        #[arg(long, default_value = "{}")]
        variables: String,
        #[command(flatten)]
        folder: TemplateFolder,
    },
}

#[derive(Debug, Args)]
pub(super) struct TemplateFolder {
    /// Template folder.
    #[arg(long, default_value = "conf/templates")]
    folder: PathBuf,
    /// Locale used if none is requested.
    #[arg(long, default_value = "en")]
    default_locale: String,
}

#[derive(Debug, Subcommand)]
pub(super) enum DeadLetterCommand {
    /// List dead letters, oldest first.
    List(DeadLetterFilter),
    /// Queue dead letters again, with all attempts and a new deadline.
    Replay(DeadLetterSelection),
    /// Drop dead letters. Their history is kept.
    Drop(DeadLetterSelection),
}

/// A selection of dead letters to change. Requires a filter or `--all`.
#[derive(Debug, Args)]
pub(super) struct DeadLetterSelection {
    /// Select all dead letters, up to --limit.
    #[arg(long, conflicts_with_all = ["id", "code", "since", "until"])]
    all: bool,
    #[command(flatten)]
    filter: DeadLetterFilter,
}

#[derive(Debug, Args)]
pub(super) struct DeadLetterFilter {
    /// Notification id.
    #[arg(long)]
    id: Option<String>,
    /// Failure code, such as provider_refused.
    #[arg(long)]
    code: Option<String>,
    /// Failed at or after this time (RFC 3339).
    #[arg(long)]
    since: Option<String>,
    /// Failed before this time (RFC 3339).
    #[arg(long)]
    until: Option<String>,
    /// Maximum number of notifications.
    #[arg(long, default_value_t = 1000)]
    limit: i64,
}

/// Runs the program with the arguments of the process.
pub async fn run() -> ExitCode {
    match parse_arguments() {
        Ok(Arguments { config, command }) => Exit::report(match command {
            None => Box::pin(serve::serve(&config)).await,
            Some(command) => Box::pin(command.run(&config)).await,
        }),
        Err(code) => code,
    }
}

/// The JSON schema of the configuration. A test makes it from what the readers accept.
const SCHEMA: &str = include_str!("../notify.schema.json");

fn read_config(path: &Path, env: &Env) -> Result<Config, Exit> {
    load(path, |root| Config::read(root, env))
}

// === impl OperatorCommand ===

impl OperatorCommand {
    pub(super) async fn run(self, config: &Path) -> Result<(), Exit> {
        match self {
            Self::Templates(TemplateCommand::Check(folder)) => check(&folder.load()?),
            Self::Templates(TemplateCommand::Preview {
                name,
                channel,
                locale,
                variables,
                folder,
            }) => preview(
                &folder.load()?,
                &name,
                &channel,
                locale.as_deref(),
                &variables,
            ),
            Self::Dead(command) => Box::pin(command.run(&read(config)?)).await,
            Self::Suppression(command) => Box::pin(command.run(&read(config)?)).await,
            Self::Check => Box::pin(check_database(&read(config)?)).await,
            Self::Schema => print_line(SCHEMA.trim_end()),
            Self::Dsn => Box::pin(dsn::run(read(config))).await,
        }
    }
}

impl TemplateFolder {
    fn load(&self) -> Result<Templates, Exit> {
        let locale = Locale::parse(&self.default_locale)
            .ok_or_else(|| Exit::usage("--default-locale must be a tag such as en"))?;
        Templates::load(&self.folder, locale).map_err(Exit::usage)
    }
}

fn check(templates: &Templates) -> Result<(), Exit> {
    for (name, channel, locale) in templates.variants() {
        print_line(&format!(
            "{} {} {}",
            name.as_str(),
            channel.as_str(),
            locale.as_str()
        ))?;
    }
    print_line(&format!("{} template(s) valid", templates.len()))
}

fn preview(
    templates: &Templates,
    name: &str,
    channel: &str,
    locale: Option<&str>,
    variables: &str,
) -> Result<(), Exit> {
    let usage = |what: &str| Exit::usage(what.to_owned());
    let channel = Channel::ALL
        .into_iter()
        .find(|known| known.as_str() == channel)
        .ok_or_else(|| usage("--channel must be email, sms or push"))?;
    let name =
        TemplateName::parse(name).ok_or_else(|| usage("the name must be of a-z, 0-9, - and _"))?;
    let locale = locale
        .map(|tag| Locale::parse(tag).ok_or_else(|| usage("--locale must be a tag such as de-AT")));
    let variables: Map<String, Value> =
        serde_json::from_str(variables).map_err(|error| usage(&format!("--variables: {error}")))?;
    let found = templates
        .find(&name, channel, locale.transpose()?.as_ref())
        .map_err(|_| usage("no such template for this channel"))?;
    let missing = found.missing(&variables);
    if !missing.is_empty() {
        return Err(usage(&format!("missing variables: {}", missing.join(", "))));
    }
    let content = found
        .render(&variables, VariableAuthor::Service)
        .map_err(|error| usage(&error.to_string()))?;
    print_line(&format!(
        "version {}, language {}",
        found.version(),
        found.locale().as_str()
    ))?;
    match content {
        MessageContent::Email {
            subject,
            text,
            html,
        } => {
            print_line(&format!("Subject: {subject}\n\n{text}"))?;
            html.map_or(Ok(()), |html| print_line(&format!("---\n{html}")))
        }
        MessageContent::Sms { text } => print_line(&text),
        MessageContent::Push { title, body } => print_line(&format!("{title}\n{body}")),
    }
}

// === impl DeadLetterCommand ===

impl DeadLetterCommand {
    async fn run(self, config: &Config) -> Result<(), Exit> {
        let store = open(config).await?;
        let clock = Clock::system();
        let failed = |error: crate::store::StoreError| Exit::unavailable(error.to_string());
        match self {
            Self::List(filter) => {
                for letter in store.dead_letters(&filter.parse()?).await.map_err(failed)? {
                    let (lane, code) = (letter.lane, letter.code.as_deref().unwrap_or("-"));
                    let (channel, priority) = (lane.channel.as_str(), lane.priority.as_str());
                    print_line(&format!(
                        "{} {} {channel} {priority} {} {code}",
                        letter.id, letter.at, letter.attempt
                    ))?;
                }
                Ok(())
            }
            Self::Replay(selection) => {
                let filter = selection.parse()?;
                let count = usize::try_from(filter.limit).unwrap_or(usize::MAX);
                let first = OrderSequence::new(clock.clone()).orders(count);
                let replayed = store
                    .replay(&filter, first, clock.now())
                    .await
                    .map_err(failed)?;
                print_line(&format!("{replayed} queued again"))
            }
            Self::Drop(selection) => {
                let dropped = store
                    .discard_dead_letters(&selection.parse()?)
                    .await
                    .map_err(failed)?;
                print_line(&format!("{dropped} dropped"))
            }
        }
    }
}

impl DeadLetterSelection {
    fn parse(self) -> Result<DeadFilter, Exit> {
        let DeadLetterFilter {
            id,
            code,
            since,
            until,
            limit: _,
        } = &self.filter;
        if !self.all
            && [id, code, since, until]
                .iter()
                .all(|selector| selector.is_none())
        {
            return Err(Exit::usage(
                "a selector is required: --id, --code, --since, --until or --all",
            ));
        }
        self.filter.parse()
    }
}

impl DeadLetterFilter {
    fn parse(self) -> Result<DeadFilter, Exit> {
        let id = self.id.map(|id| {
            NotificationId::parse(&id)
                .ok_or_else(|| Exit::usage("--id must be the id of a notification"))
        });
        Ok(DeadFilter {
            id: id.transpose()?,
            code: self.code,
            since: instant("since", self.since)?,
            until: instant("until", self.until)?,
            limit: self.limit.max(0),
        })
    }
}

fn read(config: &Path) -> Result<Config, Exit> {
    read_config(config, &Env::of_process())
}

async fn open(config: &Config) -> Result<Store, Exit> {
    let database =
        Database::open(&config.database, DatabaseOptions::new("postern-notify-cli")).await?;
    Store::open(&database, 3).await
}

async fn check_database(config: &Config) -> Result<(), Exit> {
    let database =
        Database::open(&config.database, DatabaseOptions::new("postern-notify-cli")).await?;
    // A new database has no tables yet.
    database
        .ping()
        .await
        .map_err(|error| Exit::unavailable(format!("database: {error}")))?;
    print_line(&format!("ok      database: {} answers", database.label()))?;
    database.transport_warning().map_or(Ok(()), |text| {
        print_line(&format!("WARNING database: {text}"))
    })
}

fn instant(name: &str, text: Option<String>) -> Result<Option<Timestamp>, Exit> {
    let parse = |text: String| {
        Timestamp::parse(&text)
            .ok_or_else(|| Exit::usage(format!("--{name} must be an RFC 3339 time")))
    };
    text.map(parse).transpose()
}

/// Prints a line to standard output.
fn print_line(line: &str) -> Result<(), Exit> {
    writeln!(std::io::stdout(), "{line}")
        .map_err(|error| Exit::unavailable(format!("standard output: {error}")))
}
