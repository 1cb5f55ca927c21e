//! Warnings about a configuration, with their places in its files.

use std::fmt;

use postern_core::clock::Timestamp;
use postern_core::config::ConfigFile;
use postern_core::decode::Object;
use serde::Serialize;

use crate::certificates::certificate_warnings;
use crate::config::Config;
use crate::routing::warnings::warnings;

/// A setting that is valid and may be a mistake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConfigWarning {
    file: String,
    /// The line; `None` if the warning is about no single place.
    line: Option<usize>,
    key: String,
    message: String,
}

/// Warnings about a decoded configuration, with offsets that [`ConfigFile`] translates.
#[derive(Debug)]
pub struct FoundWarnings(Vec<(Option<usize>, ConfigWarning)>);

impl FoundWarnings {
    /// Returns the warnings about routes, upstreams and certificates of a configuration that was
    /// read from `root`.
    #[must_use]
    pub fn of(root: &Object<'_>, config: &Config, now: Timestamp) -> Self {
        let mut texts = warnings(config);
        texts.extend(certificate_warnings(config, now));
        let offset_at = |key: &str| match key.strip_prefix("route ") {
            Some(name) => {
                let route = config.routes.iter().find(|route| route.name == name)?;
                root.offset_at(&route.place)
            }
            None => root.offset_at(key),
        };
        let found = texts.into_iter().map(|text| {
            let keyed = text.split_once(": ");
            let located = keyed.and_then(|(key, rest)| Some((offset_at(key)?, key, rest)));
            let (key, message) = located.map_or(("", text.as_str()), |(_, key, rest)| (key, rest));
            let warning = ConfigWarning {
                key: key.to_owned(),
                message: message.to_owned(),
                ..ConfigWarning::default()
            };
            (located.map(|(offset, ..)| offset), warning)
        });
        Self(found.collect())
    }

    /// Returns the warnings with file and line.
    #[must_use]
    pub fn locate(self, files: &ConfigFile) -> Vec<ConfigWarning> {
        let offsets = self.0.iter().map(|(offset, _)| offset.unwrap_or_default());
        let places = files.places(&offsets.collect::<Vec<_>>());
        let located = self.0.into_iter().zip(places);
        located
            .map(|((offset, warning), (file, line))| ConfigWarning {
                file: file.to_owned(),
                line: offset.map(|_| line),
                ..warning
            })
            .collect()
    }
}

impl ConfigWarning {
    /// Returns the file, and the line if the warning is about one: `FILE:LINE`.
    #[must_use]
    pub fn place(&self) -> String {
        match self.line {
            Some(line) => format!("{}:{line}", self.file),
            None => self.file.clone(),
        }
    }
}

impl fmt::Display for ConfigWarning {
    /// Writes the key and the message, without the place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.as_str() {
            "" => f.write_str(&self.message),
            key => write!(f, "{key}: {}", self.message),
        }
    }
}
