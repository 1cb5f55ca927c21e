//! The mistakes found in a text, with their locations.

use std::cell::RefCell;

use super::accepted::AcceptedFields;
use super::path::ValuePath;
use super::{Field, Node, Object};

/// A mistake and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// JSON pointer (RFC 6901) to the value, or to the place of a missing one.
    pub pointer: String,
    /// Byte offset in the source text; 0 for JSON.
    pub offset: usize,
    /// Whether the text is unreadable (400) or unacceptable (422).
    pub weight: Weight,
    /// Stable name of the kind of mistake.
    pub code: &'static str,
    /// One sentence that explains the mistake, never with the value of a secret.
    pub detail: String,
    /// Offset of the value that this one contradicts.
    pub related: Option<usize>,
}

/// Severity of a mistake, which decides between 400 and 422.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// The value is readable but not acceptable.
    Unacceptable,
    /// The text is unreadable: a syntax error, or a missing, unknown or mistyped field.
    Unreadable,
}

impl Mistake {
    /// Creates the mistake of an unreadable value.
    pub fn unreadable(
        pointer: String,
        offset: usize,
        code: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            pointer,
            offset,
            weight: Weight::Unreadable,
            code,
            detail: detail.into(),
            related: None,
        }
    }
}

const MAX_MISTAKES: usize = 100;

/// The code of a field that no reader knows.
pub(super) const UNKNOWN_FIELD: &str = "unknown_field";

/// Maximum bytes of a recorded pointer; longer ones are truncated.
const MAX_POINTER_BYTES: usize = 256;

/// The mistakes recorded while a text is read.
#[derive(Debug, Default)]
pub struct Mistakes {
    noted: RefCell<Vec<Mistake>>,
    /// What readers accept, if it is recorded.
    pub(super) accepted: Option<RefCell<AcceptedFields>>,
    /// Whether an absent field is read as `null`, to record what its reader accepts.
    pub(super) probes: bool,
}

impl Mistakes {
    /// Creates a collector that also records what the readers accept, for schemas and for tests that
    /// compare fields with a document.
    #[must_use]
    pub fn recording_fields() -> Self {
        Self {
            accepted: Some(RefCell::default()),
            ..Self::default()
        }
    }

    /// Creates a collector as [`Mistakes::recording_fields`] does, which also records what readers
    /// accept of fields that the text does not set. The only mistakes are unknown fields.
    #[must_use]
    pub fn recording_settings() -> Self {
        Self {
            probes: true,
            ..Self::recording_fields()
        }
    }

    /// Returns what readers have accepted so far.
    #[must_use]
    pub fn accepted_fields(&self) -> AcceptedFields {
        let recorded = self.accepted.as_ref();
        recorded.map(|all| all.borrow().clone()).unwrap_or_default()
    }

    /// Records a mistake, unless [`Mistakes::is_full`]. Long pointers are truncated. The same mistake
    /// of a value that several objects of a file have is recorded once.
    pub fn note(&self, mut mistake: Mistake) {
        if self.is_full() || (self.probes && mistake.code != UNKNOWN_FIELD) {
            return;
        }
        if mistake.pointer.len() > MAX_POINTER_BYTES {
            let end = (0..=MAX_POINTER_BYTES)
                .rev()
                .find(|end| mistake.pointer.is_char_boundary(*end));
            mistake.pointer.truncate(end.unwrap_or(0));
        }
        let mut noted = self.noted.borrow_mut();
        let is_in_file = mistake.offset > 0;
        if !(is_in_file && noted.contains(&mistake)) {
            noted.push(mistake);
        }
    }

    /// Returns whether further mistakes are dropped. The bound keeps the memory for mistakes below
    /// the size of the text.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.noted.borrow().len() >= MAX_MISTAKES
    }

    /// Returns whether no mistake has been recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.noted.borrow().is_empty()
    }

    /// Reads the root as an object. Fields that `read` does not take are recorded as unknown.
    pub fn object<T>(&self, root: &Node, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Option<T> {
        self.field(root).object(read)
    }

    /// Returns the root as a field, for texts whose root is not an object.
    #[must_use]
    pub fn field<'a>(&'a self, root: &'a Node) -> Field<'a> {
        Field {
            node: root,
            at: ValuePath::root(),
            mistakes: self,
        }
    }

    /// Returns the value if it was read and no mistake was recorded.
    pub fn finish<T>(self, value: Option<T>) -> Result<T, Vec<Mistake>> {
        let mut all = self.noted.into_inner();
        match value {
            Some(value) if all.is_empty() => Ok(value),
            _ => {
                all.sort_by_key(|mistake| mistake.offset);
                Err(all)
            }
        }
    }
}
