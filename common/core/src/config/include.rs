//! A configuration file and the files that it includes.

mod expand;

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use self::expand::expand;
use super::source::{LocatedMistake, SourceTexts};
use crate::decode::{self, Mistake, Mistakes, Node, Object, Value, Weight};
use crate::exit::Exit;
use crate::files::read_regular_text;

/// The key whose patterns name the files to include.
const INCLUDE: &str = "include";

/// Maximum bytes of all included files.
const MAX_INCLUDED_BYTES: usize = 64 << 20;

/// The texts of a configuration: a file, and the files that its key `include` names.
#[derive(Clone, Debug)]
pub struct ConfigFiles {
    main: NamedText,
    included: Vec<NamedText>,
    /// Patterns and files that cannot be used, with the position of their pattern.
    faults: Vec<(usize, String)>,
    /// The tables that an included file may contain.
    tables: &'static [&'static str],
}

#[derive(Clone, Debug)]
struct NamedText {
    name: String,
    text: String,
}

// === impl ConfigFiles ===

impl ConfigFiles {
    /// Reads a file and the files that it includes. `tables` are the tables that an included file
    /// may contain: arrays of tables are appended, other tables are merged by name.
    ///
    /// # Errors
    /// Exit status 64 if the file itself cannot be read. Faults of included files are reported by
    /// [`ConfigFiles::decode`].
    pub fn read(path: &Path, tables: &'static [&'static str]) -> Result<Self, Exit> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Exit::usage(format!("{name}: cannot read: {error}")))?;
        Ok(Self::with_text(path, text, tables))
    }

    /// Reads the files as [`ConfigFiles::read`] does, with `text` in place of the contents of the
    /// file itself.
    #[must_use]
    pub fn with_text(path: &Path, text: String, tables: &'static [&'static str]) -> Self {
        let name = path.display().to_string();
        let patterns = patterns(&text);
        let mut files = Self::of_texts((name, text), Vec::new(), tables);
        let mut seen = BTreeSet::new();
        for (at, pattern) in patterns.iter().enumerate() {
            let found = expand(path, pattern).and_then(|paths| {
                paths
                    .iter()
                    .try_for_each(|path| files.include(path, &mut seen))
            });
            if let Err(fault) = found {
                files.faults.push((at, fault));
            }
        }
        files
    }

    /// Returns the configuration of texts with their names, which were read before. No file is read.
    #[must_use]
    pub fn of_texts(
        main: (String, String),
        included: Vec<(String, String)>,
        tables: &'static [&'static str],
    ) -> Self {
        let named = |(name, text)| NamedText { name, text };
        Self {
            main: named(main),
            included: included.into_iter().map(named).collect(),
            faults: Vec::new(),
            tables,
        }
    }

    /// Reads a file that a pattern matches, unless it has been read already.
    fn include(&mut self, path: &Path, seen: &mut BTreeSet<PathBuf>) -> Result<(), String> {
        let name = path.display().to_string();
        let unreadable = |error| format!("{name}: cannot read: {error}");
        let canonical = path.canonicalize().map_err(unreadable)?;
        if Path::new(&self.main.name)
            .canonicalize()
            .is_ok_and(|main| main == canonical)
        {
            return Err(format!("{name}: must not include itself"));
        }
        if !seen.insert(canonical) {
            return Ok(());
        }
        let included = self.included.iter().map(|file| file.text.len());
        let left = MAX_INCLUDED_BYTES.saturating_sub(included.sum::<usize>());
        let text = read_regular_text(path, left).map_err(|error| {
            if error.kind() == ErrorKind::FileTooLarge {
                format!("{name}: the included files have more than 64 MiB")
            } else if error.kind() == ErrorKind::InvalidInput {
                format!("{name}: {error}")
            } else {
                unreadable(error)
            }
        })?;
        self.included.push(NamedText { name, text });
        Ok(())
    }

    /// Returns the text of the file itself.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.main.text
    }

    /// Returns the names and texts of the included files.
    pub fn included_texts(&self) -> impl Iterator<Item = (&str, &str)> {
        let files = self.included.iter();
        files.map(|file| (file.name.as_str(), file.text.as_str()))
    }

    /// Returns the names of the included files.
    pub fn included(&self) -> impl Iterator<Item = &str> {
        self.included.iter().map(|file| file.name.as_str())
    }

    /// Returns a hash of all names and texts.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for file in std::iter::once(&self.main).chain(&self.included) {
            (&file.name, &file.text).hash(&mut hasher);
        }
        self.faults.hash(&mut hasher);
        hasher.finish()
    }

    /// Decodes the configuration that all files form together.
    ///
    /// # Errors
    /// Exit status 64, with one line per mistake: file, line, key and reason.
    pub fn decode<T>(&self, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Result<T, Exit> {
        self.decode_or(read, |sources, mistakes| {
            Exit::usage(sources.describe(mistakes))
        })
    }

    /// Decodes the configuration as [`ConfigFiles::decode`] does.
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

    /// Returns the file and the line of offsets that a reader of [`ConfigFiles::check`] got from
    /// [`Object::offset_at`].
    #[must_use]
    pub fn places(&self, offsets: &[usize]) -> Vec<(&str, usize)> {
        let mut start = 0;
        let files = std::iter::once(&self.main).chain(&self.included);
        let indexed: Vec<(usize, &str, Vec<usize>)> = files
            .map(|file| {
                let first = start;
                start += file.text.len() + 1;
                let newlines = file.text.match_indices('\n').map(|(at, _)| at);
                (first, file.name.as_str(), newlines.collect())
            })
            .collect();
        let place = |offset: &usize| {
            let found = indexed.iter().rev().find(|(first, ..)| first <= offset);
            found.map_or(("", 1), |(first, name, newlines)| {
                let at = offset - first;
                (*name, 1 + newlines.partition_point(|newline| *newline < at))
            })
        };
        offsets.iter().map(place).collect()
    }

    fn decode_or<T, E>(
        &self,
        read: impl FnOnce(&Object<'_>) -> Option<T>,
        describe: impl FnOnce(&SourceTexts, &[Mistake]) -> E,
    ) -> Result<T, E> {
        let mistakes = Mistakes::default();
        let mut sources = SourceTexts::of(&self.main.name, &self.main.text);
        let mut root = decode::toml(&self.main.text, &mistakes);
        for file in &self.included {
            let start = sources.push(&file.name, &file.text);
            let parsed = decode::toml_at(&file.text, start, &mistakes);
            if let (Some(root), Some(added)) = (&mut root, parsed) {
                self.merge(root, added, &mut sources, &mistakes);
            }
        }
        // If a file cannot be parsed, all references to its tables would be reported as well.
        let root = root.filter(|_| mistakes.is_empty());
        let value = root.and_then(|root| {
            mistakes.object(&root, |object| {
                for (at, fault) in &self.faults {
                    object.fail_at(
                        &format!("{INCLUDE}.{at}"),
                        "unreadable_file",
                        fault.as_str(),
                    );
                }
                read(object)
            })
        });
        mistakes
            .finish(value)
            .map_err(|mistakes| describe(&sources, &mistakes))
    }

    /// Adds the tables of an included file.
    fn merge(&self, root: &mut Node, added: Node, sources: &mut SourceTexts, mistakes: &Mistakes) {
        let (Value::Object(all), Value::Object(added)) = (&mut root.value, added.value) else {
            return;
        };
        for (name, node) in added {
            if !self.tables.contains(&name.as_str()) {
                let detail = match name == INCLUDE {
                    true => "an included file must not include files".to_owned(),
                    false => format!(
                        "an included file may contain {} only",
                        self.tables.join(", ")
                    ),
                };
                mistakes.note(mistake(&format!("/{name}"), node.offset, detail, None));
                continue;
            }
            match all.iter_mut().find(|(known, _)| *known == name) {
                None => all.push((name, node)),
                Some((_, known)) => merge_table(&name, known, node, sources, mistakes),
            }
        }
    }
}

/// Appends the items of an array, or adds the entries of a table. A value of another type is left
/// to the reader of the first one.
fn merge_table(
    name: &str,
    known: &mut Node,
    added: Node,
    sources: &mut SourceTexts,
    mistakes: &Mistakes,
) {
    let expected = known.value.kind();
    match (&mut known.value, added.value) {
        (Value::Array(items), Value::Array(more)) => {
            sources.set_earlier_items(name, items.len());
            items.extend(more);
        }
        (Value::Object(entries), Value::Object(more)) => {
            for (key, node) in more {
                match entries.iter().find(|(known, _)| *known == key) {
                    None => entries.push((key, node)),
                    Some((_, first)) => mistakes.note(mistake(
                        &format!("/{name}/{key}"),
                        node.offset,
                        "is defined twice".to_owned(),
                        Some(first.offset),
                    )),
                }
            }
        }
        (_, value) => mistakes.note(mistake(
            &format!("/{name}"),
            added.offset,
            format!("must be {expected}, not {}", value.kind()),
            Some(known.offset),
        )),
    }
}

fn mistake(pointer: &str, offset: usize, detail: String, related: Option<usize>) -> Mistake {
    Mistake {
        pointer: pointer.to_owned(),
        offset,
        weight: Weight::Unreadable,
        code: "invalid_include",
        detail,
        related,
    }
}

/// Returns the strings of the key `include`. A text that is not TOML has none: decoding it fails.
fn patterns(text: &str) -> Vec<String> {
    if !text.contains(INCLUDE) {
        return Vec::new();
    }
    let root = decode::toml(text, &Mistakes::default());
    let Some(Value::Object(entries)) = root.map(|root| root.value) else {
        return Vec::new();
    };
    let included = entries.into_iter().find(|(name, _)| name == INCLUDE);
    let Some(Value::Array(items)) = included.map(|(_, node)| node.value) else {
        return Vec::new();
    };
    // An item of another type is reported by the reader; it keeps its position.
    items
        .into_iter()
        .map(|item| match item.value {
            Value::String(pattern) => pattern,
            Value::Null
            | Value::Bool(_)
            | Value::Integer(_)
            | Value::Float(_)
            | Value::Array(_)
            | Value::Object(_) => String::new(),
        })
        .collect()
}

#[cfg(test)]
mod tests;
