//! A configuration file whose text is decoded several times.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;

use super::source::{LocatedMistake, SourceTexts};
use crate::decode::{self, Mistakes, Object};
use crate::exit::Exit;

/// The text of a configuration file.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    name: String,
    text: String,
}

impl ConfigFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, Exit> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Exit::usage(format!("{}: cannot read: {error}", path.display())))?;
        Ok(Self::with_text(path, text))
    }

    /// Returns the file with `text` in place of its contents. It is not read.
    #[must_use]
    pub fn with_text(path: &Path, text: String) -> Self {
        Self {
            name: path.display().to_string(),
            text,
        }
    }

    /// Returns the text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns a hash of the text.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.text.hash(&mut hasher);
        hasher.finish()
    }

    /// Decodes the configuration.
    pub fn decode<T>(&self, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Result<T, Exit> {
        self.check(read).map_err(|mistakes| {
            let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            Exit::usage(lines.join("\n"))
        })
    }

    /// Decodes the configuration as [`ConfigFile::decode`] does.
    pub fn check<T>(
        &self,
        read: impl FnOnce(&Object<'_>) -> Option<T>,
    ) -> Result<T, Vec<LocatedMistake>> {
        let mistakes = Mistakes::default();
        let root = decode::toml(&self.text, &mistakes);
        let value = root.and_then(|root| mistakes.object(&root, read));
        mistakes.finish(value).map_err(|mistakes| {
            let mut sources = SourceTexts::default();
            sources.push(&self.name, &self.text);
            mistakes.iter().map(|it| sources.locate(it)).collect()
        })
    }

    /// Returns the file and the line of offsets that a reader of [`ConfigFile::check`] got from
    /// [`Object::offset_at`].
    #[must_use]
    pub fn places(&self, offsets: &[usize]) -> Vec<(&str, usize)> {
        let newlines = self.text.match_indices('\n').map(|(at, _)| at);
        let newlines: Vec<usize> = newlines.collect();
        let line = |offset: &usize| 1 + newlines.partition_point(|newline| newline < offset);
        let place = |offset| (self.name.as_str(), line(offset));
        offsets.iter().map(place).collect()
    }
}
