use std::cell::RefCell;
use std::collections::BTreeSet;

use super::field::{At, Object};
use super::{Field, Node};

/// One thing that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// JSON pointer (RFC 6901) to the value, or to the place where a missing one belongs.
    pub pointer: String,
    /// Byte offset in the source text; 0 for JSON.
    pub offset: usize,
    /// Whether the text cannot be read (400) or reads and is not acceptable (422).
    pub weight: Weight,
    /// Stable name, for programs.
    pub code: &'static str,
    /// One sentence, for people; never the value of a secret.
    pub detail: String,
}

/// How wrong it is: the contract's difference between 400 and 422.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weight {
    /// It can be read and is not acceptable.
    Unacceptable,
    /// It cannot be read: syntax, a missing, unknown or mistyped field.
    Unreadable,
}

/// So many mistakes are told at once; nobody reads more.
const MOST: usize = 100;

/// The longest pointer that is told.
const POINTER_BYTES: usize = 256;

/// Collects mistakes while a value is read.
#[derive(Debug, Default)]
pub struct Mistakes {
    noted: RefCell<Vec<Mistake>>,
    /// The names of the fields that readers know, if they are recorded.
    pub(super) known_fields: Option<RefCell<BTreeSet<String>>>,
}

impl Mistakes {
    /// Creates a collector that also records which fields the readers know, for tests that compare
    /// them with a document.
    #[must_use]
    pub fn recording_fields() -> Self {
        Self {
            known_fields: Some(RefCell::default()),
            ..Self::default()
        }
    }

    /// Returns the fields that readers have asked for, as paths: `listen[].tls.key` for a list of
    /// objects, `upstream.NAME.addresses` where the name is chosen by the writer of the text.
    #[must_use]
    pub fn known_fields(&self) -> BTreeSet<String> {
        let recorded = self.known_fields.as_ref();
        recorded
            .map(RefCell::borrow)
            .as_deref()
            .cloned()
            .unwrap_or_default()
    }

    /// Notes one, as long as there is room; a pointer longer than a reader needs is cut.
    pub fn note(&self, mut mistake: Mistake) {
        if self.is_full() {
            return;
        }
        if mistake.pointer.len() > POINTER_BYTES {
            let end = (0..=POINTER_BYTES)
                .rev()
                .find(|end| mistake.pointer.is_char_boundary(*end));
            mistake.pointer.truncate(end.unwrap_or(0));
        }
        self.noted.borrow_mut().push(mistake);
    }

    /// Whether no more are noted: a text of nothing but mistakes must not cost more memory than it
    /// is long.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.noted.borrow().len() >= MOST
    }

    /// Whether none was noted yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.noted.borrow().is_empty()
    }

    /// Reads the root as an object; whatever `read` does not take is an unknown field.
    pub fn object<T>(&self, root: &Node, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Option<T> {
        self.field(root).object(read)
    }

    /// The root as a field, for texts whose root is not an object.
    #[must_use]
    pub fn field<'a>(&'a self, root: &'a Node) -> Field<'a> {
        Field {
            node: root,
            at: At::root(),
            mistakes: self,
        }
    }

    /// The value, if it was read and nothing is wrong with it.
    ///
    /// # Errors
    /// Every mistake, in the order of the text where that is known.
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
