//! JSON objects without duplicate names.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::TokenError;

/// A JSON object without duplicate names. Text without escapes is borrowed from the input, because
/// most claims are read once and discarded.
#[derive(Clone, Debug)]
pub(super) struct StrictObject<'a> {
    /// Sorted by name.
    members: Vec<(Cow<'a, str>, JsonValue<'a>)>,
}

#[derive(Clone, Debug)]
pub(super) enum JsonValue<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<JsonValue<'a>>),
    Object(StrictObject<'a>),
}

/// Initial capacity of the member list. A pool's token has about fourteen claims.
const INITIAL_MEMBER_CAPACITY: usize = 16;

// === impl StrictObject ===

impl<'a> StrictObject<'a> {
    /// Parses one JSON object (RFC 8259, UTF-8) and rejects duplicate names at any depth. RFC 7515
    /// section 4 and RFC 7519 section 4 allow this; parsers that keep different values would
    /// disagree on who is calling.
    pub(super) fn read(text: &'a [u8]) -> Result<Self, TokenError> {
        let duplicate = Cell::new(false);
        let mut deserializer = serde_json::Deserializer::from_slice(text);
        let read = StrictSeed {
            duplicate: &duplicate,
        }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
        match read {
            Ok(JsonValue::Object(object)) => Ok(object),
            Err(_) if duplicate.get() => Err(TokenError::DuplicateName),
            Ok(_) | Err(_) => Err(TokenError::NotJson),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&JsonValue<'a>> {
        let members = &self.members;
        let index = members.binary_search_by(|(known, _)| (**known).cmp(name));
        Some(&members[index.ok()?].1)
    }

    /// Returns the member of this name, or the one that a path of names separated by dots leads to,
    /// such as `realm_access.roles`. Names may contain dots themselves.
    pub(super) fn find(&self, path: &str) -> Option<&JsonValue<'a>> {
        self.get(path).or_else(|| {
            path.match_indices('.')
                .find_map(|(at, _)| match self.get(&path[..at]) {
                    Some(JsonValue::Object(object)) => object.find(&path[at + 1..]),
                    _ => None,
                })
        })
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn to_map(&self) -> Map<String, Value> {
        let members = self.members.iter();
        let members = members.map(|(name, value)| (name.clone().into_owned(), value.to_value()));
        members.collect()
    }

    /// Sorts the members. Returns `None` if a name occurs twice.
    fn of(mut members: Vec<(Cow<'a, str>, JsonValue<'a>)>) -> Option<Self> {
        members.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let repeats = members.windows(2).any(|pair| pair[0].0 == pair[1].0);
        (!repeats).then_some(Self { members })
    }
}

// === impl JsonValue ===

impl JsonValue<'_> {
    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::List(_) | Self::Object(_) => None,
        }
    }

    pub(super) fn is_text(&self) -> bool {
        self.as_text().is_some()
    }

    /// Returns the whole seconds of a NumericDate, which may have a fraction or an exponent (RFC 7519
    /// section 2). `None` for numbers beyond the years that a clock can show.
    pub(super) fn as_seconds(&self) -> Option<i64> {
        const MAX_SECONDS: f64 = (1_u64 << 53) as f64;
        match self {
            Self::Number(number) => number.as_i64().or_else(|| {
                let seconds = number.as_f64()?.floor();
                (seconds.abs() <= MAX_SECONDS).then_some(seconds as i64)
            }),
            Self::Null | Self::Bool(_) | Self::Text(_) | Self::List(_) | Self::Object(_) => None,
        }
    }

    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(flag) => Value::Bool(*flag),
            Self::Number(number) => Value::Number(number.clone()),
            Self::Text(text) => Value::String(text.clone().into_owned()),
            Self::List(items) => items.iter().map(JsonValue::to_value).collect(),
            Self::Object(object) => Value::Object(object.to_map()),
        }
    }
}

#[derive(Clone, Copy)]
struct StrictSeed<'c> {
    duplicate: &'c Cell<bool>,
}

impl<'de> DeserializeSeed<'de> for StrictSeed<'_> {
    type Value = JsonValue<'de>;

    fn deserialize<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<JsonValue<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StrictSeed<'_> {
    type Value = JsonValue<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Null)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Bool(flag))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Number(number.into()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Number(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<JsonValue<'de>, E> {
        Number::from_f64(number)
            .map(JsonValue::Number)
            .ok_or_else(|| E::custom("not a JSON number"))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<JsonValue<'de>, E> {
        Ok(JsonValue::Text(Cow::Borrowed(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<JsonValue<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(JsonValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<JsonValue<'de>, A::Error> {
        let mut members = Vec::with_capacity(INITIAL_MEMBER_CAPACITY);
        // The same visitor reads the name as text, borrowed if possible.
        while let Some(JsonValue::Text(name)) = entries.next_key_seed(self)? {
            members.push((name, entries.next_value_seed(self)?));
        }
        let duplicate = || {
            self.duplicate.set(true);
            A::Error::custom("duplicate name")
        };
        let object = StrictObject::of(members).map(JsonValue::Object);
        object.ok_or_else(duplicate)
    }
}
