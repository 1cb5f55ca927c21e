//! `request_headers` and `response_headers`: changes of header fields.

use std::sync::Arc;

use http::HeaderName;
use postern_core::decode::{Field, Object};
use postern_core::settings;
use postern_http::message::headers;

use crate::config::{PathPattern, Template};

settings! {
    /// [Changes](../manual/gateway.md#header-changes) of the header fields of a message.
    ///
    /// In this order: fields are removed, set, and added. `path` is the path of the route; `None` in
    /// `[defaults]`.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct HeaderChanges(table, path: Option<&PathPattern>) {
        /// Names of fields to remove.
        pub remove: Vec<HeaderName> = []
            => |field| field.array(|item| changeable_name(&item.text(1..=256)?, item)),
        /// Fields that replace those of the same name. A value may have variables such as
        /// `{request_id}`; without one the field is removed.
        pub set: Vec<(HeaderName, Template)> = { Some(Vec::new()) } ("none")
            => |field| field.object(|fields| Some(read_fields(fields, path))),
        /// Fields that are added to those of the same name; without its variable none is added.
        pub add: Vec<(HeaderName, Template)> = { Some(Vec::new()) } ("none")
            => |field| field.object(|fields| Some(read_fields(fields, path))),
    }
}

settings! {
    fn read_inherit(table) -> bool {
        /// Add the changes that the group or `defaults` makes to other fields.
        inherit = false => |field| field.boolean(),
    } => inherit
}

impl HeaderChanges {
    /// Reads the changes, and with `inherit = true` adds `inherited`. Returns `Some(None)` if there is
    /// nothing to change.
    pub(super) fn read_within(
        table: &Object<'_>,
        inherited: Option<&Arc<Self>>,
        path: Option<&PathPattern>,
    ) -> Option<Option<Arc<Self>>> {
        let mut changes = Self::read(table, path)?;
        if path.is_some()
            && read_inherit(table)?
            && let Some(inherited) = inherited
        {
            changes.inherit(inherited);
        }
        Some((changes != Self::default()).then(|| Arc::new(changes)))
    }

    fn inherit(&mut self, inherited: &Self) {
        let own = self.set.iter().chain(&self.add).map(|(name, _)| name);
        let own: Vec<HeaderName> = own.chain(&self.remove).cloned().collect();
        let is_own = |name: &HeaderName| {
            own.iter()
                .any(|own| headers::is_same_folded(own.as_str(), name.as_str()))
        };
        let others = |fields: &[(HeaderName, Template)]| {
            let others = fields.iter().filter(|(name, _)| !is_own(name));
            others.cloned().collect::<Vec<_>>()
        };
        self.set.extend(others(&inherited.set));
        self.add.extend(others(&inherited.add));
        let removed = inherited.remove.iter().filter(|name| !is_own(name));
        self.remove.extend(removed.cloned());
    }
}

/// Reads `{ NAME = "value" }`. Two spellings of a name are a mistake.
fn read_fields(section: &Object<'_>, path: Option<&PathPattern>) -> Vec<(HeaderName, Template)> {
    let mut names: Vec<HeaderName> = Vec::new();
    section.entries(|name, field| {
        let name = changeable_name(name, field)?;
        let is_same = |known: &HeaderName| headers::is_same_folded(known.as_str(), name.as_str());
        if names.iter().any(is_same) {
            return field.fail("duplicate_name", "has the name of another field");
        }
        names.push(name.clone());
        Some((name, Template::read(field, path)?))
    })
}

/// Parses the name of a field that the configuration may change: not one that the gateway sets
/// itself, and none of the framing or of the connection.
pub(super) fn changeable_name(name: &str, field: Field<'_>) -> Option<HeaderName> {
    let Ok(parsed) = HeaderName::from_bytes(name.as_bytes()) else {
        return field.fail("invalid_format", "is not the name of a header");
    };
    let folded = headers::folded(parsed.as_str());
    if folded == "host" {
        let detail = "is not changed here: upstream.NAME.host sets it";
        return field.fail("invalid_choice", detail);
    }
    let is_own = headers::is_filled(&folded)
        || headers::is_hop_by_hop(&folded)
        || matches!(folded.as_str(), "content-length" | "expect");
    if is_own {
        return field.fail(
            "invalid_choice",
            "is a header that the configuration must not change: the gateway controls it",
        );
    }
    Some(parsed)
}
