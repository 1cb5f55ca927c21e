//! The output of commands: text for people, or JSON for programs.
//!
//! Input: a record as text and as JSON. Output: lines on standard output.

use std::io::{ErrorKind, Write};

use serde_json::{Map, Value, json};

use crate::exit::Exit;

/// The form of the output.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Whether each record is printed as one line of JSON (`--json`).
    pub json: bool,
}

/// Characters of a label with the spaces behind it.
const LABEL_WIDTH: usize = 11;

impl Output {
    /// Prints a record: `text`, or `value` on one line.
    pub fn record(self, text: &str, value: &Value) -> Result<(), Exit> {
        match self.json {
            true => print_line(&value.to_string()),
            false => print_line(text),
        }
    }

    /// Prints the lines of an explanation, or one object with a member for each label.
    pub fn explanation(self, text: &str) -> Result<(), Exit> {
        self.record(text.trim_end(), &explanation_json(text))
    }
}

/// Prints a line to standard output. A pipe that the reader has closed, as `head` does, is no error.
pub fn print_line(line: &str) -> Result<(), Exit> {
    match writeln!(std::io::stdout().lock(), "{line}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Exit::unavailable(format!("standard output: {error}")))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Returns the lines of an explanation of a decision by their labels. A line without a label
/// continues the one before; a label with several lines has a list.
#[must_use]
pub fn explanation_json(text: &str) -> Value {
    let mut steps = Map::new();
    let mut last = String::new();
    for line in text.lines() {
        let (label, detail) = line.split_at_checked(LABEL_WIDTH).unwrap_or((line, ""));
        if !label.trim().is_empty() {
            label.trim().clone_into(&mut last);
        }
        let detail = json!(detail.trim());
        match steps.get_mut(&last) {
            None => drop(steps.insert(last.clone(), detail)),
            Some(Value::Array(all)) => all.push(detail),
            Some(first) => *first = json!([first.take(), detail]),
        }
    }
    Value::Object(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_members_and_repeated_ones_are_lists() {
        let text = "decision   201\nprovider   a\n           b\nprovider   c d\n";
        let expected = json!({ "decision": "201", "provider": ["a", "b", "c d"] });
        assert_eq!(explanation_json(text), expected);
    }
}
