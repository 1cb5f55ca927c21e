//! Commands on the suppression list.

use clap::{Args, Subcommand};
use postern_common::exit::Exit;
use serde_json::json;

use crate::Config;
use crate::address;
use crate::delivery::suppression::{MAX_REMOVED_ROWS, SuppressionList};
use crate::notification::Channel;
use crate::operations::suppression::{SuppressionView, kinds, parse_hash};
use crate::store::{StoreError, SuppressionQuery};

use super::{instant, one_of, open_database};
use postern_common::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum SuppressionCommand {
    /// List addresses, oldest first: time, list, channel, category, reason, SHA-256 of the address.
    /// Addresses are stored as hashes only; search for one with `--address`.
    #[command(after_help = "\
Example:
  postern-notify suppression list --address ada@example.com --json")]
    List {
        /// List: suppressed or unsubscribed. Default: both.
        #[arg(long)]
        list: Option<String>,
        #[command(flatten)]
        filter: SuppressionFilter,
    },
    /// Remove addresses from a list. All replicas apply it within seconds. An address that bounces
    /// again is suppressed again.
    #[command(after_help = "\
Example:
  postern-notify suppression remove --list suppressed --address ada@example.com")]
    Remove {
        /// List: suppressed (addresses proven not to exist) or unsubscribed (addresses that have left
        /// a category; remove them only at the owner's request).
        #[arg(long)]
        list: String,
        #[command(flatten)]
        filter: SuppressionFilter,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SuppressionFilter {
    /// Address as written in the request: e-mail address, phone number, device token or
    /// subscription endpoint.
    #[arg(long)]
    address: Option<String>,
    /// SHA-256 of the address in hexadecimal digits, as printed by the list.
    #[arg(long, conflicts_with = "address")]
    hash: Option<String>,
    /// Channel: email, sms or push. Default: all.
    #[arg(long)]
    channel: Option<String>,
    /// Category that the address has left.
    #[arg(long)]
    category: Option<String>,
    /// Reason, such as `mailbox_unknown`.
    #[arg(long)]
    reason: Option<String>,
    /// Added at or after this time (RFC 3339).
    #[arg(long)]
    since: Option<String>,
    /// Added before this time (RFC 3339).
    #[arg(long)]
    until: Option<String>,
    /// Maximum number of addresses, up to 50000.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(i64).range(0..=MAX_REMOVED_ROWS))]
    limit: i64,
}

// === impl SuppressionCommand ===

impl SuppressionCommand {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), Exit> {
        let unavailable = |error: StoreError| Exit::unavailable(error.to_string());
        match self {
            Self::List { list, filter } => {
                let filter = filter.parse(list.as_deref())?;
                for entry in open_database(&config.database)
                    .await?
                    .suppression_entries(&filter)
                    .await
                    .map_err(unavailable)?
                {
                    let entry = SuppressionView::from(&entry);
                    output.record(&line(&entry), &json!(entry))?;
                }
                Ok(())
            }
            Self::Remove { list, filter } => {
                if filter.is_unrestricted() {
                    return Err(Exit::usage(
                        "a selector is required: --address, --hash, --category, --reason, --since or --until",
                    ));
                }
                let filter = filter.parse(Some(&list))?;
                let removed = open_database(&config.database)
                    .await?
                    .remove_suppressed(&filter)
                    .await
                    .map_err(unavailable)?;
                let text = format!("{removed} removed");
                output.record(&text, &json!({ "removed": removed }))
            }
        }
    }
}

fn line(entry: &SuppressionView) -> String {
    format!(
        "{} {} {} {} {} {}",
        entry.at,
        entry.list.unwrap_or("-"),
        entry.channel.unwrap_or("-"),
        entry.category.as_deref().unwrap_or("-"),
        entry.reason,
        entry.address_hash
    )
}

// === impl SuppressionFilter ===

impl SuppressionFilter {
    fn is_unrestricted(&self) -> bool {
        let Self {
            address,
            hash,
            channel: _,
            category,
            reason,
            since,
            until,
            limit: _,
        } = self;
        [address, hash, category, reason, since, until]
            .iter()
            .all(|choice| choice.is_none())
    }

    fn parse(self, list: Option<&str>) -> Result<SuppressionQuery, Exit> {
        let list = one_of("--list", SuppressionList::NAMES, list)?;
        let channel = one_of("--channel", Channel::NAMES, self.channel.as_deref())?;
        let kinds = kinds(list, channel);
        let by_hash = self.hash.map(|text| {
            parse_hash(&text).ok_or_else(|| Exit::usage("--hash must be 64 hexadecimal digits"))
        });
        Ok(SuppressionQuery {
            kinds,
            address: by_hash
                .transpose()?
                .or(self.address.map(|text| address::hash(text.trim()))),
            category: self.category,
            reason: self.reason,
            since: instant("since", self.since)?,
            until: instant("until", self.until)?,
            after: None,
            limit: self.limit,
        })
    }
}
