//! The metrics that each alert of `rules.yml` reads.

use std::collections::{BTreeMap, BTreeSet};

use crate::observability::{rules, words};

/// The expressions of `rules.yml`, by the name of the alert or of the recorded series.
#[derive(Debug)]
pub(super) struct Rules(BTreeMap<String, String>);

impl Rules {
    pub(super) fn read() -> Self {
        let rule = |rule: serde_json::Value| {
            let name = rule["alert"].as_str().or_else(|| rule["record"].as_str());
            Some((name?.to_owned(), rule["expr"].as_str()?.to_owned()))
        };
        Self(rules().into_iter().filter_map(rule).collect())
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
        let mut names = BTreeSet::new();
        for word in words(expression) {
            if self.0.contains_key(word) {
                names.extend(self.metrics_of(word));
            } else if word.starts_with("postern_") {
                names.insert(word.to_owned());
            }
        }
        names
    }
}
