//! The configurations that ship, with other addresses: what the tests run is what the repository
//! has.

use std::path::{Path, PathBuf};

/// The text of a file under `conf/`.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    text: String,
}

/// `conf/` of this repository.
#[must_use]
pub fn conf() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf")
}

// === impl ConfigFile ===

impl ConfigFile {
    /// A file of `conf/`.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn of_repository(name: &str) -> Self {
        let path = conf().join(name);
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { text }
    }

    /// The gateway's, with what the local pool adds to it.
    #[must_use]
    pub fn of_gateway() -> Self {
        Self::of_repository("proxy.toml").append(&Self::of_repository("proxy-local-pool.toml").text)
    }

    /// With another port in the place of one of standalone's.
    ///
    /// # Panics
    /// If the file does not name it.
    #[must_use]
    pub fn port(self, from: u16, to: u16) -> Self {
        let from = format!("127.0.0.1:{from}");
        assert!(self.text.contains(&from), "the config does not name {from}");
        Self {
            text: self.text.replace(&from, &format!("127.0.0.1:{to}")),
        }
    }

    /// With a second address of the loopback beside one that the file names.
    ///
    /// # Panics
    /// If the file does not name the first.
    #[must_use]
    pub fn replica(self, first: u16, second: u16) -> Self {
        let first = format!("\"127.0.0.1:{first}\"");
        assert!(
            self.text.contains(&first),
            "the config does not name {first}"
        );
        Self {
            text: self
                .text
                .replace(&first, &format!("{first}, \"127.0.0.1:{second}\"")),
        }
    }

    /// With another value, in TOML, for a key that stands at the beginning of exactly one line.
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
            "the config has {count} lines that begin with {beginning:?}"
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

    /// With one more key at the beginning of the file.
    #[must_use]
    pub fn insert(self, key: &str, value: &str) -> Self {
        Self {
            text: format!("{key} = {value}\n{}", self.text),
        }
    }

    /// With this table, given without its heading, in the place of the one that stands there or at
    /// the end.
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

    /// With more tables at the end of the file.
    #[must_use]
    pub fn append(self, tables: &str) -> Self {
        Self {
            text: format!("{}\n{tables}", self.text),
        }
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}
