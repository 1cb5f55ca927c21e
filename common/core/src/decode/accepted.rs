//! What readers accept, recorded while they read: the source of JSON schemas.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::Value;

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
    /// The name of the type, where the forms do not say it ([`Field::typed`](super::Field::typed)).
    pub(crate) type_name: Option<&'static str>,
    /// The position among all fields, in the order in which readers ask for them.
    pub(crate) position: usize,
    /// What the declaration of the setting says.
    pub(crate) declared: Option<Declaration>,
}

/// What the declaration of a setting says besides its type.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Declaration {
    /// The declaring struct or function.
    pub(crate) owner: &'static str,
    /// The first paragraph of the doc comment.
    pub(crate) meaning: String,
    /// The default in words; empty if there is none, or if it is a value.
    pub(crate) default_words: &'static str,
    pub(crate) default: Option<Value>,
}

impl AcceptedFields {
    /// Records that readers know a field, and returns its record.
    pub(super) fn note_field(&mut self, path: String) -> &mut AcceptedField {
        let position = self.0.len();
        self.0.entry(path).or_insert_with(|| AcceptedField {
            position,
            ..AcceptedField::default()
        })
    }

    /// Records the declaration of a field. If it has several, as the keys of the kinds of a provider,
    /// each adds its doc comment.
    pub(super) fn note_declaration(&mut self, path: String, declaration: Declaration) {
        let declared = &mut self.note_field(path).declared;
        match declared {
            Some(known) if !known.meaning.contains(&declaration.meaning) => {
                known.meaning.push(' ');
                known.meaning.push_str(&declaration.meaning);
            }
            Some(_) => {}
            None => *declared = Some(declaration),
        }
    }

    /// Records the doc comment of an object, unless its field has one.
    pub(super) fn note_table(&mut self, path: String, meaning: String) {
        let declared = self.note_field(path).declared.get_or_insert_default();
        if declared.meaning.is_empty() {
            declared.meaning = meaning;
        }
    }

    /// Records an accepted form of the value at a path. Enumerations are joined.
    pub(super) fn note_form(&mut self, path: String, form: Json) {
        let field = self.note_field(path);
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
}
