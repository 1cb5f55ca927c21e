//! The configuration files of the repository with changed addresses, so that tests use the shipped
//! configuration.

use std::path::{Path, PathBuf};

/// The text of a file in `conf/`.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    text: String,
}

/// Returns the path of `conf/` in this repository.
#[must_use]
pub fn conf() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf")
}

// === impl ConfigFile ===

impl ConfigFile {
    /// Reads a file of `conf/`.
    ///
    /// # Panics
    /// If it does not exist.
    #[must_use]
    pub fn of_repository(name: &str) -> Self {
        let path = conf().join(name);
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { text }
    }

    /// Reads the gateway's configuration, with the additions for the local pools.
    #[must_use]
    pub fn of_gateway() -> Self {
        Self::of_repository("proxy.toml").append(&Self::of_repository("proxy-local-pool.toml").text)
    }

    /// Replaces a port of the standalone installation.
    ///
    /// # Panics
    /// If the file does not contain it.
    #[must_use]
    pub fn port(self, from: u16, to: u16) -> Self {
        let from = format!("127.0.0.1:{from}");
        assert!(
            self.text.contains(&from),
            "the configuration does not contain {from}"
        );
        Self {
            text: self.text.replace(&from, &format!("127.0.0.1:{to}")),
        }
    }

    /// Adds a second loopback address next to an existing one.
    ///
    /// # Panics
    /// If the file does not contain the first.
    #[must_use]
    pub fn replica(self, first: u16, second: u16) -> Self {
        let first = format!("\"127.0.0.1:{first}\"");
        assert!(
            self.text.contains(&first),
            "the configuration does not contain {first}"
        );
        Self {
            text: self
                .text
                .replace(&first, &format!("{first}, \"127.0.0.1:{second}\"")),
        }
    }

    /// Replaces the TOML value of a key that begins exactly one line.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn set(self, key: &str, value: &str) -> Self {
        let beginning = format!("{key} = ");
        let count = self
            .text
            .lines()
            .filter(|line| line.starts_with(&beginning))
            .count();
        assert_eq!(
            count, 1,
            "the configuration has {count} lines that begin with {beginning:?}"
        );
        let lines = self.text.lines().map(|line| {
            if line.starts_with(&beginning) {
                format!("{beginning}{value}\n")
            } else {
                format!("{line}\n")
            }
        });
        Self {
            text: lines.collect(),
        }
    }

    /// Inserts a key at the beginning of the file.
    #[must_use]
    pub fn insert(self, key: &str, value: &str) -> Self {
        Self {
            text: format!("{key} = {value}\n{}", self.text),
        }
    }

    /// Replaces a table, or appends it if it does not exist. `keys` does not contain the header.
    #[must_use]
    pub fn table(self, name: &str, keys: &str) -> Self {
        let heading = format!("[{name}]");
        let mut inside = false;
        let rest = self.text.lines().filter(|line| {
            inside = if line.starts_with('[') {
                *line == heading
            } else {
                inside
            };
            !inside
        });
        let rest = rest.collect::<Vec<_>>().join("\n");
        Self {
            text: format!("{rest}\n{heading}\n{keys}"),
        }
    }

    /// Appends tables to the file.
    #[must_use]
    pub fn append(self, tables: &str) -> Self {
        Self {
            text: format!("{}\n{tables}", self.text),
        }
    }

    /// Returns the text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}
