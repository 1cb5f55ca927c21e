//! A configuration file whose text is decoded several times.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;

use super::source::{LocatedMistake, SourceTexts};
use crate::decode::{self, Mistake, Mistakes, Object};
use crate::exit::Exit;

/// The text of a configuration file.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    name: String,
    text: String,
}

// === impl ConfigFile ===

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    /// Exit status 64 if the file cannot be read.
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
    ///
    /// # Errors
    /// Exit status 64, with one line per mistake: file, line, key and reason.
    pub fn decode<T>(&self, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Result<T, Exit> {
        self.decode_or(read, |sources, mistakes| {
            Exit::usage(sources.describe(mistakes))
        })
    }

    /// Decodes the configuration as [`ConfigFile::decode`] does.
    ///
    /// # Errors
    /// Every mistake with its place.
    pub fn check<T>(
        &self,
        read: impl FnOnce(&Object<'_>) -> Option<T>,
    ) -> Result<T, Vec<LocatedMistake>> {
        self.decode_or(read, |sources, mistakes| {
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
        let places = offsets.iter();
        places
            .map(|offset| (self.name.as_str(), line(offset)))
            .collect()
    }

    fn decode_or<T, E>(
        &self,
        read: impl FnOnce(&Object<'_>) -> Option<T>,
        describe: impl FnOnce(&SourceTexts, &[Mistake]) -> E,
    ) -> Result<T, E> {
        let mistakes = Mistakes::default();
        let root = decode::toml(&self.text, &mistakes);
        let value = root.and_then(|root| mistakes.object(&root, read));
        mistakes
            .finish(value)
            .map_err(|mistakes| describe(&SourceTexts::of(&self.name, &self.text), &mistakes))
    }
}
