use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::mistake::{Mistake, Mistakes, Weight};
use super::{Node, Value};

/// Parses TOML 1.0. `None` means that the text is not TOML; every syntax error is noted.
#[must_use]
pub fn toml(text: &str, mistakes: &Mistakes) -> Option<Node> {
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        mistakes.note(Mistake {
            pointer: String::new(),
            offset: error.span().map_or(0, |span| span.start),
            weight: Weight::Unreadable,
            code: "invalid_toml",
            detail: error.message().to_owned(),
        });
    }
    errors.is_empty().then(|| Node { offset: 0, value: table(root.into_inner()) })
}

/// Takes the parser's tree apart as it goes, so that both trees of a large file are never whole at once.
fn table(entries: DeTable<'_>) -> Value {
    let mut object: Vec<(String, Node)> = entries
        .into_iter()
        .map(|(name, value)| {
            let offset = name.span().start;
            (name.into_inner().into_owned(), node(offset, value))
        })
        .collect();
    object.sort_by_key(|(_, node)| node.offset);
    Value::Object(object)
}

fn node(offset: usize, value: Spanned<DeValue<'_>>) -> Node {
    let value = match value.into_inner() {
        DeValue::String(text) => Value::String(text.into_owned()),
        DeValue::Integer(number) => {
            i128::from_str_radix(number.as_str(), number.radix()).map_or(Value::Null, Value::Integer)
        }
        DeValue::Float(number) => number.as_str().parse().map_or(Value::Null, Value::Float),
        DeValue::Boolean(flag) => Value::Bool(flag),
        DeValue::Datetime(at) => Value::String(at.to_string()),
        DeValue::Array(items) => {
            Value::Array(items.into_iter().map(|item| node(item.span().start, item)).collect())
        }
        DeValue::Table(entries) => table(entries),
    };
    Node { value, offset }
}
