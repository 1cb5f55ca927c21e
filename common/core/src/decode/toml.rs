//! Parsing of TOML into nodes.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::mistake::{Mistake, Mistakes};
use super::{Node, Value};

/// Parses TOML 1.0. Returns `None` if the text is not TOML; every syntax error is recorded.
#[must_use]
pub fn toml(text: &str, mistakes: &Mistakes) -> Option<Node> {
    toml_at(text, 0, mistakes)
}

/// Parses TOML as one of several texts: offsets of nodes and mistakes begin at `start`.
#[must_use]
pub fn toml_at(text: &str, start: usize, mistakes: &Mistakes) -> Option<Node> {
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let offset = start + error.span().map_or(0, |span| span.start);
        let detail = describe(text, error);
        let mistake = Mistake::unreadable(String::new(), offset, "invalid_toml", detail);
        mistakes.note(mistake);
    }
    errors.is_empty().then(|| Node {
        offset: start,
        value: Value::Object(table(root.into_inner(), start)),
    })
}

/// Returns the parser's message, with the name of a duplicate table or key.
fn describe(text: &str, error: &toml::de::Error) -> String {
    let message = error.message();
    let span = error
        .span()
        .filter(|_| message.starts_with("duplicate key"));
    let Some((name, start)) = span.and_then(|span| Some((text.get(span.clone())?, span.start)))
    else {
        return message.to_owned();
    };
    let line = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
    let header = text[line..].lines().next().unwrap_or_default().trim();
    let table = header
        .strip_prefix('[')
        .and_then(|rest| rest.rsplit_once(']'));
    let table =
        table.map(|(table, _)| table.trim_matches(|c: char| c == '[' || c == ']' || c == ' '));
    format!("duplicate key `{}`", table.unwrap_or(name))
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
