//! A configuration of two layers: a built-in file and an operator's overrides, which are merged into
//! its parsed tree.

use std::path::Path;

use postern_core::config::{SourceText, SourceTexts};
use postern_core::decode::{Mistake, Mistakes, Node, Object, Value, toml_at};
use postern_core::exit::Exit;

/// A configuration tree into which another one can be merged.
#[derive(Debug)]
pub(crate) struct ConfigLayer {
    sources: SourceTexts,
    root: Node,
}

impl ConfigLayer {
    /// Parses a built-in file. `name` is used in error messages.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, Exit> {
        let mut sources = SourceTexts::default();
        let root = parse(&mut sources, name, text)?;
        Ok(Self { sources, root })
    }

    /// Removes the tests of routes.
    pub(crate) fn without_tests(mut self) -> Self {
        let is_kept = |(name, _): &(String, Node)| name != "test";
        if let Value::Object(entries) = &mut self.root.value {
            entries.retain(is_kept);
            groups_mut(entries).for_each(|group| group.retain(is_kept));
        }
        self
    }

    /// Merges an operator's file: tables under headers are merged, those of arrays by their `name`
    /// (routes also with those of groups), and other values are replaced. Keys in `fixed` are rejected.
    pub(crate) fn overlay(mut self, path: &Path, fixed: &[&str]) -> Result<Self, Exit> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Exit::usage(format!("{name}: cannot read: {error}")))?;
        let over = parse(&mut self.sources, &name, &text)?;
        let Value::Object(entries) = &over.value else {
            return Ok(self);
        };
        let refused = entries
            .iter()
            .filter(|(key, _)| fixed.contains(&key.as_str()));
        let refused = refused.map(|(key, node)| {
            let detail = "cannot be overridden; use --listen and --port";
            Mistake::unreadable(format!("/{key}"), node.offset, "fixed_field", detail)
        });
        let refused: Vec<Mistake> = refused.collect();
        if !refused.is_empty() {
            return Err(Exit::usage(self.sources.describe(&refused)));
        }
        if let (Some(source), Value::Object(base), Value::Object(mut more)) = (
            self.sources.at(over.offset),
            &mut self.root.value,
            over.value,
        ) {
            merge_grouped_routes(base, &mut more, source);
            merge_entries(base, more, source);
        }
        Ok(self)
    }

    /// Decodes the resulting configuration.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Result<T, Exit> {
        let mistakes = Mistakes::default();
        let value = mistakes.object(&self.root, read);
        mistakes
            .finish(value)
            .map_err(|all| Exit::usage(self.sources.describe(&all)))
    }
}

/// Parses a text whose offsets follow those of the earlier ones.
fn parse(sources: &mut SourceTexts, name: &str, text: &str) -> Result<Node, Exit> {
    let start = sources.push(name, text);
    let mistakes = Mistakes::default();
    let root = toml_at(text, start, &mistakes);
    mistakes
        .finish(root)
        .map_err(|all| Exit::usage(sources.describe(&all)))
}

/// Returns whether a node is a table under a header, `[a]` or `[[a]]`, and not an inline table or
/// array: TOML permits additions to the former only.
fn has_header(node: &Node, source: &SourceText) -> bool {
    let line = source.line_of(node.offset);
    line.trim_start().starts_with('[') || !line.contains('{')
}

/// Merges the routes that have the name of a route of a group, and removes them from `more`.
fn merge_grouped_routes(
    base: &mut [(String, Node)],
    more: &mut Vec<(String, Node)>,
    source: &SourceText,
) {
    let grouped = groups_mut(base).filter_map(|group| items_mut(group, "route"));
    let mut grouped: Vec<&mut Node> = grouped.flatten().collect();
    let Some(routes) = items_mut(more, "route") else {
        return;
    };
    routes.retain(|item| {
        let name = name_of(item).filter(|_| is_table(item, source));
        let mut known = grouped.iter_mut();
        match known.find(|known| name.is_some() && name_of(known) == name) {
            Some(known) => merge(known, item.clone(), source),
            None => return true,
        }
        false
    });
    if routes.is_empty() {
        more.retain(|(key, _)| key != "route");
    }
}

fn groups_mut(entries: &mut [(String, Node)]) -> impl Iterator<Item = &mut Vec<(String, Node)>> {
    let groups = items_mut(entries, "group").into_iter().flatten();
    groups.filter_map(|group| {
        if let Value::Object(entries) = &mut group.value {
            Some(entries)
        } else {
            None
        }
    })
}

fn items_mut<'a>(entries: &'a mut [(String, Node)], key: &str) -> Option<&'a mut Vec<Node>> {
    let (_, node) = entries.iter_mut().find(|(name, _)| name == key)?;
    if let Value::Array(items) = &mut node.value {
        Some(items)
    } else {
        None
    }
}

fn merge_entries(
    entries: &mut Vec<(String, Node)>,
    more: Vec<(String, Node)>,
    source: &SourceText,
) {
    for (name, node) in more {
        match entries.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => merge(known, node, source),
            None => entries.push((name, node)),
        }
    }
}

fn merge(base: &mut Node, over: Node, source: &SourceText) {
    let has_header = has_header(&over, source);
    match (&mut base.value, over.value) {
        (Value::Object(entries), Value::Object(more)) if has_header => {
            merge_entries(entries, more, source);
        }
        (Value::Array(items), Value::Array(more))
            if more.first().is_some_and(|item| is_table(item, source)) =>
        {
            for item in more {
                let name = name_of(&item);
                let is_same = |known: &&mut Node| name.is_some() && name_of(known) == name;
                match items.iter_mut().find(is_same) {
                    Some(known) => merge(known, item, source),
                    None => items.push(item),
                }
            }
        }
        (_, value) => {
            base.value = value;
            base.offset = over.offset;
        }
    }
}

/// Returns whether an item of an array is a table under a `[[…]]` header.
fn is_table(item: &Node, source: &SourceText) -> bool {
    matches!(item.value, Value::Object(_)) && source.from_offset(item.offset).starts_with("[[")
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

#[cfg(test)]
mod tests;
