//! Logs: one event a line on standard error.
//!
//! A message says what happened, fields say to what; a unit stands in the field's name (`elapsed_ms`). An error
//! is logged once, at the rim. Never a token, secret, password, address or message body.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line, for machines.
    #[default]
    Json,
    /// Words, for a terminal.
    Text,
}

/// Sends the process's events to standard error. `filter` is a level or a `tracing` filter such as
/// `info,postern_proxy=debug`. Called once; a second call changes nothing.
pub fn init(format: Format, filter: &str) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _already_set = match format {
        Format::Json => builder.json().flatten_event(true).try_init(),
        Format::Text => builder.with_target(false).with_ansi(std::io::stderr().is_terminal()).try_init(),
    };
}
