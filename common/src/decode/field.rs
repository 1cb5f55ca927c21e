use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use url::Url;

use super::json::push_segment;
use super::mistake::{Mistake, Mistakes, Weight};
use super::{Node, Value};
use crate::clock::Timestamp;

/// The way from the root, written out only when there is a mistake to place.
#[derive(Clone, Copy, Debug)]
pub(super) struct At<'a> {
    parent: Option<&'a At<'a>>,
    segment: Segment<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Segment<'a> {
    Root,
    Name(&'a str),
    /// A name that the writer of the text has chosen.
    ChosenName(&'a str),
    Index(usize),
}

/// One value under its name.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    pub(super) node: &'a Node,
    pub(super) at: At<'a>,
    pub(super) mistakes: &'a Mistakes,
}

/// Named values, of which each is taken at most once.
#[derive(Debug)]
pub struct Object<'a> {
    entries: &'a [(String, Node)],
    offset: usize,
    at: At<'a>,
    mistakes: &'a Mistakes,
    known: RefCell<Vec<&'static str>>,
}

// === impl At ===

impl<'a> At<'a> {
    pub(super) fn root() -> Self {
        Self {
            parent: None,
            segment: Segment::Root,
        }
    }

    fn pointer(&self) -> String {
        let mut pointer = self.parent.map(At::pointer).unwrap_or_default();
        match self.segment {
            Segment::Root => {}
            Segment::Name(name) | Segment::ChosenName(name) => push_segment(&mut pointer, name),
            Segment::Index(index) => push_segment(&mut pointer, &index.to_string()),
        }
        pointer
    }

    /// Returns the path as [`Mistakes::known_fields`] writes it.
    fn path(&self) -> String {
        let parent = self.parent.map(At::path).unwrap_or_default();
        let dot = if parent.is_empty() { "" } else { "." };
        match self.segment {
            Segment::Root => parent,
            Segment::Name(name) => format!("{parent}{dot}{name}"),
            Segment::ChosenName(_) => format!("{parent}{dot}NAME"),
            Segment::Index(_) => format!("{parent}[]"),
        }
    }
}

// === impl Object ===

impl Object<'_> {
    /// A field that must be there.
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

    /// A field that may be absent. `None` also when it is there and wrong, which is noted.
    pub fn optional<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(Field<'_>) -> Option<T>,
    ) -> Option<T> {
        self.field(name).and_then(read)
    }

    /// A field with a default.
    pub fn or<T>(
        &self,
        name: &'static str,
        default: T,
        read: impl FnOnce(Field<'_>) -> Option<T>,
    ) -> T {
        self.optional(name, read).unwrap_or(default)
    }

    /// A nested object that may be absent.
    pub fn section<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(&Object<'_>) -> Option<T>,
    ) -> Option<T> {
        self.optional(name, |field| field.object(read))
    }

    /// Every item of a list that may be absent; an item that is wrong is left out and noted.
    pub fn list<T>(&self, name: &'static str, read: impl FnMut(Field<'_>) -> Option<T>) -> Vec<T> {
        self.optional(name, |field| field.array(read))
            .unwrap_or_default()
    }

    /// Every entry, for objects whose names are data; none of them is unknown any more.
    pub fn entries<T>(&self, mut read: impl FnMut(&str, Field<'_>) -> Option<T>) -> Vec<T> {
        let unknown = self
            .entries
            .iter()
            .filter(|(name, _)| !self.known.borrow().contains(&name.as_str()));
        let all = unknown
            .filter_map(|(name, node)| read(name, self.child(Segment::ChosenName(name), node)))
            .collect();
        self.known.borrow_mut().push(ANY);
        all
    }

    /// Whether the name stands there, whatever its value; it counts as known from now on.
    pub fn has(&self, name: &'static str) -> bool {
        self.field(name).is_some()
    }

    /// Notes a mistake that concerns the object as a whole, such as two fields that exclude each
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

    /// Notes a mistake of a value below this object that was found after it was read; `path` names
    /// it as messages do, such as `listen.0.tls.key`. What is not there is told at the nearest
    /// value above it.
    pub fn fail_at(&self, path: &str, code: &'static str, detail: impl Into<String>) {
        let (mut pointer, mut offset) = (self.at.pointer(), self.offset);
        let mut below = self.entries.iter().find(|(name, _)| is_first(path, name));
        let mut rest = path;
        while let Some((name, node)) = below {
            push_segment(&mut pointer, name);
            offset = node.offset;
            rest = rest[name.len()..].trim_start_matches('.');
            let mut here = node;
            while let Value::Array(items) = &here.value {
                let (index, after) = rest.split_once('.').unwrap_or((rest, ""));
                let Some(item) = index.parse().ok().and_then(|at: usize| items.get(at)) else {
                    break;
                };
                push_segment(&mut pointer, index);
                (offset, rest, here) = (item.offset, after, item);
            }
            let Value::Object(entries) = &here.value else {
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

    /// Whether nothing has been found wrong so far, here or elsewhere in the text.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.mistakes.is_empty()
    }

    fn field(&self, name: &'static str) -> Option<Field<'_>> {
        self.known.borrow_mut().push(name);
        let (name, node) = self.entries.iter().find(|(known, _)| known == name)?;
        Some(self.child(Segment::Name(name), node))
    }

    fn child<'s>(&'s self, segment: Segment<'s>, node: &'s Node) -> Field<'s> {
        let at = At {
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
            let name = if *name == ANY { "NAME" } else { name };
            recorded.borrow_mut().insert(format!("{path}{dot}{name}"));
        }
    }

    /// Notes every name that was never asked for.
    fn refuse_unknown(&self) {
        let known = self.known.borrow();
        self.record_known(&known);
        if known.contains(&ANY) {
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

/// Fields that most objects have no more of, so that the list of them seldom grows.
const USUAL_FIELDS: usize = 20;

/// Stands in `known` for "every name"; no field has this name.
const ANY: &str = "\0any";

/// Whether `name` is the first part of a path with dots.
fn is_first(path: &str, name: &str) -> bool {
    path.strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether two names differ by at most two edits: close enough to ask "did you mean".
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
    /// The raw value.
    #[must_use]
    pub fn value(&self) -> &'a Value {
        &self.node.value
    }

    /// The raw node, for values whose shape is the caller's business.
    #[must_use]
    pub fn node(&self) -> &'a Node {
        self.node
    }

    /// Notes that the field cannot be read (400). Always `None`, so that it can end a reader.
    pub fn fail<T>(&self, code: &'static str, detail: impl Into<String>) -> Option<T> {
        self.note(Weight::Unreadable, code, detail.into())
    }

    /// Notes that the field reads and is not acceptable (422). Always `None`.
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

    /// Text of any length.
    pub fn string(&self) -> Option<&'a str> {
        if let Value::String(text) = &self.node.value {
            Some(text)
        } else {
            self.mistyped("a string")
        }
    }

    /// Text whose length in bytes lies in `range`, without control characters.
    pub fn text(&self, range: RangeInclusive<usize>) -> Option<String> {
        let text = self.string()?;
        if !range.contains(&text.len()) {
            let (least, most) = (range.start(), range.end());
            return self.fail(
                "invalid_length",
                format!("must be {least} to {most} bytes long"),
            );
        }
        if text.chars().any(char::is_control) {
            return self.fail("invalid_format", "must not contain control characters");
        }
        Some(text.to_owned())
    }

    /// `true` or `false`.
    pub fn boolean(&self) -> Option<bool> {
        if let Value::Bool(flag) = self.node.value {
            Some(flag)
        } else {
            self.mistyped("a boolean")
        }
    }

    /// A whole number in `range`.
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

    /// Any number.
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

    /// A nested object; whatever `read` does not take is an unknown field.
    pub fn object<T>(&self, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Option<T> {
        let Value::Object(entries) = &self.node.value else {
            return self.mistyped("an object");
        };
        let known = RefCell::new(Vec::with_capacity(USUAL_FIELDS));
        let object = Object {
            entries,
            offset: self.node.offset,
            at: self.at,
            mistakes: self.mistakes,
            known,
        };
        let value = read(&object);
        object.refuse_unknown();
        value
    }

    /// Every item of a list; one that is wrong is left out and noted.
    pub fn array<T>(&self, mut read: impl FnMut(Field<'_>) -> Option<T>) -> Option<Vec<T>> {
        let Value::Array(items) = &self.node.value else {
            return self.mistyped("an array");
        };
        let item = |(index, node)| {
            let at = At {
                parent: Some(&self.at),
                segment: Segment::Index(index),
            };
            read(Field {
                node,
                at,
                mistakes: self.mistakes,
            })
        };
        Some(items.iter().enumerate().filter_map(item).collect())
    }

    /// One of a closed set of words.
    pub fn one_of<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        let text = self.string()?;
        match choices.iter().find(|(word, _)| *word == text) {
            Some((_, choice)) => Some(*choice),
            None => {
                let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                self.fail(
                    "invalid_choice",
                    format!("must be one of {}", words.join(", ")),
                )
            }
        }
    }

    /// An instant in RFC 3339.
    pub fn timestamp(&self) -> Option<Timestamp> {
        let text = self.string()?;
        Timestamp::parse(text)
            .or_else(|| self.fail("invalid_format", "must be an RFC 3339 instant"))
    }

    /// A duration such as `250ms`, `30s`, `5m`, `1h` or `7d`.
    pub fn duration(&self) -> Option<Duration> {
        let text = self.string()?;
        parse_duration(text).or_else(|| {
            self.fail(
                "invalid_format",
                "must be a duration such as 250ms, 30s, 5m, 1h or 7d",
            )
        })
    }

    /// A size in bytes such as `512`, `64KiB`, `10MiB` or `1GiB`.
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

    /// An absolute `http` or `https` URL without credentials.
    pub fn url(&self) -> Option<Url> {
        let text = self.string()?;
        match Url::parse(text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.username().is_empty() => {
                Some(url)
            }
            _ => self.fail("invalid_format", "must be an absolute http or https URL"),
        }
    }

    /// An address and port, such as `127.0.0.1:8500` or `[::1]:8500`.
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

fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

fn parse_duration(text: &str) -> Option<Duration> {
    let (count, unit) = split_number(text)?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    count.checked_mul(millis).map(Duration::from_millis)
}

fn parse_bytes(text: &str) -> Option<u64> {
    let (count, unit) = split_number(text)?;
    let size = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    count.checked_mul(size)
}

#[cfg(test)]
mod tests;
