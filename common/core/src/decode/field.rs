//! Typed reading of a single value. A value that cannot be converted is recorded as unreadable.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value as Json, json};
use url::Url;

use super::mistake::{Mistake, Mistakes, Weight};
use super::object::{INITIAL_FIELD_CAPACITY, Object};
use super::path::{PathSegment, ValuePath};
use super::units::{parse_bytes, parse_duration};
use super::{Node, Value};
use crate::clock::Timestamp;

/// A named value that is being read.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    pub(super) node: &'a Node,
    pub(super) at: ValuePath<'a>,
    pub(super) mistakes: &'a Mistakes,
}

const URL_EXPECTED: &str = "must be an absolute http or https URL";

/// The detail of text that PostgreSQL refuses.
pub const NO_NUL: &str = "must not contain a NUL character";

impl<'a> Field<'a> {
    /// Returns the raw value.
    #[must_use]
    pub fn value(&self) -> &'a Value {
        &self.node.value
    }

    /// Returns the raw node, for values whose structure the caller validates.
    #[must_use]
    pub fn node(&self) -> &'a Node {
        self.node
    }

    /// Returns the path of the field, as [`Object::fail_at`] takes it.
    #[must_use]
    pub fn place(&self) -> String {
        self.at.pointer().trim_start_matches('/').replace('/', ".")
    }

    /// Records an unreadable field (400). Returns `None`, so that a reader can return the result.
    pub fn fail<T>(&self, code: &'static str, detail: impl Into<String>) -> Option<T> {
        self.record(Weight::Unreadable, code, detail)
    }

    /// Records a field that is readable but not acceptable (422). Returns `None`.
    pub fn reject<T>(&self, code: &'static str, detail: impl Into<String>) -> Option<T> {
        self.record(Weight::Unacceptable, code, detail)
    }

    /// Records an unreadable field (400) that contradicts an earlier value, whose offset is `with`. Returns `None`.
    pub fn conflict<T>(&self, code: &'static str, detail: String, with: usize) -> Option<T> {
        let mistake = Mistake::unreadable(self.at.pointer(), self.node.offset, code, detail);
        let related = Some(with);
        self.mistakes.note(Mistake { related, ..mistake });
        None
    }

    fn record<T>(
        &self,
        weight: Weight,
        code: &'static str,
        detail: impl Into<String>,
    ) -> Option<T> {
        let mistake = Mistake::unreadable(self.at.pointer(), self.node.offset, code, detail);
        self.mistakes.note(Mistake { weight, ..mistake });
        None
    }

    fn mistyped<T>(&self, expected: &str) -> Option<T> {
        self.fail(
            "invalid_type",
            format!("must be {expected}, not {}", self.node.value.kind()),
        )
    }

    /// Records an accepted form of the value as a JSON schema.
    fn accept(&self, form: impl FnOnce() -> Json) {
        if let Some(recorded) = &self.mistakes.accepted {
            recorded.borrow_mut().note_form(self.at.path(), form());
        }
    }

    /// Names the type of the value for the reference, where "string" or "integer" says too little.
    #[must_use]
    pub fn typed(self, name: &'static str) -> Self {
        if let Some(recorded) = &self.mistakes.accepted {
            let mut recorded = recorded.borrow_mut();
            recorded.note_field(self.at.path()).type_name = Some(name);
        }
        self
    }

    /// Reads text of any length.
    pub fn string(&self) -> Option<&'a str> {
        self.string_as(|| json!({ "type": "string" }))
    }

    /// Reads text, which the caller parses. `form` is its JSON schema.
    pub fn string_as(&self, form: impl FnOnce() -> Json) -> Option<&'a str> {
        match self.if_string(form) {
            Some(text) if text.contains('\0') => self.fail("invalid_format", NO_NUL),
            found => found.or_else(|| self.mistyped("a string")),
        }
    }

    /// Returns the text of a string. Any other value has another form, and is not recorded as a
    /// mistake. `form` is the JSON schema of the string.
    pub fn if_string(&self, form: impl FnOnce() -> Json) -> Option<&'a str> {
        self.accept(form);
        if let Value::String(text) = &self.node.value {
            Some(text)
        } else {
            None
        }
    }

    /// Returns whether the value is this word, one of its forms.
    #[must_use]
    pub fn is(&self, word: &str) -> bool {
        self.if_string(|| json!({ "enum": [word] })) == Some(word)
    }

    /// Returns whether the value is `true`, one of its forms.
    #[must_use]
    pub fn is_true(&self) -> bool {
        self.accept(|| json!({ "const": true }));
        self.node.value == Value::Bool(true)
    }

    /// Returns whether the field is absent, and read to record what its reader accepts.
    fn is_probe(&self) -> bool {
        self.mistakes.probes && self.node.value == Value::Null
    }

    pub(super) fn is_empty_array(&self) -> bool {
        matches!(&self.node.value, Value::Array(items) if items.is_empty())
    }

    /// Reads text without control characters whose number of characters is in `range`.
    pub fn text(&self, range: RangeInclusive<usize>) -> Option<String> {
        let text = self.sized(range)?;
        if text.chars().any(char::is_control) {
            return self.fail("invalid_format", "must not contain control characters");
        }
        Some(text.to_owned())
    }

    /// Reads the path of a file or folder.
    pub fn path(&self) -> Option<PathBuf> {
        self.typed("path").text(1..=1024).map(PathBuf::from)
    }

    /// Reads text whose number of characters is in `range`.
    pub fn sized(&self, range: RangeInclusive<usize>) -> Option<&'a str> {
        let (min, max) = (range.start(), range.end());
        let text =
            self.string_as(|| json!({ "type": "string", "minLength": min, "maxLength": max }))?;
        if range.contains(&text.chars().count()) {
            return Some(text);
        }
        let detail = format!("must be {min} to {max} characters long");
        self.fail("invalid_length", detail)
    }

    /// Reads a boolean.
    pub fn boolean(&self) -> Option<bool> {
        self.accept(|| json!({ "type": "boolean" }));
        if let Value::Bool(flag) = self.node.value {
            Some(flag)
        } else {
            self.mistyped("a boolean")
        }
    }

    /// Reads an integer in `range`.
    pub fn integer<T>(&self, range: RangeInclusive<T>) -> Option<T>
    where
        T: Copy + PartialOrd + TryFrom<i128> + std::fmt::Display,
    {
        self.accept(|| {
            let number = |bound: &T| bound.to_string().parse().map_or(Json::Null, Json::Number);
            let (min, max) = (number(range.start()), number(range.end()));
            json!({ "type": "integer", "minimum": min, "maximum": max })
        });
        let Value::Integer(number) = self.node.value else {
            return self.mistyped("an integer");
        };
        match T::try_from(number) {
            Ok(number) if range.contains(&number) => Some(number),
            _ => self.fail(
                "out_of_range",
                format!("must be {} to {}", range.start(), range.end()),
            ),
        }
    }

    /// Reads a number in `range`.
    pub fn number(&self, range: RangeInclusive<f64>) -> Option<f64> {
        let (min, max) = (range.start(), range.end());
        self.accept(|| json!({ "type": "number", "minimum": min, "maximum": max }));
        let number = match self.node.value {
            Value::Integer(number) => number as f64,
            Value::Float(number) => number,
            Value::Null
            | Value::Bool(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => return self.mistyped("a number"),
        };
        if range.contains(&number) {
            return Some(number);
        }
        self.fail("out_of_range", format!("must be {min} to {max}"))
    }

    /// Reads a nested object. Fields that `read` does not take are recorded as unknown.
    pub fn object<T>(&self, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Option<T> {
        self.object_within(None, read)
    }

    /// Reads an object as [`Field::object`] does. A field that it does not have is that of `outer`.
    pub fn object_within<T>(
        &self,
        outer: Option<&Object<'_>>,
        read: impl FnOnce(&Object<'_>) -> Option<T>,
    ) -> Option<T> {
        self.accept(|| json!({ "type": "object" }));
        let entries: &[_] = if let Value::Object(entries) = &self.node.value {
            entries
        } else if self.is_probe() {
            &[]
        } else {
            return self.mistyped("an object");
        };
        let known = RefCell::new(Vec::with_capacity(INITIAL_FIELD_CAPACITY));
        let object = Object {
            entries,
            offset: self.node.offset,
            at: self.at,
            mistakes: self.mistakes,
            known,
            outer,
            lent: RefCell::default(),
        };
        let value = read(&object);
        object.record_unknown_fields();
        value
    }

    /// Reads every item of a list. Invalid items are omitted and recorded.
    pub fn array<T>(&self, read: impl FnMut(Field<'_>) -> Option<T>) -> Option<Vec<T>> {
        self.array_of(0, read)
    }

    /// Reads every item of a list that must not be empty. Invalid items are omitted and recorded; if
    /// all are, the list is not recorded as empty as well.
    pub fn non_empty_array<T>(&self, read: impl FnMut(Field<'_>) -> Option<T>) -> Option<Vec<T>> {
        if self.is_empty_array() {
            return self.fail("invalid_length", "must not be empty");
        }
        self.array_of(1, read)
    }

    /// Reads every item of a list that has at least `min` items.
    pub(super) fn array_of<T>(
        &self,
        min: usize,
        mut read: impl FnMut(Field<'_>) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.accept(|| match min {
            0 => json!({ "type": "array" }),
            min => json!({ "type": "array", "minItems": min }),
        });
        let items = if let Value::Array(items) = &self.node.value {
            items
        } else if self.is_probe() {
            std::slice::from_ref(self.node)
        } else {
            return self.mistyped("an array");
        };
        let item = |(index, node)| {
            let at = ValuePath {
                parent: Some(&self.at),
                segment: PathSegment::Index(index),
                recorded_below: None,
            };
            read(Field {
                node,
                at,
                mistakes: self.mistakes,
            })
        };
        Some(items.iter().enumerate().filter_map(item).collect())
    }

    /// Reads one of a closed set of names.
    pub fn one_of<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        let names = || choices.iter().map(|(word, _)| *word).collect::<Vec<_>>();
        let text = self.string_as(|| json!({ "enum": names() }))?;
        let found = choices.iter().find(|(word, _)| *word == text);
        found.map(|(_, choice)| *choice).or_else(|| {
            let detail = format!("must be one of {}", names().join(", "));
            self.fail("invalid_choice", detail)
        })
    }

    /// Reads an RFC 3339 timestamp.
    pub fn timestamp(&self) -> Option<Timestamp> {
        let text = self.string_as(|| json!({ "type": "string", "format": "date-time" }))?;
        Timestamp::parse(text)
            .or_else(|| self.fail("invalid_format", "must be an RFC 3339 timestamp"))
    }

    /// Reads a duration such as `250ms`, `30s`, `5m`, `1h` or `7d`.
    pub fn duration(&self) -> Option<Duration> {
        let pattern = "^[0-9]+(ms|s|m|h|d)$";
        let text = self.string_as(|| json!({ "type": "string", "pattern": pattern }))?;
        let detail = "must be a duration such as 250ms, 30s, 5m, 1h or 7d";
        parse_duration(text).or_else(|| self.fail("invalid_format", detail))
    }

    /// Reads a size in bytes such as `512`, `64KiB`, `10MiB` or `1GiB`.
    pub fn bytes(&self) -> Option<u64> {
        self.accept(|| json!({ "type": "integer", "minimum": 0 }));
        let pattern = "^[0-9]+(B|KiB|MiB|GiB)?$";
        self.accept(|| json!({ "type": "string", "pattern": pattern }));
        if let Value::Integer(number) = self.node.value {
            return u64::try_from(number)
                .ok()
                .or_else(|| self.fail("out_of_range", "must not be negative"));
        }
        let Value::String(text) = &self.node.value else {
            return self.mistyped("a string");
        };
        parse_bytes(text)
            .or_else(|| self.fail("invalid_format", "must be a size such as 64KiB or 10MiB"))
    }

    /// Reads an absolute `http` or `https` URL without a user name and password.
    pub fn url(&self) -> Option<Url> {
        let text = self.string_as(|| json!({ "type": "string", "pattern": "^https?://" }))?;
        let detail = match Url::parse(text) {
            Ok(url) if !matches!(url.scheme(), "http" | "https") => URL_EXPECTED,
            Ok(url) if !url.username().is_empty() || url.password().is_some() => {
                "must be a URL without user information (user:password@)"
            }
            Ok(url) => return Some(url),
            Err(_) => URL_EXPECTED,
        };
        self.fail("invalid_format", detail)
    }

    /// Reads an IP address with a port, such as `127.0.0.1:8500` or `[::1]:8500`.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        let text = self.string_as(|| json!({ "type": "string", "pattern": "^.+:[0-9]+$" }))?;
        let detail = "must be an IP address with a port, such as 127.0.0.1:8500";
        let address = text.parse().ok();
        address.or_else(|| self.fail("invalid_format", detail))
    }
}

#[cfg(test)]
mod tests;
