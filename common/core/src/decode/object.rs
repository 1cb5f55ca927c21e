//! Reading of an object by field name, with records of missing and unknown fields.

use std::cell::RefCell;

use super::json::push_segment;
use super::mistake::{Mistake, Mistakes, Weight};
use super::path::{PathSegment, ValuePath};
use super::{Field, Node, Value};

/// An object that is being read. Fields that have not been requested by name when reading ends are
/// recorded as unknown.
#[derive(Debug)]
pub struct Object<'a> {
    pub(super) entries: &'a [(String, Node)],
    pub(super) offset: usize,
    pub(super) at: ValuePath<'a>,
    pub(super) mistakes: &'a Mistakes,
    pub(super) known: RefCell<Vec<&'static str>>,
}

// === impl Object ===

impl Object<'_> {
    /// Reads a required field. A missing one is recorded (400).
    pub fn required<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(Field<'_>) -> Option<T>,
    ) -> Option<T> {
        let found = self.field(name);
        if let Some(recorded) = &self.mistakes.accepted {
            recorded.borrow_mut().note_required(self.path_of(name));
        }
        if found.is_none() {
            self.fail_field(name, self.offset, "missing_field", "is required".to_owned());
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

    /// Reads a field with a default. An invalid value is recorded and yields the default as well.
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

    /// Reads every item of a required list that must not be empty. An absent or empty one is recorded
    /// (400) with this detail.
    pub fn non_empty_list<T>(
        &self,
        name: &'static str,
        detail: &str,
        read: impl FnMut(Field<'_>) -> Option<T>,
    ) -> Vec<T> {
        if let Some(recorded) = &self.mistakes.accepted {
            recorded.borrow_mut().note_required(self.path_of(name));
        }
        match self.field(name) {
            Some(field) if !field.is_empty_array() => field.array_of(1, read).unwrap_or_default(),
            Some(_) | None => {
                self.fail("missing_field", detail);
                Vec::new()
            }
        }
    }

    /// Reads every field that was not requested by name before, for objects with user-defined keys.
    /// No field counts as unknown afterwards.
    pub fn entries<T>(&self, mut read: impl FnMut(&str, Field<'_>) -> Option<T>) -> Vec<T> {
        let unknown = self
            .entries
            .iter()
            .filter(|(name, _)| !self.known.borrow().contains(&name.as_str()));
        let values = unknown
            .filter_map(|(name, node)| read(name, self.child(PathSegment::UserKey(name), node)))
            .collect();
        self.known.borrow_mut().push(ANY_NAME);
        values
    }

    /// Returns whether the field is present, with any value, and marks its name as known.
    pub fn has(&self, name: &'static str) -> bool {
        self.field(name).is_some()
    }

    /// Records an unreadable object (400), such as two fields that exclude each other.
    pub fn fail(&self, code: &'static str, detail: impl Into<String>) {
        self.mistakes.note(Mistake {
            pointer: self.at.pointer(),
            offset: self.offset,
            weight: Weight::Unreadable,
            code,
            detail: detail.into(),
            related: None,
        });
    }

    /// Records an unacceptable value (422) below this object, found after reading. `path` names the
    /// value, such as `listen.0.tls.key`. If it does not exist, the mistake is located at its
    /// nearest existing ancestor.
    pub fn fail_at(&self, path: &str, code: &'static str, detail: impl Into<String>) {
        let (pointer, offset) = self.nearest(path);
        let detail = detail.into();
        self.mistakes.note(Mistake {
            pointer,
            offset,
            weight: Weight::Unacceptable,
            code,
            detail,
            related: None,
        });
    }

    /// Returns the byte offset of the value at a path as in [`Object::fail_at`], or of the nearest
    /// value around it. `None` if this object has no field of the first name.
    #[must_use]
    pub fn offset_at(&self, path: &str) -> Option<usize> {
        let is_known = self.entries.iter().any(|(name, _)| is_first(path, name));
        is_known.then(|| self.nearest(path).1)
    }

    /// Returns the pointer and the offset of the value at a path, or of the nearest one around it.
    fn nearest(&self, path: &str) -> (String, usize) {
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
        (pointer, offset)
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

    /// Records an unreadable field (400).
    fn fail_field(&self, name: &str, offset: usize, code: &'static str, detail: String) {
        let mut pointer = self.at.pointer();
        push_segment(&mut pointer, name);
        self.mistakes.note(Mistake {
            pointer,
            offset,
            weight: Weight::Unreadable,
            code,
            detail,
            related: None,
        });
    }

    /// Records a mistake (400) with this code and detail if the field is present. The message is
    /// more helpful than that of an unknown field.
    pub fn refuse(&self, name: &'static str, code: &'static str, detail: &str) {
        if let Some(field) = self.field(name) {
            let _refused: Option<()> = field.fail(code, detail);
        }
        // An absent field of this name must not be suggested as the correction of another one.
        if !self.has_entry(name) {
            self.known.borrow_mut().retain(|known| *known != name);
        }
    }

    fn has_entry(&self, name: &str) -> bool {
        self.entries.iter().any(|(known, _)| known == name)
    }

    fn record_known(&self, known: &[&'static str]) {
        let Some(recorded) = &self.mistakes.accepted else {
            return;
        };
        for name in known {
            let name = if *name == ANY_NAME { "NAME" } else { name };
            recorded.borrow_mut().note_field(self.path_of(name));
        }
    }

    fn path_of(&self, name: &str) -> String {
        let path = self.at.path();
        let dot = if path.is_empty() { "" } else { "." };
        format!("{path}{dot}{name}")
    }

    /// Records as unknown (400) every field that was not requested.
    pub(super) fn record_unknown_fields(&self) {
        let known = self.known.borrow();
        self.record_known(&known);
        if known.contains(&ANY_NAME) {
            return;
        }
        let unknown = |(name, _): &&(String, Node)| !known.contains(&name.as_str());
        for (name, node) in self.entries.iter().filter(unknown) {
            if self.mistakes.is_full() {
                return;
            }
            let similar = known.iter().find(|known| is_similar(known, name));
            let detail = similar.map_or_else(
                || "is not a known field".to_owned(),
                |similar| format!("is not a known field; did you mean `{similar}`?"),
            );
            self.fail_field(name, node.offset, "unknown_field", detail);
        }
    }
}

/// Initial capacity of the list of known names, enough for most objects.
pub(super) const INITIAL_FIELD_CAPACITY: usize = 20;

/// Marker in `known` that accepts every name. No field has this name.
const ANY_NAME: &str = "\0any";

/// Returns whether `name` is the first segment of a dotted path.
fn is_first(path: &str, name: &str) -> bool {
    path.strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns whether two names differ by at most two edits, for the hint "did you mean". A `left` of
/// fewer than four bytes is similar to no name, because two edits may replace most of it.
#[must_use]
pub fn is_similar(left: &str, right: &str) -> bool {
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
