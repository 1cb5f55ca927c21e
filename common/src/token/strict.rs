use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::Refusal;

/// Reads one JSON object (RFC 8259, UTF-8) in which no name stands twice, at any depth: RFC 7515 section 4 and
/// RFC 7519 section 4 let a reader refuse it, and two readers that keep different ones would disagree on who is
/// calling.
///
/// # Errors
/// [`Refusal::NotJson`] or [`Refusal::DuplicateName`].
pub(super) fn object(text: &[u8]) -> Result<Map<String, Value>, Refusal> {
    let duplicate = Cell::new(false);
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let read = Strict { duplicate: &duplicate }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    match read {
        Ok(Value::Object(map)) => Ok(map),
        Ok(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
            Err(Refusal::NotJson)
        }
        Err(_) if duplicate.get() => Err(Refusal::DuplicateName),
        Err(_) => Err(Refusal::NotJson),
    }
}

#[derive(Clone, Copy)]
struct Strict<'a> {
    duplicate: &'a Cell<bool>,
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(self)?;
            if map.insert(name, value).is_some() {
                self.duplicate.set(true);
                return Err(A::Error::custom("duplicate name"));
            }
        }
        Ok(Value::Object(map))
    }
}
