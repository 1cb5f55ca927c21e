//! Commands on dead letters: notifications that failed permanently.

use std::io::{BufRead, IsTerminal, Write};

use clap::{Args, Subcommand};
use postern_common::Clock;
use postern_common::exit::Exit;
use serde_json::json;

use super::{ATTEMPTS, instant, one_of, open};
use crate::Config;
use crate::notification::{Channel, NotificationId};
use crate::operations::dead::{self, DeadLetterView};
use crate::store::{DeadFilter, Store, StoreError};
use postern_common::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum DeadLetterCommand {
    /// List dead letters, oldest first: id, time, channel, priority, attempts, code, kind of
    /// recipient, template, provider and its last reply.
    #[command(after_help = "\
Examples:
  postern-notify dead list --since 2026-11-20T00:00:00Z
  postern-notify dead list --code mailbox_unknown --json")]
    List(DeadLetterFilter),
    /// Queue dead letters again, with all attempts and a new deadline.
    #[command(after_help = replay_help())]
    Replay(DeadLetterSelection),
    /// Drop dead letters. Their history is kept; they cannot be replayed afterwards.
    #[command(after_help = "\
Examples:
  postern-notify dead drop --code mailbox_unknown --dry-run
  postern-notify dead drop --until 2026-11-01T00:00:00Z --yes")]
    Drop {
        #[command(flatten)]
        selection: DeadLetterSelection,
        /// Drop without asking. Required if standard input is not a terminal.
        #[arg(long)]
        yes: bool,
        /// List what would be dropped, and drop nothing.
        #[arg(long)]
        dry_run: bool,
    },
}

/// A selection of dead letters to change. Requires a filter or `--all`.
#[derive(Debug, Args)]
pub(crate) struct DeadLetterSelection {
    /// Select all dead letters, up to --limit.
    #[arg(long, conflicts_with_all = ["id", "code", "since", "until", "provider", "template", "channel"])]
    all: bool,
    #[command(flatten)]
    filter: DeadLetterFilter,
}

#[derive(Debug, Args)]
pub(crate) struct DeadLetterFilter {
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
    /// Provider of the last result that names one.
    #[arg(long)]
    provider: Option<String>,
    /// Name of the template.
    #[arg(long)]
    template: Option<String>,
    /// Channel: email, sms or push.
    #[arg(long)]
    channel: Option<String>,
    /// Maximum number of notifications.
    #[arg(long, default_value_t = 1000)]
    limit: i64,
}

fn replay_help() -> String {
    format!("Example:\n  postern-notify dead replay --code provider_refused\n\n{ATTEMPTS}")
}

// === impl DeadLetterCommand ===

impl DeadLetterCommand {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), Exit> {
        match self {
            Self::List(filter) => {
                let (filter, store) = (filter.parse()?, open(config).await?);
                list(&store, &filter, output).await.map(drop)
            }
            Self::Replay(selection) => {
                let (filter, store) = (selection.parse()?, open(config).await?);
                let replayed = replay(&store, &filter).await?;
                let text = format!("{replayed} queued again");
                output.record(&text, &json!({ "replayed": replayed }))
            }
            Self::Drop {
                selection,
                yes,
                dry_run,
            } => {
                let filter = selection.parse()?;
                if !dry_run && !yes && !std::io::stdin().is_terminal() {
                    return Err(Exit::usage(
                        "dead letters that are dropped cannot be replayed: add --yes to drop them, or --dry-run to list them",
                    ));
                }
                let store = open(config).await?;
                if dry_run {
                    let found = list(&store, &filter, output).await?;
                    let text = format!("{found} would be dropped");
                    return output.record(&text, &json!({ "wouldDrop": found }));
                }
                if !yes && !confirm(&store, &filter).await? {
                    return Err(Exit::usage("nothing dropped"));
                }
                let dropped = store
                    .discard_dead_letters(&filter)
                    .await
                    .map_err(|error| unavailable(&error))?;
                let text = format!("{dropped} dropped");
                output.record(&text, &json!({ "dropped": dropped }))
            }
        }
    }
}

/// Queues dead letters again, and returns their number.
pub(super) async fn replay(store: &Store, filter: &DeadFilter) -> Result<u64, Exit> {
    let replayed = dead::replay(store, filter, &Clock::system().shared()).await;
    replayed.map_err(|error| unavailable(&error))
}

/// Asks on the terminal whether the selection is to be dropped.
async fn confirm(store: &Store, filter: &DeadFilter) -> Result<bool, Exit> {
    let letters = store.dead_letters(filter).await;
    let count = letters.map_err(|error| unavailable(&error))?.len();
    let failed = |error| Exit::unavailable(format!("terminal: {error}"));
    let mut out = std::io::stderr();
    write!(
        out,
        "Drop {count} dead letters? They cannot be replayed afterwards. [y/N] "
    )
    .and_then(|()| out.flush())
    .map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Prints dead letters with what their history says, and returns their number.
async fn list(store: &Store, filter: &DeadFilter, output: Output) -> Result<usize, Exit> {
    let letters = dead::list(store, filter).await;
    let letters = letters.map_err(|error| unavailable(&error))?;
    for letter in &letters {
        output.record(&line(letter), &json!(letter))?;
    }
    Ok(letters.len())
}

fn line(letter: &DeadLetterView) -> String {
    let word = |text: Option<&str>| text.unwrap_or("-").to_owned();
    format!(
        "{} {} {} {} {} {} {} {} {} {:?}",
        letter.notification_id,
        letter.at,
        letter.channel,
        letter.priority,
        letter.attempts,
        word(letter.code.as_deref()),
        word(letter.recipient_kind),
        word(letter.template.as_deref()),
        word(letter.provider.as_deref()),
        letter.last_reply.as_deref().unwrap_or("-"),
    )
}

fn unavailable(error: &StoreError) -> Exit {
    Exit::unavailable(error.to_string())
}

// === impl DeadLetterSelection ===

impl DeadLetterSelection {
    fn parse(self) -> Result<DeadFilter, Exit> {
        let filter = self.filter.parse()?;
        if !self.all && filter.is_unrestricted() {
            return Err(Exit::usage(
                "a selector is required: --id, --code, --since, --until, --provider, --template, --channel or --all",
            ));
        }
        Ok(filter)
    }
}

// === impl DeadLetterFilter ===

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
            provider: self.provider,
            template: self.template,
            channel: one_of("--channel", Channel::NAMES, self.channel.as_deref())?,
            limit: self.limit.max(0),
        })
    }
}
