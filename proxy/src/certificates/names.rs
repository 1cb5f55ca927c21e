//! Lookup by host name, with wildcards for one label (RFC 9525 section 6.3).

use std::borrow::Cow;

use ahash::AHashMap;

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
    /// Returns the entry of a name in lower case, which is created if it does not exist. `*.name`
    /// is a wildcard.
    pub(super) fn entry(&mut self, name: &str) -> &mut T
    where
        T: Default,
    {
        let name = name.strip_suffix('.').unwrap_or(name);
        match name.strip_prefix("*.") {
            Some(below) => self.wildcards.entry(below.into()).or_default(),
            None => self.exact.entry(name.into()).or_default(),
        }
    }

    /// Returns the value for a name in lower case without a trailing dot.
    pub(super) fn get(&self, name: &str) -> Option<&T> {
        self.exact.get(name).or_else(|| {
            let (label, below) = name.split_once('.')?;
            self.wildcards.get(below).filter(|_| !label.is_empty())
        })
    }
}

/// Returns the host of an authority in the form that [`NameIndex::get`] takes: without a port and a
/// trailing dot, in lower case.
pub(super) fn host_name(authority: &str) -> Cow<'_, str> {
    let host = match authority.starts_with('[') {
        true => authority,
        false => authority.split(':').next().unwrap_or_default(),
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    match host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(host.to_ascii_lowercase()),
        false => Cow::Borrowed(host),
    }
}
