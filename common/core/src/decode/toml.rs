//! Parsing of TOML into nodes.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::mistake::{Mistake, Mistakes, Weight};
use super::{Node, Value};

/// Approximate size of the chunks in which a large file is parsed. The parser allocates tens of
/// times the size of its text; for ten thousand routes the allocation took longer than parsing.
const CHUNK_BYTES: usize = 16 << 10;

/// Parses TOML 1.0. Returns `None` if the text is not TOML; every syntax error is recorded.
#[must_use]
pub fn toml(text: &str, mistakes: &Mistakes) -> Option<Node> {
    parse_in_chunks(text, CHUNK_BYTES).or_else(|| parse_whole(text, mistakes))
}

/// Parses TOML as one of several texts: offsets of nodes and mistakes begin at `start`.
#[must_use]
pub fn toml_at(text: &str, start: usize, mistakes: &Mistakes) -> Option<Node> {
    let own = Mistakes::default();
    let root = toml(text, &own);
    match own.finish(root) {
        Ok(mut root) => {
            shift_offsets(&mut root, start);
            Some(root)
        }
        Err(all) => {
            for mistake in all {
                mistakes.note(Mistake {
                    offset: mistake.offset + start,
                    ..mistake
                });
            }
            None
        }
    }
}

/// Increases the offset of a node and of all nodes below it.
fn shift_offsets(node: &mut Node, by: usize) {
    node.offset += by;
    match &mut node.value {
        Value::Array(items) => items.iter_mut().for_each(|item| shift_offsets(item, by)),
        Value::Object(entries) => entries
            .iter_mut()
            .for_each(|(_, node)| shift_offsets(node, by)),
        Value::Null | Value::Bool(_) | Value::Integer(_) | Value::Float(_) | Value::String(_) => {}
    }
}

fn parse_whole(text: &str, mistakes: &Mistakes) -> Option<Node> {
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        mistakes.note(Mistake {
            pointer: String::new(),
            offset: error.span().map_or(0, |span| span.start),
            weight: Weight::Unreadable,
            code: "invalid_toml",
            detail: describe(text, error),
            related: None,
        });
    }
    errors.is_empty().then(|| Node {
        offset: 0,
        value: Value::Object(table(root.into_inner(), 0)),
    })
}

/// Returns the parser's message, with the name of a duplicate table or key.
fn describe(text: &str, error: &toml::de::Error) -> String {
    let message = error.message();
    let span = error
        .span()
        .filter(|_| message.starts_with("duplicate key"));
    let Some(name) = span.and_then(|span| Some((text.get(span.clone())?, span.start))) else {
        return message.to_owned();
    };
    let (name, start) = name;
    let line = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    let header = text[line..].lines().next().unwrap_or_default().trim();
    let table = header
        .strip_prefix('[')
        .and_then(|rest| rest.rsplit_once(']'));
    let table =
        table.map(|(table, _)| table.trim_matches(|c: char| c == '[' || c == ']' || c == ' '));
    format!("duplicate key `{}`", table.unwrap_or(name))
}

/// Parses valid text in chunks. A chunk begins at the header of an array of tables, where TOML
/// returns to the root.
///
/// Returns `None` if [`parse_whole`] must decide: if a chunk is not valid by itself, for example
/// because it ends within a string, or if two chunks have a name in common that is not such an
/// array in both.
fn parse_in_chunks(text: &str, size: usize) -> Option<Node> {
    let mut root: Vec<(String, Node)> = Vec::new();
    let chunk_offsets = chunk_offsets(text, size);
    for range in chunk_offsets.windows(2) {
        let (entries, errors) = DeTable::parse_recoverable(&text[range[0]..range[1]]);
        if !errors.is_empty() {
            return None;
        }
        for (name, node) in table(entries.into_inner(), range[0]) {
            let Some((_, known)) = root.iter_mut().find(|(known, _)| *known == name) else {
                root.push((name, node));
                continue;
            };
            match (&mut known.value, node.value) {
                (Value::Array(all), Value::Array(more))
                    if begins_with_header(text, all) && begins_with_header(text, &more) =>
                {
                    all.extend(more);
                }
                _ => return None,
            }
        }
    }
    Some(Node {
        offset: 0,
        value: Value::Object(root),
    })
}

/// Returns the offsets of the chunks, followed by the length of the text.
fn chunk_offsets(text: &str, size: usize) -> Vec<usize> {
    let mut chunk_offsets = vec![0];
    let mut last = 0;
    for (line_end, _) in text.match_indices("\n[[") {
        let start = line_end + 1;
        let header = text[start..].lines().next().unwrap_or_default();
        // A dotted header continues an existing table.
        if start - last >= size && !header.contains('.') {
            chunk_offsets.push(start);
            last = start;
        }
    }
    chunk_offsets.push(text.len());
    chunk_offsets
}

/// Returns whether `items` is an array of tables with headers, and not an inline array, which
/// cannot be extended.
fn begins_with_header(text: &str, items: &[Node]) -> bool {
    let first = items.first();
    first.is_some_and(|item| {
        matches!(item.value, Value::Object(_)) && text[item.offset..].starts_with("[[")
    })
}

/// Converts the parser's table, which it consumes. `start` is the offset of its text.
fn table(entries: DeTable<'_>, start: usize) -> Vec<(String, Node)> {
    let mut object: Vec<(String, Node)> = entries
        .into_iter()
        .map(|(name, value)| {
            let offset = start + name.span().start;
            (name.into_inner().into_owned(), node(offset, value, start))
        })
        .collect();
    object.sort_by_key(|(_, node)| node.offset);
    object
}

fn node(offset: usize, value: Spanned<DeValue<'_>>, start: usize) -> Node {
    let value = match value.into_inner() {
        DeValue::String(text) => Value::String(text.into_owned()),
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .map_or(Value::Null, Value::Integer),
        DeValue::Float(number) => number.as_str().parse().map_or(Value::Null, Value::Float),
        DeValue::Boolean(flag) => Value::Bool(flag),
        DeValue::Datetime(datetime) => Value::String(datetime.to_string()),
        DeValue::Array(items) => Value::Array(
            items
                .into_iter()
                .map(|item| node(start + item.span().start, item, start))
                .collect(),
        ),
        DeValue::Table(entries) => Value::Object(table(entries, start)),
    };
    Node { value, offset }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Snippets to combine at chunk boundaries, valid and invalid.
    const SNIPPETS: [&str; 16] = [
        "[[route]]\npath = \"/a\"\n",
        "[[route]]\npath = '''\n[[route]]\n'''\n",
        "[[route]]\nlist = [\n[[1]],\n]\n",
        "[[route]] # ...\n[route.cors]\norigins = [\"*\"]\n",
        "[[route]]\n[[route.limits]]\nper = \"1s\"\n",
        "[route.cors]\nlate = true\n",
        "[[test]]\nmethod = \"GET\"\n",
        "[[\"a.b\"]]\nx = 1\n",
        "[limits]\nbody = 1\n",
        "[limits.address]\nrequests = 1\n",
        "route = [{ path = \"/inline\" }]\n",
        "route = []\n",
        "[[limits]]\n",
        "text = \"\"\"\n",
        "key = 1\n",
        "# [[route]]\n\n",
    ];

    proptest! {
        #[test]
        fn chunks_parse_like_the_whole(picked in prop::collection::vec(prop::sample::select(&SNIPPETS[..]), 0..8)) {
            let text = picked.concat();
            let mistakes = Mistakes::default();
            let judged = parse_whole(&text, &mistakes);
            if let Some(read) = parse_in_chunks(&text, 1) {
                prop_assert_eq!(Some(read), judged);
            }
        }
    }

    #[test]
    fn many_routes_are_parsed_in_chunks() {
        let text: String =
            std::iter::once("[limits]\nbody = 1\n".to_owned())
                .chain((0..1_000).map(|number| {
                    format!("[[route]]\npath = \"/{number}\"\nmethods = [\"GET\"]\n")
                }))
                .collect();
        assert!(chunk_offsets(&text, CHUNK_BYTES).len() > 2);
        let read = parse_in_chunks(&text, CHUNK_BYTES);
        assert!(read.is_some());
        assert_eq!(read, parse_whole(&text, &Mistakes::default()));
    }
}
