//! The shipped configuration files with this machine's addresses in them, and what the user's own
//! files change.
//!
//! Standalone reads the very files that the separate processes read, so that routes and defaults
//! are the same in both; only values are replaced, in the parsed tree and not in the text.

use std::path::Path;

use postern_common::config::describe;
use postern_common::decode::{Mistake, Mistakes, Node, Object, Value, Weight, toml};
use postern_common::exit::Exit;

/// A configuration whose values can be replaced.
#[derive(Debug)]
pub(crate) struct Layer {
    /// Offsets of the tree count through all of them, one after the other.
    sources: Vec<Source>,
    root: Node,
}

/// A text that values come from.
#[derive(Debug)]
struct Source {
    name: String,
    text: String,
    start: usize,
}

// === impl Layer ===

impl Layer {
    /// Parses a shipped file; `name` is what messages call it.
    ///
    /// # Errors
    /// 64, with every mistake.
    pub(crate) fn of(name: &str, text: &str) -> Result<Self, Exit> {
        let source = Source {
            name: name.to_owned(),
            text: text.to_owned(),
            start: 0,
        };
        let root = source.parse()?;
        Ok(Self {
            sources: vec![source],
            root,
        })
    }

    /// Sets the value at a path of table names, making the tables that are not there; in a list of
    /// tables a name is the value of its key `name`.
    pub(crate) fn set(mut self, path: &[&str], value: impl Into<Leaf>) -> Self {
        let Leaf(value) = value.into();
        set(&mut self.root, path, Some(value));
        self
    }

    /// Removes the value at a path, so that its default holds.
    pub(crate) fn unset(mut self, path: &[&str]) -> Self {
        set(&mut self.root, path, None);
        self
    }

    /// Lays a file of the user over it: tables under headers are merged, those of a list by their
    /// `name`, and any other value is replaced. Keys in `fixed` are refused.
    ///
    /// # Errors
    /// 64, with every mistake.
    pub(crate) fn overlay(mut self, path: &Path, fixed: &[&str]) -> Result<Self, Exit> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Exit::usage(format!("{name}: cannot read: {error}")))?;
        let start = self
            .sources
            .last()
            .map_or(0, |last| last.start + last.text.len() + 1);
        let source = Source { name, text, start };
        let mut over = source.parse()?;
        let Value::Object(entries) = &over.value else {
            return Ok(self);
        };
        let refused = entries
            .iter()
            .filter(|(key, _)| fixed.contains(&key.as_str()));
        let refused: Vec<Mistake> = refused
            .map(|(key, node)| not_here(key, node.offset))
            .collect();
        if !refused.is_empty() {
            return Err(Exit::usage(describe(&source.name, &source.text, &refused)));
        }
        shift(&mut over, start);
        if let (Value::Object(base), Value::Object(more)) = (&mut self.root.value, over.value) {
            merge_entries(base, more, &source);
        }
        self.sources.push(source);
        Ok(self)
    }

    /// Reads the result.
    ///
    /// # Errors
    /// 64, with every mistake.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Result<T, Exit> {
        let mistakes = Mistakes::default();
        let value = mistakes.object(&self.root, read);
        mistakes.finish(value).map_err(|all| {
            let lines: Vec<String> = all
                .into_iter()
                .map(|mistake| self.describe(mistake))
                .collect();
            Exit::usage(lines.join("\n"))
        })
    }

    fn describe(&self, mut mistake: Mistake) -> String {
        let source = self
            .sources
            .iter()
            .rev()
            .find(|source| source.start <= mistake.offset);
        source.map_or_else(String::new, |source| {
            mistake.offset -= source.start;
            describe(&source.name, &source.text, &[mistake])
        })
    }
}

// === impl Source ===

impl Source {
    fn parse(&self) -> Result<Node, Exit> {
        let mistakes = Mistakes::default();
        let root = toml(&self.text, &mistakes);
        mistakes
            .finish(root)
            .map_err(|all| Exit::usage(describe(&self.name, &self.text, &all)))
    }

    /// Whether a node stands under a header, `[a]` or `[[a]]`, and not in braces or brackets behind
    /// its key: TOML lets a file add to the former only.
    fn has_header(&self, node: &Node) -> bool {
        let Some(before) = node
            .offset
            .checked_sub(self.start)
            .and_then(|at| self.text.get(..at))
        else {
            return false;
        };
        let line = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = self.text[line..].lines().next().unwrap_or_default();
        line.trim_start().starts_with('[') || !line.contains('{')
    }
}

fn not_here(key: &str, offset: usize) -> Mistake {
    Mistake {
        pointer: format!("/{key}"),
        offset,
        weight: Weight::Unacceptable,
        code: "fixed_field",
        detail: "cannot be changed here: --listen and --port say where postern listens".to_owned(),
    }
}

fn shift(node: &mut Node, by: usize) {
    node.offset += by;
    match &mut node.value {
        Value::Array(items) => items.iter_mut().for_each(|item| shift(item, by)),
        Value::Object(entries) => entries.iter_mut().for_each(|(_, node)| shift(node, by)),
        Value::Null | Value::Bool(_) | Value::Integer(_) | Value::Float(_) | Value::String(_) => {}
    }
}

fn merge_entries(entries: &mut Vec<(String, Node)>, more: Vec<(String, Node)>, source: &Source) {
    for (name, node) in more {
        match entries.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => merge(known, node, source),
            None => entries.push((name, node)),
        }
    }
}

fn merge(base: &mut Node, over: Node, source: &Source) {
    let has_header = source.has_header(&over);
    match (&mut base.value, over.value) {
        (Value::Object(entries), Value::Object(more)) if has_header => {
            merge_entries(entries, more, source)
        }
        (Value::Array(items), Value::Array(more))
            if more.first().is_some_and(|item| is_table(item, source)) =>
        {
            for item in more {
                match items
                    .iter_mut()
                    .find(|known| name_of(&item).is_some_and(|name| is_named(known, name)))
                {
                    Some(known) => merge(known, item, source),
                    None => items.push(item),
                }
            }
        }
        (_, value) => {
            *base = Node {
                value,
                offset: over.offset,
            }
        }
    }
}

/// Whether an item of a list is a table under a header of its own.
fn is_table(item: &Node, source: &Source) -> bool {
    matches!(item.value, Value::Object(_))
        && source.text[item.offset - source.start..].starts_with("[[")
}

fn name_of(node: &Node) -> Option<&str> {
    let Value::Object(entries) = &node.value else {
        return None;
    };
    let (_, node) = entries.iter().find(|(key, _)| key == "name")?;
    if let Value::String(name) = &node.value {
        Some(name)
    } else {
        None
    }
}

fn set(node: &mut Node, path: &[&str], value: Option<Value>) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    let offset = node.offset;
    match &mut node.value {
        Value::Object(entries) => match (rest, value) {
            ([], None) => entries.retain(|(name, _)| name != first),
            ([], Some(value)) => *entry(entries, first, offset) = Node { value, offset },
            (_, value) => set(entry(entries, first, offset), rest, value),
        },
        // One of several tables is meant by its `name`.
        Value::Array(items) => {
            if let Some(item) = items.iter_mut().find(|item| is_named(item, first)) {
                set(item, rest, value);
            }
        }
        Value::Null | Value::Bool(_) | Value::Integer(_) | Value::Float(_) | Value::String(_) => {}
    }
}

fn is_named(node: &Node, name: &str) -> bool {
    name_of(node) == Some(name)
}

/// The entry of this name; an empty table if it was not there.
fn entry<'a>(entries: &'a mut Vec<(String, Node)>, name: &str, offset: usize) -> &'a mut Node {
    let at = entries
        .iter()
        .position(|(known, _)| known == name)
        .unwrap_or_else(|| {
            entries.push((
                name.to_owned(),
                Node {
                    value: Value::Object(Vec::new()),
                    offset,
                },
            ));
            entries.len() - 1
        });
    &mut entries[at].1
}

/// A value for [`Layer::set`].
#[derive(Debug)]
pub(crate) struct Leaf(Value);

impl From<&str> for Leaf {
    fn from(text: &str) -> Self {
        Self(Value::String(text.to_owned()))
    }
}

impl From<String> for Leaf {
    fn from(text: String) -> Self {
        Self(Value::String(text))
    }
}

impl From<std::net::SocketAddr> for Leaf {
    fn from(address: std::net::SocketAddr) -> Self {
        address.to_string().into()
    }
}

impl From<bool> for Leaf {
    fn from(flag: bool) -> Self {
        Self(Value::Bool(flag))
    }
}

impl From<i64> for Leaf {
    fn from(number: i64) -> Self {
        Self(Value::Integer(number.into()))
    }
}

impl<T: Into<Self>> From<Vec<T>> for Leaf {
    fn from(items: Vec<T>) -> Self {
        let node = |item: T| Node {
            value: item.into().0,
            offset: 0,
        };
        Self(Value::Array(items.into_iter().map(node).collect()))
    }
}

impl Leaf {
    /// A table with one key.
    pub(crate) fn table(name: &str, value: impl Into<Self>) -> Self {
        Self(Value::Object(vec![(
            name.to_owned(),
            Node {
                value: value.into().0,
                offset: 0,
            },
        )]))
    }
}

#[cfg(test)]
mod tests;
