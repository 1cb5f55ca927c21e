//! Commands for operators: checks, notifications, templates, dead letters, the suppression list, delivery
//! reports.
//!
//! Input: command line arguments, and a message on standard input for `dsn`. Output: text and an
//! exit status. Depends on `app`, `config`, the store and the modules whose data it prints; no
//! module depends on it.

mod check;
mod dead;
mod dsn;
mod lookup;
mod serve;
mod suppression;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use postern_core::check::CheckArguments;
use postern_core::clock::Timestamp;
use postern_core::config::{Env, load};
use postern_core::exit::{Exit, run_command};
use postern_core::output::{Output, print_line};
use postern_store::database::{Database, DatabaseOptions};
use serde_json::{Map, Value, json};

use crate::Config;
use crate::notification::{Channel, NotificationId};
use crate::operations::templates::{self, Preview, PreviewError};
use crate::store::{Store, StoreError};
use crate::templates::{Locale, MessageContent, TemplateName, Templates, VariableAuthor};

use self::dead::DeadLetterCommand;
use self::lookup::ListArguments;
use self::suppression::SuppressionCommand;

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
    /// List notifications, newest first: id, time of acceptance, channel, priority, status,
    /// template.
    #[command(after_help = "\
Examples:
  postern-notify list --recipient ada@example.com
  postern-notify list --status FAILED --channel sms --from 2026-11-20T00:00:00Z --limit 500")]
    List(ListArguments),
    /// Check or preview templates.
    #[command(after_help = "\
Examples:
  postern-notify templates check
  postern-notify templates preview welcome --channel email --variables '{\"name\":\"Ada\"}'")]
    #[command(subcommand)]
    Templates(TemplateCommand),
    /// List, replay or drop notifications that failed permanently.
    #[command(after_help = "\
Examples:
  postern-notify dead list --code mailbox_unknown
  postern-notify dead replay --code provider_refused")]
    #[command(subcommand)]
    Dead(DeadLetterCommand),
    /// List or remove suppressed and unsubscribed addresses.
    #[command(after_help = "\
Examples:
  postern-notify suppression list --address ada@example.com
  postern-notify suppression remove --list suppressed --address ada@example.com")]
    #[command(subcommand)]
    Suppression(SuppressionCommand),
    /// Print the JSON schema of the configuration, for editors.
    #[command(after_help = "Example:\n  postern-notify schema > notify.schema.json")]
    Schema,
    /// Read a delivery status notification (RFC 3464) from standard input, as piped by a mail
    /// server.
    #[command(after_help = "Example:\n  postern-notify dsn < report.eml")]
    Dsn,
}

#[derive(Debug, Subcommand)]
pub(super) enum TemplateCommand {
    /// Load all templates and print every error, or the variants found.
    #[command(after_help = "Example:\n  postern-notify templates check --folder conf/templates")]
    Check(TemplateFolder),
    /// Render one template.
    #[command(after_help = "\
Example:
  postern-notify templates preview welcome --channel email --variables '{\"name\":\"Ada\"}'")]
    Preview {
        /// Name of the template.
        #[arg(value_parser = template_name)]
        name: TemplateName,
        /// Channel: email, sms or push.
        #[arg(long, default_value = "email", value_parser = one_of(Channel::NAMES))]
        channel: Channel,
        /// Requested locale.
        #[arg(long, value_parser = locale)]
        locale: Option<Locale>,
        /// Variables as a JSON object.
        #[arg(long, default_value = "{}", value_parser = variables)]
        variables: Map<String, Value>,
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
    #[arg(long, default_value = "en", value_parser = locale)]
    default_locale: Locale,
}

/// The attempts of a notification, for `--help`; a test compares it with the policy and the manual.
pub(super) const ATTEMPTS: &str = "A notification has at most 30 attempts if it is CRITICAL, 25 if HIGH, 20 if NORMAL and \
15 if LOW, within 6, 24, 72 and 72 hours. `dead replay` gives it all attempts again, with a new deadline and under the same id.";

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
            Self::List(arguments) => {
                Box::pin(lookup::list(&read(config)?, arguments, output)).await
            }
            Self::Templates(TemplateCommand::Check(folder)) => {
                check_templates(&folder.load()?, output)
            }
            Self::Templates(TemplateCommand::Preview {
                name,
                channel,
                locale,
                variables,
                folder,
            }) => {
                let wanted = (&name, channel, locale.as_ref());
                preview(&folder.load()?, wanted, &variables, output)
            }
            Self::Dead(command) => Box::pin(command.run(&read(config)?, output)).await,
            Self::Suppression(command) => Box::pin(command.run(&read(config)?, output)).await,
            Self::Schema => print_line(SCHEMA.trim_end()),
            Self::Dsn => Box::pin(dsn::run(read(config), output)).await,
        }
    }
}

impl TemplateFolder {
    fn load(self) -> Result<Templates, Exit> {
        Templates::load(&self.folder, self.default_locale).map_err(Exit::usage)
    }
}

fn check_templates(templates: &Templates, output: Output) -> Result<(), Exit> {
    for (name, channel, locale) in templates.variants() {
        let (name, channel, locale) = (name.as_str(), channel.as_str(), locale.as_str());
        let value = json!({ "template": name, "channel": channel, "locale": locale });
        output.record(&format!("{name} {channel} {locale}"), &value)?;
    }
    let count = templates.len();
    output.record(
        &format!("{count} template(s) valid"),
        &json!({ "validTemplates": count }),
    )
}

fn preview(
    templates: &Templates,
    wanted: (&TemplateName, Channel, Option<&Locale>),
    variables: &Map<String, Value>,
    output: Output,
) -> Result<(), Exit> {
    let author = VariableAuthor::Service;
    let found = templates::preview(templates, wanted, variables, author);
    let found = found.map_err(|error| match error {
        PreviewError::NotFound => Exit::usage("no such template for this channel"),
        PreviewError::Missing(names) => {
            Exit::usage(format!("missing variables: {}", names.join(", ")))
        }
        PreviewError::Render(error) => Exit::usage(error.to_string()),
    })?;
    let Preview {
        version,
        locale,
        content,
    } = found;
    let value = templates::content_json(&content);
    let text = match content {
        MessageContent::Email {
            subject,
            text,
            html,
        } => {
            let html = html.map_or(String::new(), |html| format!("\n---\n{html}"));
            format!("Subject: {subject}\n\n{text}{html}")
        }
        MessageContent::Sms { text } => text,
        MessageContent::Push { title, body } => format!("{title}\n{body}"),
    };
    let value = json!({ "version": version, "locale": locale, "content": value });
    let text = format!("version {version}, language {locale}\n{text}");
    output.record(&text, &value)
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

// Parsers of arguments.

fn instant(text: &str) -> Result<Timestamp, &'static str> {
    Timestamp::parse(text).ok_or("must be an RFC 3339 time")
}

fn notification_id(text: &str) -> Result<NotificationId, &'static str> {
    NotificationId::parse(text).ok_or("must be the id of a notification")
}

fn one_of<T: Copy>(
    words: &'static [(&'static str, T)],
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let found = words.iter().find(|(known, _)| *known == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let known: Vec<&str> = words.iter().map(|(known, _)| *known).collect();
            format!("must be one of {}", known.join(", "))
        })
    }
}

fn template_name(text: &str) -> Result<TemplateName, &'static str> {
    TemplateName::parse(text).ok_or("must be of a-z, 0-9, - and _")
}

fn locale(text: &str) -> Result<Locale, &'static str> {
    Locale::parse(text).ok_or("must be a tag such as de-AT")
}

fn variables(text: &str) -> Result<Map<String, Value>, serde_json::Error> {
    serde_json::from_str(text)
}

#[cfg(test)]
mod tests;
