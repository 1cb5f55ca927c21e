//! The metrics that each alert of `rules.yml` reads.

use std::collections::{BTreeMap, BTreeSet};

use postern_harness::paths::read;

/// The expressions of `rules.yml`, by the name of the alert or of the recorded series.
#[derive(Debug)]
pub(super) struct Rules(BTreeMap<String, String>);

// === impl Rules ===

impl Rules {
    pub(super) fn read() -> Self {
        let text = read("conf/observability/rules.yml");
        let rules = text.split("\n      - ").skip(1).filter_map(|rule| {
            let (_, name) = rule.lines().next()?.split_once(": ")?;
            let (_, rest) = rule.split_once("expr: |\n")?;
            let lines = rest
                .lines()
                .take_while(|line| line.starts_with("          "));
            Some((name.to_owned(), lines.collect::<Vec<_>>().join("\n")))
        });
        Self(rules.collect())
    }

    /// Returns whether there is an alert or a recorded series of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns the names of the exported metrics in the expression of a rule, and in those of the
    /// recorded series that it reads.
    pub(super) fn metrics_of(&self, name: &str) -> BTreeSet<String> {
        let expression = self.0.get(name);
        let expression = expression.unwrap_or_else(|| panic!("rules.yml has no {name}"));
        let is_separator =
            |letter: char| !(letter.is_ascii_alphanumeric() || letter == '_' || letter == ':');
        let mut names = BTreeSet::new();
        for word in expression.split(is_separator) {
            if self.0.contains_key(word) {
                names.extend(self.metrics_of(word));
            } else if word.starts_with("postern_") {
                names.insert(word.to_owned());
            }
        }
        names
    }
}
