//! What readers accept, recorded while they read: the source of JSON schemas.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

/// What readers accept at each path. Complete if the text that was read sets every field and uses
/// every alternative form of a value.
#[derive(Clone, Debug, Default)]
pub struct AcceptedFields(pub(crate) BTreeMap<String, AcceptedField>);

/// What readers accept at one path.
#[derive(Clone, Debug, Default)]
pub(crate) struct AcceptedField {
    /// How often a reader required the field.
    pub(crate) required: usize,
    /// How often an object was read at the path. A field is required if each of them required it:
    /// the objects of a list may be of different kinds.
    pub(crate) objects: usize,
    /// The accepted forms, as JSON schemas.
    pub(crate) forms: Vec<Json>,
}

impl AcceptedFields {
    /// Records that readers know a field.
    pub(super) fn note_field(&mut self, path: String) {
        self.0.entry(path).or_default();
    }

    /// Records that a field is required.
    pub(super) fn note_required(&mut self, path: String) {
        self.0.entry(path).or_default().required += 1;
    }

    /// Records an accepted form of the value at a path. Enumerations are joined.
    pub(super) fn note_form(&mut self, path: String, form: Json) {
        let field = self.0.entry(path).or_default();
        field.objects += usize::from(form["type"] == "object");
        let forms = &mut field.forms;
        if forms.contains(&form) {
            return;
        }
        let words = form["enum"].as_array().cloned().unwrap_or_default();
        let joined = forms
            .iter_mut()
            .find_map(|known| match known.get_mut("enum") {
                Some(Json::Array(known)) if !words.is_empty() => Some(known),
                Some(_) | None => None,
            });
        match joined {
            Some(known) => {
                for word in words {
                    if !known.contains(&word) {
                        known.push(word);
                    }
                }
            }
            None => forms.push(form),
        }
    }

    /// Returns the paths of all fields: `listen[].tls.key` for a list of objects,
    /// `upstream.NAME.addresses` where the key is user-defined.
    pub(super) fn paths(&self) -> BTreeSet<String> {
        let is_field = |path: &&String| !path.is_empty() && !path.ends_with("[]");
        self.0.keys().filter(is_field).cloned().collect()
    }
}
