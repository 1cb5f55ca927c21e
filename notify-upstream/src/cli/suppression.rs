use clap::{Args, Subcommand};
use postern_common::Clock;
use postern_common::exit::Exit;

use crate::Config;
use crate::address::{self, AddressHash};
use crate::delivery::suppression::{LIFT, List};
use crate::notification::Channel;
use crate::store::{StoreError, Suppressed, SuppressedFilter};

use super::{instant, open, say};

#[derive(Debug, Subcommand)]
pub(crate) enum SuppressionCommand {
    /// Lists them, the oldest first: since when, list, channel, why, SHA-256 of the address.
    /// Addresses themselves are not kept: ask with `--address`.
    List {
        /// suppressed or unsubscribed; without it both.
        #[arg(long)]
        list: Option<String>,
        #[command(flatten)]
        filter: Filter,
    },
    /// Takes addresses off a list; every replica follows within seconds. An address that bounces
    /// again comes back.
    Remove {
        /// suppressed: addresses that are proven not to exist. unsubscribed: addresses whose
        /// holders asked for no more mail of templates that offer that; only they themselves can
        /// take that back.
        #[arg(long)]
        list: String,
        #[command(flatten)]
        filter: Filter,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Filter {
    /// One address, as it was written in the request: an e-mail address, a phone number, a device
    /// token, the endpoint of a subscription.
    #[arg(long)]
    address: Option<String>,
    /// One address, by its SHA-256 in hexadecimal digits, as the list shows it.
    #[arg(long, conflicts_with = "address")]
    hash: Option<String>,
    /// email, sms or push; without it all.
    #[arg(long)]
    channel: Option<String>,
    /// A reason, such as `mailbox_unknown`.
    #[arg(long)]
    reason: Option<String>,
    /// Noted at or after this instant (RFC 3339).
    #[arg(long)]
    since: Option<String>,
    /// Noted before this instant (RFC 3339).
    #[arg(long)]
    until: Option<String>,
    /// At most so many, up to 50000.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(i64).range(0..=LIFT))]
    limit: i64,
}

// === impl SuppressionCommand ===

impl SuppressionCommand {
    pub(super) async fn run(self, config: &Config) -> Result<(), Exit> {
        let away = |error: StoreError| Exit::unavailable(error.to_string());
        match self {
            Self::List { list, filter } => {
                let filter = filter.parse(list.as_deref())?;
                for entry in open(config)
                    .await?
                    .suppressed(&filter)
                    .await
                    .map_err(away)?
                {
                    say(&line(&entry))?;
                }
                Ok(())
            }
            Self::Remove { list, filter } => {
                if filter.is_wide_open() {
                    return Err(Exit::usage(
                        "say which: --address, --hash, --reason, --since or --until",
                    ));
                }
                let filter = filter.parse(Some(&list))?;
                let lifted = open(config)
                    .await?
                    .lift(&filter, Clock::system().now())
                    .await
                    .map_err(away)?;
                say(&format!("{lifted} removed"))
            }
        }
    }
}

fn line(entry: &Suppressed) -> String {
    let (list, channel) = List::of_kind(entry.kind).map_or(("-", "-"), |(list, channel)| {
        (list.as_str(), channel.as_str())
    });
    format!(
        "{} {list} {channel} {} {}",
        entry.at,
        entry.reason,
        address::hex(&entry.address)
    )
}

// === impl Filter ===

impl Filter {
    fn is_wide_open(&self) -> bool {
        let Self {
            address,
            hash,
            channel: _,
            reason,
            since,
            until,
            limit: _,
        } = self;
        [address, hash, reason, since, until]
            .iter()
            .all(|choice| choice.is_none())
    }

    fn parse(self, list: Option<&str>) -> Result<SuppressedFilter, Exit> {
        let list = one_of("--list", List::WORDS, list)?;
        let channel = one_of("--channel", Channel::WORDS, self.channel.as_deref())?;
        let kinds = List::WORDS
            .iter()
            .flat_map(|(_, list)| Channel::ALL.map(|channel| (*list, channel)))
            .filter(|(known, of)| {
                list.is_none_or(|list| list == *known) && channel.is_none_or(|c| c == *of)
            })
            .map(|(list, channel)| list.kind(channel))
            .collect();
        let by_hash = self.hash.map(|text| {
            let hash: Option<AddressHash> =
                address::from_hex(&text).and_then(|hash| hash.try_into().ok());
            hash.ok_or_else(|| Exit::usage("--hash must be 64 hexadecimal digits"))
        });
        Ok(SuppressedFilter {
            kinds,
            address: by_hash
                .transpose()?
                .or(self.address.map(|text| address::hash(text.trim()))),
            reason: self.reason,
            since: instant("since", self.since)?,
            until: instant("until", self.until)?,
            limit: self.limit,
        })
    }
}

fn one_of<T: Copy>(flag: &str, words: &[(&str, T)], word: Option<&str>) -> Result<Option<T>, Exit> {
    let Some(word) = word else { return Ok(None) };
    let found = words.iter().find(|(known, _)| *known == word);
    found.map(|(_, value)| Some(*value)).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(known, _)| *known).collect();
        Exit::usage(format!("{flag} must be one of {}", known.join(", ")))
    })
}
