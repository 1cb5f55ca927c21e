use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use url::Url;

use super::json::push_segment;
use super::mistake::{Mistake, Mistakes, Weight};
use super::units::{parse_bytes, parse_duration};
use super::{Node, Value};
use crate::clock::Timestamp;

/// The path of a value from the root. It is formatted only for a mistake.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValuePath<'a> {
    parent: Option<&'a ValuePath<'a>>,
    segment: PathSegment<'a>,
}

#[derive(Clone, Copy, Debug)]
enum PathSegment<'a> {
    Root,
    Name(&'a str),
    /// A name that the writer of the text has chosen.
    ChosenName(&'a str),
    Index(usize),
}

/// A named value that is being read.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    pub(super) node: &'a Node,
    pub(super) at: ValuePath<'a>,
    pub(super) mistakes: &'a Mistakes,
}

/// An object that is being read. Each of its fields is taken at most once.
#[derive(Debug)]
pub struct Object<'a> {
    entries: &'a [(String, Node)],
    offset: usize,
    at: ValuePath<'a>,
    mistakes: &'a Mistakes,
    known: RefCell<Vec<&'static str>>,
}

// === impl ValuePath ===

impl<'a> ValuePath<'a> {
    pub(super) fn root() -> Self {
        Self {
            parent: None,
            segment: PathSegment::Root,
        }
    }

    fn pointer(&self) -> String {
        let mut pointer = self.parent.map(ValuePath::pointer).unwrap_or_default();
        match self.segment {
            PathSegment::Root => {}
            PathSegment::Name(name) | PathSegment::ChosenName(name) => {
                push_segment(&mut pointer, name)
            }
            PathSegment::Index(index) => push_segment(&mut pointer, &index.to_string()),
        }
        pointer
    }

    /// Returns the path as [`Mistakes::known_fields`] writes it.
    fn path(&self) -> String {
        let parent = self.parent.map(ValuePath::path).unwrap_or_default();
        let dot = if parent.is_empty() { "" } else { "." };
        match self.segment {
            PathSegment::Root => parent,
            PathSegment::Name(name) => format!("{parent}{dot}{name}"),
            PathSegment::ChosenName(_) => format!("{parent}{dot}NAME"),
            PathSegment::Index(_) => format!("{parent}[]"),
        }
    }
}

// === impl Object ===

impl Object<'_> {
    /// Reads a required field.
    pub fn required<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(Field<'_>) -> Option<T>,
    ) -> Option<T> {
        let found = self.field(name);
        if found.is_none() {
            self.note(name, self.offset, "missing_field", "is required".to_owned());
        }
        found.and_then(read)
    }

    /// Reads an optional field. Returns `None` also if the field is invalid, which is recorded.
    pub fn optional<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(Field<'_>) -> Option<T>,
    ) -> Option<T> {
        self.field(name).and_then(read)
    }

    /// Reads a field with a default.
    pub fn or<T>(
        &self,
        name: &'static str,
        default: T,
        read: impl FnOnce(Field<'_>) -> Option<T>,
    ) -> T {
        self.optional(name, read).unwrap_or(default)
    }

    /// Reads an optional nested object.
    pub fn section<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(&Object<'_>) -> Option<T>,
    ) -> Option<T> {
        self.optional(name, |field| field.object(read))
    }

    /// Reads every item of an optional list. Invalid items are omitted and recorded.
    pub fn list<T>(&self, name: &'static str, read: impl FnMut(Field<'_>) -> Option<T>) -> Vec<T> {
        self.optional(name, |field| field.array(read))
            .unwrap_or_default()
    }

    /// Reads every field that was not taken by name, for objects whose names are data. No field
    /// counts as unknown afterwards.
    pub fn entries<T>(&self, mut read: impl FnMut(&str, Field<'_>) -> Option<T>) -> Vec<T> {
        let unknown = self
            .entries
            .iter()
            .filter(|(name, _)| !self.known.borrow().contains(&name.as_str()));
        let all = unknown
            .filter_map(|(name, node)| read(name, self.child(PathSegment::ChosenName(name), node)))
            .collect();
        self.known.borrow_mut().push(ANY_NAME);
        all
    }

    /// Returns whether the field is present, with any value. It counts as known from then on.
    pub fn has(&self, name: &'static str) -> bool {
        self.field(name).is_some()
    }

    /// Records a mistake that concerns the whole object, such as two fields that exclude each
    /// other.
    pub fn fail(&self, code: &'static str, detail: impl Into<String>) {
        self.mistakes.note(Mistake {
            pointer: self.at.pointer(),
            offset: self.offset,
            weight: Weight::Unreadable,
            code,
            detail: detail.into(),
        });
    }

    /// Records a mistake that was found after reading, in a value below this object. `path` names
    /// the value, such as `listen.0.tls.key`. If it does not exist, the mistake is located at its
    /// nearest existing ancestor.
    pub fn fail_at(&self, path: &str, code: &'static str, detail: impl Into<String>) {
        let (mut pointer, mut offset) = (self.at.pointer(), self.offset);
        let mut below = self.entries.iter().find(|(name, _)| is_first(path, name));
        let mut rest = path;
        while let Some((name, node)) = below {
            push_segment(&mut pointer, name);
            offset = node.offset;
            rest = rest[name.len()..].trim_start_matches('.');
            let mut current = node;
            while let Value::Array(items) = &current.value {
                let (index, after) = rest.split_once('.').unwrap_or((rest, ""));
                let Some(item) = index.parse().ok().and_then(|at: usize| items.get(at)) else {
                    break;
                };
                push_segment(&mut pointer, index);
                (offset, rest, current) = (item.offset, after, item);
            }
            let Value::Object(entries) = &current.value else {
                break;
            };
            below = entries.iter().find(|(name, _)| is_first(rest, name));
        }
        let detail = detail.into();
        self.mistakes.note(Mistake {
            pointer,
            offset,
            weight: Weight::Unacceptable,
            code,
            detail,
        });
    }

    /// Returns whether no mistake has been recorded so far in the whole text.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.mistakes.is_empty()
    }

    fn field(&self, name: &'static str) -> Option<Field<'_>> {
        self.known.borrow_mut().push(name);
        let (name, node) = self.entries.iter().find(|(known, _)| known == name)?;
        Some(self.child(PathSegment::Name(name), node))
    }

    fn child<'s>(&'s self, segment: PathSegment<'s>, node: &'s Node) -> Field<'s> {
        let at = ValuePath {
            parent: Some(&self.at),
            segment,
        };
        Field {
            node,
            at,
            mistakes: self.mistakes,
        }
    }

    fn note(&self, name: &str, offset: usize, code: &'static str, detail: String) {
        let mut pointer = self.at.pointer();
        push_segment(&mut pointer, name);
        self.mistakes.note(Mistake {
            pointer,
            offset,
            weight: Weight::Unreadable,
            code,
            detail,
        });
    }

    /// Refuses a field that has another name now; `now` is written as the user has to write it.
    pub fn renamed(&self, name: &'static str, now: &str) {
        self.refuse(name, "renamed_field", &format!("renamed to `{now}`"));
    }

    /// Refuses a field for a reason that is better than that it is unknown.
    pub fn refuse(&self, name: &'static str, code: &'static str, detail: &str) {
        if let Some(field) = self.field(name) {
            let _refused: Option<()> = field.fail(code, detail);
        }
        // A name that is refused is not offered as a correction of another one.
        if !self.has_entry(name) {
            self.known.borrow_mut().retain(|known| *known != name);
        }
    }

    fn has_entry(&self, name: &str) -> bool {
        self.entries.iter().any(|(known, _)| known == name)
    }

    fn record_known(&self, known: &[&'static str]) {
        let Some(recorded) = &self.mistakes.known_fields else {
            return;
        };
        let path = self.at.path();
        let dot = if path.is_empty() { "" } else { "." };
        for name in known {
            let name = if *name == ANY_NAME { "NAME" } else { name };
            recorded.borrow_mut().insert(format!("{path}{dot}{name}"));
        }
    }

    /// Records every field that was not taken as unknown.
    fn record_unknown_fields(&self) {
        let known = self.known.borrow();
        self.record_known(&known);
        if known.contains(&ANY_NAME) {
            return;
        }
        for (name, node) in self
            .entries
            .iter()
            .filter(|(name, _)| !known.contains(&name.as_str()))
        {
            let near = known.iter().find(|known| is_near(known, name));
            let detail = near.map_or_else(
                || "is not a known field".to_owned(),
                |near| format!("is not a known field; did you mean `{near}`?"),
            );
            self.note(name, node.offset, "unknown_field", detail);
        }
    }
}

/// Initial capacity of the list of known names, enough for most objects.
const INITIAL_FIELD_CAPACITY: usize = 20;

/// Marker in `known` that accepts every name. No field has this name.
const ANY_NAME: &str = "\0any";

/// Returns whether `name` is the first segment of a dotted path.
fn is_first(path: &str, name: &str) -> bool {
    path.strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns whether two names differ by at most two edits, for the hint "did you mean".
fn is_near(left: &str, right: &str) -> bool {
    if left.len().abs_diff(right.len()) > 2 || left.len() < 4 {
        return false;
    }
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let substitute = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()] <= 2
}

// === impl Field ===

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

    /// Records that the field cannot be read (400). Returns `None`, so that a reader can end with
    /// it.
    pub fn fail<T>(&self, code: &'static str, detail: impl Into<String>) -> Option<T> {
        self.note(Weight::Unreadable, code, detail.into())
    }

    /// Records that the field is readable but not acceptable (422). Returns `None`.
    pub fn reject<T>(&self, code: &'static str, detail: impl Into<String>) -> Option<T> {
        self.note(Weight::Unacceptable, code, detail.into())
    }

    fn note<T>(&self, weight: Weight, code: &'static str, detail: String) -> Option<T> {
        let pointer = self.at.pointer();
        self.mistakes.note(Mistake {
            pointer,
            offset: self.node.offset,
            weight,
            code,
            detail,
        });
        None
    }

    fn mistyped<T>(&self, wanted: &str) -> Option<T> {
        self.fail(
            "invalid_type",
            format!("must be {wanted}, not {}", self.node.value.kind()),
        )
    }

    /// Reads text of any length.
    pub fn string(&self) -> Option<&'a str> {
        if let Value::String(text) = &self.node.value {
            Some(text)
        } else {
            self.mistyped("a string")
        }
    }

    /// Reads text without control characters whose length in bytes is in `range`.
    pub fn text(&self, range: RangeInclusive<usize>) -> Option<String> {
        let text = self.string()?;
        if !range.contains(&text.len()) {
            let (min, max) = (range.start(), range.end());
            return self.fail(
                "invalid_length",
                format!("must be {min} to {max} bytes long"),
            );
        }
        if text.chars().any(char::is_control) {
            return self.fail("invalid_format", "must not contain control characters");
        }
        Some(text.to_owned())
    }

    /// Reads a boolean.
    pub fn boolean(&self) -> Option<bool> {
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

    /// Reads a number.
    pub fn number(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "settings are far below 2^53")]
        if let Value::Integer(number) = self.node.value {
            return Some(number as f64);
        }
        if let Value::Float(number) = self.node.value {
            Some(number)
        } else {
            self.mistyped("a number")
        }
    }

    /// Reads a nested object. Fields that `read` does not take are recorded as unknown.
    pub fn object<T>(&self, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Option<T> {
        let Value::Object(entries) = &self.node.value else {
            return self.mistyped("an object");
        };
        let known = RefCell::new(Vec::with_capacity(INITIAL_FIELD_CAPACITY));
        let object = Object {
            entries,
            offset: self.node.offset,
            at: self.at,
            mistakes: self.mistakes,
            known,
        };
        let value = read(&object);
        object.record_unknown_fields();
        value
    }

    /// Reads every item of a list. Invalid items are omitted and recorded.
    pub fn array<T>(&self, mut read: impl FnMut(Field<'_>) -> Option<T>) -> Option<Vec<T>> {
        let Value::Array(items) = &self.node.value else {
            return self.mistyped("an array");
        };
        let item = |(index, node)| {
            let at = ValuePath {
                parent: Some(&self.at),
                segment: PathSegment::Index(index),
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
        let text = self.string()?;
        match choices.iter().find(|(word, _)| *word == text) {
            Some((_, choice)) => Some(*choice),
            None => {
                let names: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                self.fail(
                    "invalid_choice",
                    format!("must be one of {}", names.join(", ")),
                )
            }
        }
    }

    /// Reads an RFC 3339 instant.
    pub fn timestamp(&self) -> Option<Timestamp> {
        let text = self.string()?;
        Timestamp::parse(text)
            .or_else(|| self.fail("invalid_format", "must be an RFC 3339 instant"))
    }

    /// Reads a duration such as `250ms`, `30s`, `5m`, `1h` or `7d`.
    pub fn duration(&self) -> Option<Duration> {
        let text = self.string()?;
        parse_duration(text).or_else(|| {
            self.fail(
                "invalid_format",
                "must be a duration such as 250ms, 30s, 5m, 1h or 7d",
            )
        })
    }

    /// Reads a size in bytes such as `512`, `64KiB`, `10MiB` or `1GiB`.
    pub fn bytes(&self) -> Option<u64> {
        if let Value::Integer(number) = self.node.value {
            return u64::try_from(number)
                .ok()
                .or_else(|| self.fail("out_of_range", "must not be negative"));
        }
        let text = self.string()?;
        parse_bytes(text)
            .or_else(|| self.fail("invalid_format", "must be a size such as 64KiB or 10MiB"))
    }

    /// Reads an absolute `http` or `https` URL without a user name.
    pub fn url(&self) -> Option<Url> {
        let text = self.string()?;
        match Url::parse(text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.username().is_empty() => {
                Some(url)
            }
            _ => self.fail("invalid_format", "must be an absolute http or https URL"),
        }
    }

    /// Reads an address with port, such as `127.0.0.1:8500` or `[::1]:8500`.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        let text = self.string()?;
        text.parse().ok().or_else(|| {
            self.fail(
                "invalid_format",
                "must be an address such as 127.0.0.1:8500",
            )
        })
    }
}

#[cfg(test)]
mod tests;
