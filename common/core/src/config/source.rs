//! The texts that a configuration tree was parsed from.

use std::fmt;

use serde::Serialize;

use crate::decode::Mistake;

/// Texts in the order of their offsets: the offsets of nodes and mistakes count through all of
/// them, so that each has one place.
#[derive(Clone, Debug, Default)]
pub struct SourceTexts(Vec<SourceText>);

/// A text with its name.
#[derive(Clone, Debug)]
pub struct SourceText {
    name: String,
    text: String,
    /// Offset of the first byte.
    start: usize,
}

/// A mistake with its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LocatedMistake {
    /// The name of the text; empty if there is none.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The dotted key; empty for the text as a whole.
    pub key: String,
    /// One sentence, never with the value of a secret.
    pub message: String,
}

// === impl SourceTexts ===

impl SourceTexts {
    /// Adds a text. Returns the offset of its first byte, by which the offsets of its nodes must be
    /// increased.
    pub fn push(&mut self, name: &str, text: &str) -> usize {
        let start = self
            .0
            .last()
            .map_or(0, |last| last.start + last.text.len() + 1);
        self.0.push(SourceText {
            name: name.to_owned(),
            text: text.to_owned(),
            start,
        });
        start
    }

    /// Formats mistakes in the form of compiler errors, one per line: `file:line: key: reason`.
    #[must_use]
    pub fn describe(&self, mistakes: &[Mistake]) -> String {
        let lines: Vec<String> = mistakes
            .iter()
            .map(|mistake| self.locate(mistake).to_string())
            .collect();
        lines.join("\n")
    }

    /// Returns a mistake with its place.
    #[must_use]
    pub fn locate(&self, mistake: &Mistake) -> LocatedMistake {
        let key = mistake.pointer.trim_start_matches('/').replace('/', ".");
        let related = mistake.related.map(|other| self.place(other));
        let related = related.map_or(String::new(), |(file, line)| format!(" ({file}:{line})"));
        let (file, line) = self.place(mistake.offset);
        LocatedMistake {
            file,
            line,
            key,
            message: format!("{}{related}", mistake.detail),
        }
    }

    /// Returns the name and the line of an offset.
    fn place(&self, offset: usize) -> (String, usize) {
        let Some(source) = self.at(offset) else {
            return (String::new(), 1);
        };
        let before = source.text.as_bytes().get(..offset - source.start);
        let before = before.unwrap_or(source.text.as_bytes());
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        (source.name.clone(), line)
    }

    /// Returns the text that contains an offset.
    #[must_use]
    pub fn at(&self, offset: usize) -> Option<&SourceText> {
        self.0.iter().rev().find(|source| source.start <= offset)
    }
}

// === impl LocatedMistake ===

/// `file:line: key: message`.
impl fmt::Display for LocatedMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.key.is_empty() { "" } else { ": " };
        write!(
            f,
            "{}:{}: {}{colon}{}",
            self.file, self.line, self.key, self.message
        )
    }
}

// === impl SourceText ===

impl SourceText {
    /// Returns the text from an offset on; empty if the offset is outside of the text.
    #[must_use]
    pub fn from_offset(&self, offset: usize) -> &str {
        let at = offset.checked_sub(self.start);
        at.and_then(|at| self.text.get(at..)).unwrap_or_default()
    }

    /// Returns the line that contains an offset.
    #[must_use]
    pub fn line_of(&self, offset: usize) -> &str {
        let at = offset.saturating_sub(self.start).min(self.text.len());
        let before = self.text.get(..at).unwrap_or_default();
        let line = before.rfind('\n').map_or(0, |newline| newline + 1);
        self.text[line..].lines().next().unwrap_or_default()
    }
}
