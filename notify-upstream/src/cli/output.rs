//! The output of the commands: text for people, or JSON Lines for programs.

use std::io::Write;

use postern_common::exit::Exit;
use serde_json::Value;

/// The form of the output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    /// Whether each record is printed as one line of JSON.
    pub(super) json: bool,
}

// === impl Output ===

impl Output {
    /// Prints a record: `text`, or `value` on one line.
    pub(super) fn record(self, text: &str, value: &Value) -> Result<(), Exit> {
        if self.json {
            print_line(&value.to_string())
        } else {
            print_line(text)
        }
    }
}

/// Prints a line to standard output.
pub(super) fn print_line(line: &str) -> Result<(), Exit> {
    writeln!(std::io::stdout(), "{line}")
        .map_err(|error| Exit::unavailable(format!("standard output: {error}")))
}
