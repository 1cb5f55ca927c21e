//! Parsing of JSON into nodes.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::mistake::{Mistake, Mistakes};
use super::{Node, Value};

/// Parses strict JSON (RFC 8259) in UTF-8. A name that occurs twice in one object is a mistake,
/// because parsers differ on which value counts. Returns `None` if the text is not JSON, which is
/// recorded.
#[must_use]
pub fn json(text: &[u8], mistakes: &Mistakes) -> Option<Node> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let parsed = NodeSeed {
        pointer: &mut String::new(),
        mistakes,
    }
    .deserialize(&mut deserializer)
    .and_then(|node| deserializer.end().map(|()| node));
    match parsed {
        Ok(node) => Some(node),
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            let detail = format!("not valid JSON at line {line} column {column}");
            let mistake = Mistake::unreadable(String::new(), 0, "invalid_json", detail);
            mistakes.note(mistake);
            None
        }
    }
}

/// A deserializer of [`Node`]s that tracks the JSON pointer.
struct NodeSeed<'a> {
    pointer: &'a mut String,
    mistakes: &'a Mistakes,
}

pub(super) fn push_segment(pointer: &mut String, segment: &str) {
    pointer.push('/');
    for character in segment.chars() {
        match character {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            other => pointer.push(other),
        }
    }
}

/// Names seen in one object, compared linearly up to [`LINEAR_SEARCH_LIMIT`] and by hash beyond it.
#[derive(Default)]
struct SeenNames(HashSet<String>);

const LINEAR_SEARCH_LIMIT: usize = 16;

impl SeenNames {
    fn is_new(&mut self, name: &str, entries: &[(String, Node)]) -> bool {
        if entries.len() < LINEAR_SEARCH_LIMIT {
            return entries.iter().all(|(known, _)| known != name);
        }
        if self.0.is_empty() {
            self.0
                .extend(entries.iter().map(|(known, _)| known.clone()));
        }
        self.0.insert(name.to_owned())
    }
}

impl<'de> DeserializeSeed<'de> for NodeSeed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NodeSeed<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::new(Value::Null))
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Node, E> {
        Ok(Node::new(Value::Bool(flag)))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Node, E> {
        Ok(Node::new(Value::Integer(number.into())))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Node, E> {
        Ok(Node::new(Value::Integer(number.into())))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Node, E> {
        Ok(Node::new(Value::Float(number)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Node, E> {
        Ok(Node::new(Value::String(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        let length = self.pointer.len();
        loop {
            push_segment(self.pointer, &list.len().to_string());
            let next = items.next_element_seed(NodeSeed {
                pointer: self.pointer,
                mistakes: self.mistakes,
            })?;
            self.pointer.truncate(length);
            match next {
                Some(item) => list.push(item),
                None => return Ok(Node::new(Value::Array(list))),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut object: Vec<(String, Node)> = Vec::new();
        let mut names = SeenNames::default();
        let length = self.pointer.len();
        while let Some(name) = entries.next_key::<String>()? {
            push_segment(self.pointer, &name);
            let value = entries.next_value_seed(NodeSeed {
                pointer: self.pointer,
                mistakes: self.mistakes,
            })?;
            if names.is_new(&name, &object) {
                object.push((name, value));
            } else if !self.mistakes.is_full() {
                let (pointer, detail) =
                    (self.pointer.clone(), "this name occurs twice in one object");
                let mistake = Mistake::unreadable(pointer, 0, "duplicate_field", detail);
                self.mistakes.note(mistake);
            }
            self.pointer.truncate(length);
        }
        Ok(Node::new(Value::Object(object)))
    }
}
