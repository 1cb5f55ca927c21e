//! The command line of a query, and the output of its result.

use clap::Args;

use super::{DEFAULT_ENTRIES, Timeline, TimelineQuery};
use crate::http::Query;
use postern_core::clock::Timestamp;
use postern_core::exit::Exit;
use postern_core::output::print_line;

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

impl TimelineArguments {
    /// Returns the query.
    pub fn query(&self, now: Timestamp) -> Result<TimelineQuery, Exit> {
        let limit = self.limit.to_string();
        let mut query = Query::of_options([
            ("email", self.email.as_deref().map(str::trim)),
            ("user", self.user.as_deref()),
            ("request", self.request.as_deref()),
            ("since", self.since.as_deref()),
            ("until", self.until.as_deref()),
            ("limit", Some(&limit)),
        ]);
        let read = TimelineQuery::read(&mut query, now);
        query.finish_options()?;
        Ok(read)
    }

    /// Prints a time line: one line for each event, or JSON.
    pub fn print(&self, timeline: &Timeline) -> Result<(), Exit> {
        if self.json {
            let text = serde_json::to_string_pretty(timeline);
            return print_line(&text.unwrap_or_default());
        }
        if timeline.is_truncated {
            print_line("(older events left out, see --limit and --until)")?;
        }
        for entry in &timeline.entries {
            print_line(&entry.to_string())?;
        }
        match timeline.entries.is_empty() {
            true => print_line("no events found"),
            false => Ok(()),
        }
    }
}
