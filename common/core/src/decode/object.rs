//! Reading of an object by field name, with records of missing and unknown fields.

use std::cell::RefCell;

use super::accepted::{AcceptedField, Declaration};
use super::json::push_segment;
use super::mistake::{Mistake, Mistakes, UNKNOWN_FIELD, Weight};
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
    /// The object whose fields this one has where it has none of its own.
    pub(super) outer: Option<&'a Object<'a>>,
    /// The fields that objects within this one have requested.
    pub(super) lent: RefCell<Vec<&'static str>>,
}

impl Object<'_> {
    /// Reads a required field. A missing one is recorded (400).
    pub fn required<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(Field<'_>) -> Option<T>,
    ) -> Option<T> {
        let found = self.field(name);
        self.note(name, |field| field.required += 1);
        if found.is_none() {
            self.fail_field(name, self.offset, "missing_field", "is required");
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

    /// Reads a field with a default that is written as in the text. An invalid value is recorded and
    /// yields the default as well.
    pub fn or_value<T>(
        &self,
        name: &'static str,
        default: impl Into<Value>,
        read: impl Fn(Field<'_>) -> Option<T>,
    ) -> T {
        let node = self.absent(default.into());
        self.note(name, |field| {
            if let Some(declared) = &mut field.declared {
                declared.default = Some(node.value.clone());
            }
        });
        self.optional(name, &read).unwrap_or_else(|| {
            read(self.child(PathSegment::Name(name), &node))
                .unwrap_or_else(|| panic!("the default of {name} is not accepted"))
        })
    }

    /// Reads a nested object, or an empty one if it is absent.
    pub fn or_empty<T>(
        &self,
        name: &'static str,
        read: impl FnOnce(Field<'_>) -> Option<T>,
    ) -> Option<T> {
        match self.field(name) {
            Some(field) => read(field),
            None => {
                let node = self.absent(Value::Object(Vec::new()));
                read(self.child(PathSegment::Name(name), &node))
            }
        }
    }

    /// Returns the node of a field that the text does not set.
    fn absent(&self, value: Value) -> Node {
        let offset = self.offset;
        Node { value, offset }
    }

    /// Records the declaration of a field: the struct or function that declares it, the doc comment,
    /// and the default in words. Part of [`settings!`](crate::settings).
    pub fn declare(
        &self,
        name: &'static str,
        owner: &'static str,
        doc: &[&str],
        default_words: &'static str,
    ) {
        if let Some(recorded) = &self.mistakes.accepted {
            let declaration = Declaration {
                owner,
                meaning: first_paragraph(doc),
                default_words,
                default: None,
            };
            let path = self.path_of(name);
            recorded.borrow_mut().note_declaration(path, declaration);
        }
    }

    /// Records the doc comment of this object, unless its field has one.
    pub fn declare_table(&self, doc: &[&str]) {
        if let Some(recorded) = &self.mistakes.accepted {
            let mut recorded = recorded.borrow_mut();
            recorded.note_table(self.at.path(), first_paragraph(doc));
        }
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
        self.note(name, |field| field.required += 1);
        match self.field(name) {
            Some(field) if !field.is_empty_array() => field.array_of(1, read).unwrap_or_default(),
            Some(_) | None => {
                self.fail("missing_field", detail);
                Vec::new()
            }
        }
    }

    /// Reads every item of an optional list. What the items accept is recorded as that of the list of
    /// this name in `model`.
    pub fn list_like<T>(
        &self,
        name: &'static str,
        model: &Object<'_>,
        read: impl FnMut(Field<'_>) -> Option<T>,
    ) -> Vec<T> {
        let Some(mut field) = self.field(name) else {
            return Vec::new();
        };
        field.at.recorded_below = Some(&model.at);
        field.array(read).unwrap_or_default()
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
        if self.mistakes.probes && self.entries.is_empty() {
            let _accepted = read("NAME", self.child(PathSegment::UserKey("NAME"), &ABSENT));
        }
        self.known.borrow_mut().push(ANY_NAME);
        values
    }

    /// Returns whether the field is present, with any value, and marks its name as known.
    pub fn has(&self, name: &'static str) -> bool {
        self.known.borrow_mut().push(name);
        let outer = self.outer.and_then(|outer| outer.lend(name, &self.at));
        outer.is_some() || self.has_entry(name)
    }

    /// Returns whether the object itself has the field, and marks its name as known.
    pub fn has_own(&self, name: &'static str) -> bool {
        self.has(name) && self.has_entry(name)
    }

    /// Records an unreadable object (400), such as two fields that exclude each other.
    pub fn fail(&self, code: &'static str, detail: impl Into<String>) {
        let mistake = Mistake::unreadable(self.at.pointer(), self.offset, code, detail);
        self.mistakes.note(mistake);
    }

    /// Records an unacceptable value (422) below this object, found after reading. `path` names the
    /// value, such as `listen.0.tls.key`. If it does not exist, the mistake is located at its
    /// nearest existing ancestor.
    pub fn fail_at(&self, path: &str, code: &'static str, detail: impl Into<String>) {
        let (pointer, offset) = self.nearest(path);
        self.mistakes.note(Mistake {
            weight: Weight::Unacceptable,
            ..Mistake::unreadable(pointer, offset, code, detail)
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
        self.fields(name).last()
    }

    /// Returns the fields of this name: that of the outer object, and then that of this one.
    pub fn fields(&self, name: &'static str) -> impl Iterator<Item = Field<'_>> {
        self.known.borrow_mut().push(name);
        let outer = self.outer.and_then(|outer| outer.lend(name, &self.at));
        let own = self.entry(name).map(|(_, node)| node);
        let probe = self.mistakes.probes && outer.is_none();
        let own = own.or(probe.then_some(&ABSENT));
        let own = own.map(|node| self.child(PathSegment::Name(name), node));
        outer.into_iter().chain(own)
    }

    /// Returns a field that an object within this one requests.
    fn lend<'s>(&'s self, name: &'static str, inner: &'s ValuePath<'s>) -> Option<Field<'s>> {
        let mut lent = self.lent.borrow_mut();
        if !lent.contains(&name) {
            lent.push(name);
        }
        let (name, node) = self.entry(name)?;
        let mut field = self.child(PathSegment::Name(name), node);
        field.at.recorded_below = Some(inner);
        Some(field)
    }

    fn entry(&self, name: &str) -> Option<&(String, Node)> {
        self.entries.iter().find(|(known, _)| known == name)
    }

    fn child<'s>(&'s self, segment: PathSegment<'s>, node: &'s Node) -> Field<'s> {
        let at = ValuePath {
            parent: Some(&self.at),
            segment,
            recorded_below: None,
        };
        Field {
            node,
            at,
            mistakes: self.mistakes,
        }
    }

    /// Records an unreadable field (400).
    fn fail_field(&self, name: &str, offset: usize, code: &'static str, detail: impl Into<String>) {
        let mut pointer = self.at.pointer();
        push_segment(&mut pointer, name);
        let mistake = Mistake::unreadable(pointer, offset, code, detail);
        self.mistakes.note(mistake);
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
        self.entry(name).is_some()
    }

    fn note(&self, name: &str, change: impl FnOnce(&mut AcceptedField)) {
        if let Some(recorded) = &self.mistakes.accepted {
            change(recorded.borrow_mut().note_field(self.path_of(name)));
        }
    }

    fn path_of(&self, name: &str) -> String {
        let path = self.at.path();
        let dot = if path.is_empty() { "" } else { "." };
        format!("{path}{dot}{name}")
    }

    /// Records as unknown (400) every field that was not requested.
    pub(super) fn record_unknown_fields(&self) {
        let mut known = self.known.borrow_mut();
        for name in &*known {
            let name = if *name == ANY_NAME { "NAME" } else { name };
            self.note(name, |_| {});
        }
        known.extend(self.lent.borrow().iter());
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
            self.fail_field(name, node.offset, UNKNOWN_FIELD, detail);
        }
    }
}

/// The value of a field that is read although it is absent ([`Mistakes::recording_settings`]).
static ABSENT: Node = Node {
    value: Value::Null,
    offset: 0,
};

/// Returns the first paragraph of a doc comment.
fn first_paragraph(lines: &[&str]) -> String {
    let lines = lines.iter().map(|line| line.trim());
    let lines: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    lines.join(" ")
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
    left.len().abs_diff(right.len()) <= 2
        && left.len() >= 4
        && strsim::levenshtein(left, right) <= 2
}
