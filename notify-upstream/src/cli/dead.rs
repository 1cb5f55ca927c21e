//! Commands on dead letters: notifications that failed permanently.

use std::collections::HashMap;
use std::io::{BufRead, IsTerminal, Write};

use clap::{Args, Subcommand};
use postern_common::Clock;
use postern_common::exit::Exit;
use serde_json::json;

use super::output::Output;
use super::{ATTEMPTS, instant, open};
use crate::Config;
use crate::address::Recipient;
use crate::notification::{NotificationId, OrderSequence};
use crate::store::{
    DeadFilter, DeadLetter, HistoryEntry, NotificationSnapshot, ResultRow, Store, StoreError,
};

/// Number of notifications that are read at a time.
const READ_BATCH_SIZE: usize = 200;

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
    #[command(after_help = ATTEMPTS)]
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
    #[arg(long, conflicts_with_all = ["id", "code", "since", "until"])]
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
    /// Maximum number of notifications.
    #[arg(long, default_value_t = 1000)]
    limit: i64,
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
    let clock = Clock::system();
    let count = usize::try_from(filter.limit).unwrap_or(usize::MAX);
    let first = OrderSequence::new(clock.clone()).orders(count);
    let replayed = store.replay(filter, first, clock.now()).await;
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
    let letters = store.dead_letters(filter).await;
    let letters = letters.map_err(|error| unavailable(&error))?;
    for batch in letters.chunks(READ_BATCH_SIZE) {
        let ids: Vec<NotificationId> = batch.iter().map(|letter| letter.id).collect();
        let snapshots = store
            .read(&ids)
            .await
            .map_err(|error| unavailable(&error))?;
        let snapshots: HashMap<_, _> = snapshots
            .into_iter()
            .map(|snapshot| (snapshot.id, snapshot))
            .collect();
        for letter in batch {
            print_letter(letter, snapshots.get(&letter.id), output)?;
        }
    }
    Ok(letters.len())
}

fn print_letter(
    letter: &DeadLetter,
    snapshot: Option<&NotificationSnapshot>,
    output: Output,
) -> Result<(), Exit> {
    let last = snapshot.and_then(last_result);
    let provider = last.and_then(|result| result.provider.as_deref());
    let reply = last.and_then(|result| result.detail.as_deref());
    let recipient_kind = snapshot.and_then(|snapshot| {
        let recipient: Option<Recipient> = serde_json::from_str(&snapshot.record.recipient).ok();
        recipient.map(|recipient| recipient.kind())
    });
    let template = snapshot.map(|snapshot| snapshot.record.template.as_str());
    let (channel, priority) = (letter.lane.channel.as_str(), letter.lane.priority.as_str());
    let (code, attempts) = (letter.code.as_deref(), letter.attempt);
    let word = |text: Option<&str>| text.unwrap_or("-").to_owned();
    let text = format!(
        "{} {} {channel} {priority} {attempts} {} {} {} {} {:?}",
        letter.id,
        letter.at,
        word(code),
        word(recipient_kind),
        word(template),
        word(provider),
        reply.unwrap_or("-"),
    );
    let value = json!({
        "notificationId": letter.id.to_string(), "at": letter.at, "channel": channel, "priority": priority,
        "attempts": attempts, "code": code, "recipientKind": recipient_kind, "template": template,
        "provider": provider, "lastReply": reply,
    });
    output.record(&text, &value)
}

/// Returns the last result that a provider gave, or else the last one.
fn last_result(snapshot: &NotificationSnapshot) -> Option<&ResultRow> {
    let results = || {
        snapshot
            .history
            .iter()
            .rev()
            .filter_map(|entry| match entry {
                HistoryEntry::Result(result) => Some(result),
                HistoryEntry::Receipt(_) | HistoryEntry::Waiting(_) => None,
            })
    };
    results()
        .find(|result| result.provider.is_some())
        .or_else(|| results().next())
}

fn unavailable(error: &StoreError) -> Exit {
    Exit::unavailable(error.to_string())
}

// === impl DeadLetterSelection ===

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
            limit: self.limit.max(0),
        })
    }
}
