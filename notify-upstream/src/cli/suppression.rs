//! Commands on the suppression list.

use std::convert::Infallible;

use clap::{Args, Subcommand};
use postern_core::clock::Timestamp;
use postern_core::exit::Exit;
use serde_json::json;

use crate::Config;
use crate::address::{self, AddressHash};
use crate::delivery::suppression::{MAX_REMOVED_ROWS, SuppressionList};
use crate::notification::Channel;
use crate::operations::suppression::{SuppressionView, kinds, parse_hash};
use crate::store::SuppressionQuery;

use super::{instant, one_of, open_database};
use postern_core::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum SuppressionCommand {
    /// List addresses, oldest first: time, list, channel, category, reason, SHA-256 of the address.
    /// Addresses are stored as hashes only; search for one with `--address`.
    #[command(after_help = "\
Example:
  postern-notify suppression list --address ada@example.com --json")]
    List {
        /// List: suppressed or unsubscribed. Default: both.
        #[arg(long, value_parser = one_of(SuppressionList::NAMES))]
        list: Option<SuppressionList>,
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
        #[arg(long, value_parser = one_of(SuppressionList::NAMES))]
        list: SuppressionList,
        #[command(flatten)]
        filter: SuppressionFilter,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SuppressionFilter {
    /// Address as written in the request: e-mail address, phone number, device token or
    /// subscription endpoint.
    #[arg(long, value_parser = address_hash)]
    address: Option<AddressHash>,
    /// SHA-256 of the address in hexadecimal digits, as printed by the list.
    #[arg(long, conflicts_with = "address", value_parser = digest)]
    hash: Option<AddressHash>,
    /// Channel: email, sms or push. Default: all.
    #[arg(long, value_parser = one_of(Channel::NAMES))]
    channel: Option<Channel>,
    /// Category that the address has left.
    #[arg(long)]
    category: Option<String>,
    /// Reason, such as `mailbox_unknown`.
    #[arg(long)]
    reason: Option<String>,
    /// Added at or after this time (RFC 3339).
    #[arg(long, value_parser = instant)]
    since: Option<Timestamp>,
    /// Added before this time (RFC 3339).
    #[arg(long, value_parser = instant)]
    until: Option<Timestamp>,
    /// Maximum number of addresses, up to 50000.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(i64).range(0..=MAX_REMOVED_ROWS))]
    limit: i64,
}

// === impl SuppressionCommand ===

impl SuppressionCommand {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), Exit> {
        match self {
            Self::List { list, filter } => {
                let filter = filter.query(list);
                for entry in open_database(&config.database)
                    .await?
                    .suppression_entries(&filter)
                    .await?
                {
                    let entry = SuppressionView::from(&entry);
                    output.record(&line(&entry), &json!(entry))?;
                }
                Ok(())
            }
            Self::Remove { list, filter } => {
                let filter = filter.query(Some(list));
                let is_unrestricted = filter.address.is_none()
                    && [&filter.category, &filter.reason] == [&None, &None]
                    && [filter.since, filter.until] == [None, None];
                if is_unrestricted {
                    return Err(Exit::usage(
                        "a selector is required: --address, --hash, --category, --reason, --since or --until",
                    ));
                }
                let removed = open_database(&config.database)
                    .await?
                    .remove_suppressed(&filter)
                    .await?;
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

fn address_hash(text: &str) -> Result<AddressHash, Infallible> {
    Ok(address::hash(text.trim()))
}

fn digest(text: &str) -> Result<AddressHash, &'static str> {
    parse_hash(text).ok_or("must be 64 hexadecimal digits")
}

// === impl SuppressionFilter ===

impl SuppressionFilter {
    fn query(self, list: Option<SuppressionList>) -> SuppressionQuery {
        SuppressionQuery {
            kinds: kinds(list, self.channel),
            address: self.hash.or(self.address),
            category: self.category,
            reason: self.reason,
            since: self.since,
            until: self.until,
            after: None,
            limit: self.limit,
        }
    }
}
