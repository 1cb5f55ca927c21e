//! The configuration files of the repository, with changed addresses and settings. Tests use the
//! shipped configuration in this way.

use crate::paths;

/// The changed text of a file in `conf/`.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    text: String,
}

// === impl ConfigFile ===

impl ConfigFile {
    /// Reads a file of `conf/`.
    ///
    /// # Panics
    /// If it does not exist.
    #[must_use]
    pub fn of_repository(name: &str) -> Self {
        let text = paths::read(&format!("conf/{name}"));
        Self { text }
    }

    /// Reads the gateway's configuration, with the additions for the local pools.
    #[must_use]
    pub fn of_gateway() -> Self {
        Self::of_repository("proxy.toml").append(&Self::of_repository("proxy-local-pool.toml").text)
    }

    /// Replaces every occurrence of the loopback address with port `from`.
    ///
    /// # Panics
    /// If the file does not contain the address.
    #[must_use]
    pub fn replace_port(self, from: u16, to: u16) -> Self {
        let from = format!("127.0.0.1:{from}");
        assert!(
            self.text.contains(&from),
            "the configuration does not contain {from}"
        );
        Self {
            text: self.text.replace(&from, &format!("127.0.0.1:{to}")),
        }
    }

    /// Adds the loopback address with port `second` to each list that contains the one with port
    /// `first`.
    ///
    /// # Panics
    /// If the file does not contain the first address.
    #[must_use]
    pub fn add_replica(self, first: u16, second: u16) -> Self {
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

    /// Sets the social provider, which is authoritative for the addresses of the sample persons.
    #[must_use]
    pub fn social_provider(self, issuer: &str) -> Self {
        let google = "# authoritative_domains = [\"gmail.com\", \"googlemail.com\"]";
        self.set("issuer", &crate::installation::quoted(issuer))
            .replace(google, "authoritative_domains = [\"example.com\"]")
    }

    /// Replaces the value of a key, in any table. `value` is TOML, for instance a quoted string.
    ///
    /// # Panics
    /// Unless exactly one line begins with `key = `.
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

    /// Replaces a text.
    ///
    /// # Panics
    /// Unless it occurs exactly once.
    #[must_use]
    pub fn replace(self, from: &str, to: &str) -> Self {
        let count = self.text.matches(from).count();
        assert_eq!(
            count, 1,
            "the configuration contains {from:?} {count} times"
        );
        Self {
            text: self.text.replace(from, to),
        }
    }

    /// Inserts a top-level key at the beginning of the file.
    #[must_use]
    pub fn insert(self, key: &str, value: &str) -> Self {
        Self {
            text: format!("{key} = {value}\n{}", self.text),
        }
    }

    /// Adds a key to a table, which the file has.
    ///
    /// # Panics
    /// If the file has no such table.
    #[must_use]
    pub fn add_to_table(self, name: &str, key: &str, value: &str) -> Self {
        let heading = format!("[{name}]\n");
        assert!(self.text.contains(&heading), "no table {heading}");
        let with_key = format!("{heading}{key} = {value}\n");
        Self {
            text: self.text.replacen(&heading, &with_key, 1),
        }
    }

    /// Replaces the keys of a table, or appends the table if it does not exist. `keys` does not
    /// contain the header. The table becomes the last one of the file.
    #[must_use]
    pub fn replace_table(self, name: &str, keys: &str) -> Self {
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

    /// Appends tables, with their headers, to the file.
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
