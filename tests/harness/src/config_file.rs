//! The configuration files of the repository, with changed addresses and settings. Tests use the
//! shipped configuration in this way.

use crate::paths;

/// The changed text of a file in `conf/`.
#[derive(Clone, Debug)]
pub struct ConfigFile(String);

impl ConfigFile {
    /// Reads a file of `conf/`.
    pub fn of_repository(name: &str) -> Self {
        Self(paths::read(&format!("conf/{name}")))
    }

    /// Reads the gateway's configuration, with the additions for the local pools.
    pub fn of_gateway() -> Self {
        Self::of_repository("proxy.toml")
            .append(Self::of_repository("proxy-local-pool.toml").text())
    }

    fn replace_all(self, from: &str, to: &str) -> Self {
        assert!(
            self.0.contains(from),
            "the configuration does not contain {from}"
        );
        Self(self.0.replace(from, to))
    }

    /// Replaces every occurrence of the loopback address with port `from`.
    pub fn replace_port(self, from: u16, to: u16) -> Self {
        self.replace_all(&format!("127.0.0.1:{from}"), &format!("127.0.0.1:{to}"))
    }

    /// Adds the loopback address with port `second` to each list that contains the one with port
    /// `first`.
    pub fn add_replica(self, first: u16, second: u16) -> Self {
        let first = format!("\"127.0.0.1:{first}\"");
        self.replace_all(&first, &format!("{first}, \"127.0.0.1:{second}\""))
    }

    /// Sets the social provider, which is authoritative for the addresses of the sample persons.
    pub fn social_provider(self, issuer: &str) -> Self {
        let google = "# authoritative_domains = [\"gmail.com\", \"googlemail.com\"]";
        self.set_text("issuer", issuer)
            .replace(google, "authoritative_domains = [\"example.com\"]")
    }

    /// Replaces the value of a key, in any table. `value` is TOML. Exactly one line must begin with
    /// `key = `.
    pub fn set(self, key: &str, value: &str) -> Self {
        let beginning = format!("{key} = ");
        let is_set = |line: &&str| line.starts_with(&beginning);
        let count = self.0.lines().filter(is_set).count();
        assert_eq!(count, 1, "lines begin with {beginning:?}");
        let lines = self.0.lines().map(|line| match is_set(&line) {
            true => format!("{beginning}{value}\n"),
            false => format!("{line}\n"),
        });
        Self(lines.collect())
    }

    /// As [`ConfigFile::set`], with a text as the value.
    pub fn set_text(self, key: &str, text: &str) -> Self {
        self.set(key, &format!("\"{text}\""))
    }

    /// Replaces a text, which must occur exactly once.
    pub fn replace(self, from: &str, to: &str) -> Self {
        let count = self.0.matches(from).count();
        assert_eq!(count, 1, "the configuration contains {from:?}");
        Self(self.0.replace(from, to))
    }

    /// Inserts a top-level key at the beginning of the file.
    pub fn insert(self, key: &str, value: &str) -> Self {
        Self(format!("{key} = {value}\n{}", self.0))
    }

    /// Replaces the keys of a table, or appends the table if it does not exist. `keys` does not
    /// contain the header. The table becomes the last one of the file.
    pub fn replace_table(self, name: &str, keys: &str) -> Self {
        let heading = format!("[{name}]");
        let mut inside = false;
        let rest = self.0.lines().filter(|line| {
            if line.starts_with('[') {
                inside = *line == heading;
            }
            !inside
        });
        let rest = rest.collect::<Vec<_>>().join("\n");
        Self(format!("{rest}\n{heading}\n{keys}"))
    }

    /// Appends tables, with their headers, to the file.
    pub fn append(self, tables: &str) -> Self {
        Self(format!("{}\n{tables}", self.0))
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.0
    }
}
