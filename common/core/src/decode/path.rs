//! The path from the root of a text to a value.

use super::json::push_segment;

/// The path of a value from the root. It is formatted only for a mistake.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValuePath<'a> {
    pub(super) parent: Option<&'a ValuePath<'a>>,
    pub(super) segment: PathSegment<'a>,
    /// The parent in the record of accepted fields, if it is another one.
    pub(super) recorded_below: Option<&'a ValuePath<'a>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PathSegment<'a> {
    Root,
    Name(&'a str),
    /// A user-defined key, such as NAME in `[upstream.NAME]`.
    UserKey(&'a str),
    Index(usize),
}

impl<'a> ValuePath<'a> {
    pub(super) fn root() -> Self {
        Self {
            parent: None,
            segment: PathSegment::Root,
            recorded_below: None,
        }
    }

    pub(super) fn pointer(&self) -> String {
        let mut pointer = self.parent.map(ValuePath::pointer).unwrap_or_default();
        match self.segment {
            PathSegment::Root => {}
            PathSegment::Name(name) | PathSegment::UserKey(name) => {
                push_segment(&mut pointer, name);
            }
            PathSegment::Index(index) => push_segment(&mut pointer, &index.to_string()),
        }
        pointer
    }

    /// Returns the path in records of accepted fields: `listen[].tls.key` for a list of objects,
    /// `upstream.NAME.addresses` where the key is user-defined.
    pub(super) fn path(&self) -> String {
        let parent = self.recorded_below.or(self.parent);
        let parent = parent.map(ValuePath::path).unwrap_or_default();
        let dot = if parent.is_empty() { "" } else { "." };
        match self.segment {
            PathSegment::Root => parent,
            PathSegment::Name(name) => format!("{parent}{dot}{name}"),
            PathSegment::UserKey(_) => format!("{parent}{dot}NAME"),
            PathSegment::Index(_) => format!("{parent}[]"),
        }
    }
}
