//! Commands on dead letters: notifications that failed permanently.

use std::io::{BufRead, IsTerminal, Write};

use clap::{Args, Subcommand};
use postern_core::Clock;
use postern_core::clock::Timestamp;
use postern_core::exit::Exit;
use serde_json::json;

use super::{ATTEMPTS, instant, notification_id, one_of, open};
use crate::Config;
use crate::notification::{Channel, NotificationId};
use crate::operations::dead::{self, DeadLetterView};
use crate::store::{DeadFilter, Store};
use postern_core::output::Output;

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
    #[arg(long, value_parser = notification_id)]
    id: Option<NotificationId>,
    /// Failure code, such as provider_refused.
    #[arg(long)]
    code: Option<String>,
    /// Failed at or after this time (RFC 3339).
    #[arg(long, value_parser = instant)]
    since: Option<Timestamp>,
    /// Failed before this time (RFC 3339).
    #[arg(long, value_parser = instant)]
    until: Option<Timestamp>,
    /// Provider of the last result that names one.
    #[arg(long)]
    provider: Option<String>,
    /// Name of the template.
    #[arg(long)]
    template: Option<String>,
    /// Channel: email, sms or push.
    #[arg(long, value_parser = one_of(Channel::NAMES))]
    channel: Option<Channel>,
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
                let store = open(config).await?;
                list(&store, &filter.into(), output).await.map(drop)
            }
            Self::Replay(selection) => {
                let (filter, store) = (selection.parse()?, open(config).await?);
                let replayed = dead::replay(&store, &filter, &Clock::system().shared()).await?;
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
                let dropped = store.discard_dead_letters(&filter).await?;
                let text = format!("{dropped} dropped");
                output.record(&text, &json!({ "dropped": dropped }))
            }
        }
    }
}

/// Asks on the terminal whether the selection is to be dropped.
async fn confirm(store: &Store, filter: &DeadFilter) -> Result<bool, Exit> {
    let count = store.dead_letters(filter).await?.len();
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
    let letters = dead::list(store, filter).await?;
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

// === impl DeadLetterSelection ===

impl DeadLetterSelection {
    fn parse(self) -> Result<DeadFilter, Exit> {
        let filter = DeadFilter::from(self.filter);
        if !self.all && filter.is_unrestricted() {
            return Err(Exit::usage(
                "a selector is required: --id, --code, --since, --until, --provider, --template, --channel or --all",
            ));
        }
        Ok(filter)
    }
}

impl From<DeadLetterFilter> for DeadFilter {
    fn from(filter: DeadLetterFilter) -> Self {
        Self {
            id: filter.id,
            code: filter.code,
            since: filter.since,
            until: filter.until,
            provider: filter.provider,
            template: filter.template,
            channel: filter.channel,
            limit: filter.limit.max(0),
        }
    }
}
