//! The levels that docs/reference/log-events.md gives to the messages of log events.

use std::collections::BTreeMap;

use crate::observability::folder;

/// The level of each message of docs/reference/log-events.md that has one, as in the log: `WARN`, or
/// `WARN or INFO`.
#[derive(Clone, Debug)]
pub(super) struct Levels(BTreeMap<String, String>);

// === impl Levels ===

impl Levels {
    pub(super) fn read() -> Self {
        let page = std::fs::read_to_string(folder().join("../../docs/reference/log-events.md"))
            .expect("a page");
        let mut levels = BTreeMap::new();
        for row in page.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.split(" | ").collect();
            let Some(of_row) = cells.get(1).and_then(|cell| parse(cell)) else {
                continue;
            };
            let messages = cells[0].split('`').skip(1).step_by(2);
            // A single level is that of all messages of the row.
            for (at, message) in messages.enumerate() {
                let level = of_row.get(at).or(of_row.last()).expect("a level");
                let level = level.to_uppercase().replace(" OR ", " or ");
                levels.insert(message.to_owned(), level);
            }
        }
        Self(levels)
    }

    /// Returns the level of a message. Access events are not diagnostic events: their level is fixed.
    pub(super) fn of(&self, message: &str) -> &str {
        if message == "request completed" {
            return "INFO";
        }
        let level = self.0.get(message);
        level.unwrap_or_else(|| panic!("docs/reference/log-events.md has no level of {message}"))
    }
}

/// Parses `info, error`, and `warn, further ones debug` as `warn`. Returns `None` for a cell of
/// another table.
fn parse(cell: &str) -> Option<Vec<&str>> {
    let is_level =
        |level: &&str| ["error", "warn", "warn or info", "info", "debug"].contains(level);
    let levels: Vec<&str> = cell.split(", ").take_while(is_level).collect();
    (!levels.is_empty()).then_some(levels)
}
