//! The command line of a query, and the output of its result.

use std::io::Write;

use clap::Args;

use super::{
    DEFAULT_ENTRIES, MAX_ENTRIES, Timeline, TimelineQuery, TimelineSelector, parse_id,
    parse_instant,
};
use postern_core::clock::Timestamp;
use postern_core::email::EmailAddress;
use postern_core::exit::Exit;

/// The options of commands that print a time line.
#[derive(Debug, Args)]
pub struct TimelineArguments {
    /// E-mail address of the person
    #[arg(long, value_name = "ADDRESS")]
    pub email: Option<String>,
    /// The person's subject in the pool, which is also the actor id
    #[arg(long, value_name = "SUBJECT", conflicts_with = "email")]
    pub user: Option<String>,
    /// Request id (X-Request-Id of the response)
    #[arg(long, value_name = "ID", conflicts_with_all = ["email", "user"])]
    pub request: Option<String>,
    /// Only events at or after this time: RFC 3339, or a duration before now such as 24h
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only events before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Maximum number of events, up to 1000; the newest are printed
    #[arg(long, default_value_t = DEFAULT_ENTRIES, value_name = "NUMBER")]
    pub limit: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

// === impl TimelineArguments ===

impl TimelineArguments {
    /// Returns the query.
    ///
    /// # Errors
    /// Exit status 64 if an option is malformed.
    pub fn query(&self, now: Timestamp) -> Result<TimelineQuery, Exit> {
        let id = |name: &str, text: &Option<String>| {
            let parsed = text.as_deref().map(|text| {
                let usage = || Exit::usage(format!("--{name} must be an identifier"));
                parse_id(text).ok_or_else(usage)
            });
            parsed.transpose()
        };
        let instant = |name: &str, text: &Option<String>, default| {
            let parsed = text.as_deref().map(|text| {
                let form = "must be an RFC 3339 time, or a duration such as 24h";
                parse_instant(text, now).ok_or_else(|| Exit::usage(format!("--{name} {form}")))
            });
            parsed.unwrap_or(Ok(default))
        };
        let email = self.email.as_deref().map(|text| {
            let usage = || Exit::usage("--email must be an e-mail address");
            EmailAddress::parse(text.trim()).ok_or_else(usage)
        });
        let selector = email
            .transpose()?
            .map(TimelineSelector::Email)
            .or(id("user", &self.user)?.map(TimelineSelector::User))
            .or(id("request", &self.request)?.map(TimelineSelector::Request))
            .unwrap_or(TimelineSelector::All);
        if !(1..=MAX_ENTRIES).contains(&self.limit) {
            return Err(Exit::usage(format!("--limit must be 1 to {MAX_ENTRIES}")));
        }
        Ok(TimelineQuery {
            selector,
            since: instant("since", &self.since, Timestamp(0))?,
            until: instant("until", &self.until, Timestamp(i64::MAX))?,
            limit: self.limit,
        })
    }

    /// Writes a time line: one line for each event, or JSON. A reader that closes the pipe early,
    /// such as `head`, is no error.
    pub fn write(&self, timeline: &Timeline, out: &mut impl Write) {
        let _closed = if self.json {
            serde_json::to_string_pretty(timeline)
                .map_err(std::io::Error::from)
                .and_then(|text| writeln!(out, "{text}"))
        } else {
            write_text(timeline, out)
        };
    }
}

fn write_text(timeline: &Timeline, out: &mut impl Write) -> std::io::Result<()> {
    if timeline.is_truncated {
        writeln!(out, "(older events left out, see --limit and --until)")?;
    }
    for entry in &timeline.entries {
        writeln!(out, "{entry}")?;
    }
    if timeline.entries.is_empty() {
        writeln!(out, "no events found")?;
    }
    Ok(())
}
