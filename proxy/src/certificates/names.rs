//! Lookup by host name, with wildcards.

use ahash::AHashMap;
use postern_http::message::host::domains;

/// Values by host name. An exact name has precedence over a wildcard.
#[derive(Debug)]
pub(super) struct NameIndex<T> {
    exact: AHashMap<Box<str>, T>,
    /// By the name without `*.`.
    wildcards: AHashMap<Box<str>, T>,
}

impl<T> Default for NameIndex<T> {
    fn default() -> Self {
        Self {
            exact: AHashMap::new(),
            wildcards: AHashMap::new(),
        }
    }
}

impl<T> NameIndex<T> {
    /// Sets the value of a name in lower case. `*.name` is a wildcard.
    pub(super) fn insert(&mut self, name: &str, value: T) {
        let name = name.strip_suffix('.').unwrap_or(name);
        match name.strip_prefix("*.") {
            Some(below) => self.wildcards.insert(below.into(), value),
            None => self.exact.insert(name.into(), value),
        };
    }

    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        let exact = self.exact.keys().map(ToString::to_string);
        let wildcards = self.wildcards.keys().map(|below| format!("*.{below}"));
        exact.chain(wildcards)
    }

    /// Returns the value for the server name of a handshake, in lower case and without a trailing
    /// dot. A wildcard matches one label (RFC 9525 section 6.3).
    pub(super) fn get(&self, name: &str) -> Option<&T> {
        self.exact.get(name).or_else(|| {
            let (label, below) = name.split_once('.')?;
            self.wildcards.get(below).filter(|_| !label.is_empty())
        })
    }

    /// Returns the value for the host of a request, in the same form. A wildcard matches any number
    /// of labels, as in a route, and the closest one decides.
    pub(super) fn closest(&self, host: &str) -> Option<&T> {
        let wildcard = |domain: &str| self.wildcards.get(domain);
        self.exact
            .get(host)
            .or_else(|| domains(host).find_map(wildcard))
    }
}
