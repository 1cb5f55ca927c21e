use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::Refusal;

/// A JSON object in which no name stands twice. Text that needs no unescaping stays where it was
/// read: most claims are looked at once and forgotten.
#[derive(Clone, Debug)]
pub(super) struct Object<'a> {
    /// In the order of their names.
    members: Vec<(Cow<'a, str>, Json<'a>)>,
}

/// A JSON value.
#[derive(Clone, Debug)]
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<Json<'a>>),
    Object(Object<'a>),
}

/// Members that there is room for before the list grows: a token of a pool has some fourteen
/// claims.
const USUAL_MEMBERS: usize = 16;

// === impl Object ===

impl<'a> Object<'a> {
    /// Reads one JSON object (RFC 8259, UTF-8) in which no name stands twice, at any depth: RFC
    /// 7515 section 4 and RFC 7519 section 4 let a reader refuse it, and two readers that keep
    /// different ones would disagree on who is calling.
    ///
    /// # Errors
    /// [`Refusal::NotJson`] or [`Refusal::DuplicateName`].
    pub(super) fn read(text: &'a [u8]) -> Result<Self, Refusal> {
        let duplicate = Cell::new(false);
        let mut deserializer = serde_json::Deserializer::from_slice(text);
        let read = Strict {
            duplicate: &duplicate,
        }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
        match read {
            Ok(Json::Object(object)) => Ok(object),
            Ok(Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) | Json::List(_)) => {
                Err(Refusal::NotJson)
            }
            Err(_) if duplicate.get() => Err(Refusal::DuplicateName),
            Err(_) => Err(Refusal::NotJson),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Json<'a>> {
        let place = self
            .members
            .binary_search_by(|(known, _)| (**known).cmp(name))
            .ok()?;
        Some(&self.members[place].1)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn to_map(&self) -> Map<String, Value> {
        self.members
            .iter()
            .map(|(name, value)| (name.clone().into_owned(), value.to_value()))
            .collect()
    }

    /// Sorts the members. `None` if a name stands twice.
    fn of(mut members: Vec<(Cow<'a, str>, Json<'a>)>) -> Option<Self> {
        members.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let repeats = members.windows(2).any(|pair| pair[0].0 == pair[1].0);
        (!repeats).then_some(Self { members })
    }
}

// === impl Json ===

impl Json<'_> {
    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::List(_) | Self::Object(_) => None,
        }
    }

    pub(super) fn is_text(&self) -> bool {
        self.as_text().is_some()
    }

    /// A number that is written as an integer.
    pub(super) fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Number(number) => number.as_i64(),
            Self::Null | Self::Bool(_) | Self::Text(_) | Self::List(_) | Self::Object(_) => None,
        }
    }

    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(flag) => Value::Bool(*flag),
            Self::Number(number) => Value::Number(number.clone()),
            Self::Text(text) => Value::String(text.clone().into_owned()),
            Self::List(items) => items.iter().map(Json::to_value).collect(),
            Self::Object(object) => Value::Object(object.to_map()),
        }
    }
}

#[derive(Clone, Copy)]
struct Strict<'c> {
    duplicate: &'c Cell<bool>,
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Json<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(flag))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Json<'de>, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Json<'de>, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Json<'de>, E> {
        Number::from_f64(number)
            .map(Json::Number)
            .ok_or_else(|| E::custom("not a number of JSON"))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Borrowed(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json<'de>, A::Error> {
        let mut members = Vec::with_capacity(USUAL_MEMBERS);
        // The same visitor: a name is text, borrowed where it can be.
        while let Some(Json::Text(name)) = entries.next_key_seed(self)? {
            members.push((name, entries.next_value_seed(self)?));
        }
        Object::of(members).map(Json::Object).ok_or_else(|| {
            self.duplicate.set(true);
            A::Error::custom("duplicate name")
        })
    }
}
