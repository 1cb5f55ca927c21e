//! JSON schemas of what readers accept.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use crate::decode::AcceptedFields;

/// Documentation of a field.
#[derive(Clone, Debug)]
pub(super) struct FieldDescription {
    /// What the field means.
    pub(super) meaning: String,
    /// The default as the documentation writes it, if it is a literal value.
    pub(super) default: Option<String>,
}

impl AcceptedFields {
    /// Returns the JSON schema (draft 2020-12) of the text.
    pub(super) fn to_schema(
        &self,
        title: &str,
        descriptions: &BTreeMap<String, FieldDescription>,
    ) -> Json {
        let mut schema = self.value("", descriptions);
        schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
        schema["title"] = json!(title);
        schema
    }

    fn value(&self, path: &str, descriptions: &BTreeMap<String, FieldDescription>) -> Json {
        let forms = self.0.get(path).map(|field| field.forms.as_slice());
        let mut forms: Vec<Json> = forms.unwrap_or_default().to_vec();
        for form in &mut forms {
            match form["type"].as_str() {
                Some("object") => self.add_fields(path, form, descriptions),
                Some("array") => form["items"] = self.value(&format!("{path}[]"), descriptions),
                Some(_) | None => {}
            }
        }
        let mut schema = match forms.len() {
            0 => json!({}),
            1 => forms.remove(0),
            _ => json!({ "anyOf": forms }),
        };
        if let Some(description) = descriptions.get(path) {
            schema["description"] = json!(description.meaning);
            let default = description.default.as_deref();
            // The default may be the value of another key.
            let default = default.filter(|text| !self.0.contains_key(*text));
            if let Some(default) = default.and_then(|text| literal(text, &schema)) {
                schema["default"] = default;
            }
        }
        schema
    }

    /// Adds the fields of an object to its schema.
    fn add_fields(
        &self,
        path: &str,
        schema: &mut Json,
        descriptions: &BTreeMap<String, FieldDescription>,
    ) {
        let prefix = format!("{path}.");
        let prefix = prefix.trim_start_matches('.');
        let objects = self.0.get(path).map_or(0, |field| field.objects);
        let (mut properties, mut required) = (Map::new(), Vec::new());
        schema["additionalProperties"] = json!(false);
        for (child, field) in &self.0 {
            let name = child.strip_prefix(prefix).unwrap_or_default();
            if name.is_empty() || name.contains(['.', '[']) {
                continue;
            }
            let value = self.value(child, descriptions);
            if name == "NAME" {
                schema["additionalProperties"] = value;
                continue;
            }
            properties.insert(name.to_owned(), value);
            if field.required > 0 && field.required >= objects {
                required.push(json!(name));
            }
        }
        if !properties.is_empty() {
            schema["properties"] = Json::Object(properties);
        }
        if !required.is_empty() {
            schema["required"] = Json::Array(required);
        }
    }
}

/// Returns a default as a value of the schema's type; `None` if it is of another type.
fn literal(text: &str, schema: &Json) -> Option<Json> {
    let parsed = serde_json::from_str(text).ok();
    match schema["type"].as_str() {
        Some("boolean") => parsed.filter(Json::is_boolean),
        Some("integer" | "number") => parsed.filter(Json::is_number),
        Some("object" | "array") => None,
        Some(_) | None => Some(json!(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Mistakes, Object, toml};

    /// Reads a text that uses every form, and returns the schema.
    fn schema() -> Json {
        let text = "a = 1\nb = 'any'\nc = { x = true }\n[[d]]\ne = ['f']\n[[d]]\ne = 'all'\n[[d]]\ng = true\n";
        let mistakes = Mistakes::recording_fields();
        let root = toml(text, &mistakes).expect("TOML");
        let read = |root: &Object<'_>| {
            root.required("a", |field| field.integer(1..=9));
            root.optional("b", |field| match field.is("any") {
                true => Some(true),
                false => field.boolean(),
            });
            root.section("c", |c| Some(c.entries(|_, field| field.boolean())));
            root.list("d", |field| {
                field.object(|d| {
                    if !d.has("e") {
                        return d.required("g", |field| field.boolean().map(drop));
                    }
                    d.required("e", |field| {
                        match field.if_string(|| json!({"type": "string"})) {
                            Some(_) => Some(()),
                            None => field
                                .array(|item| item.one_of(&[("f", ()), ("g", ())]))
                                .map(drop),
                        }
                    })
                })
            });
            Some(())
        };
        mistakes.object(&root, read).expect("read");
        let about = FieldDescription {
            meaning: "a number".to_owned(),
            default: Some("3".to_owned()),
        };
        let descriptions = [("a".to_owned(), about)].into_iter().collect();
        let accepted = mistakes.accepted_fields();
        accepted.to_schema("example", &descriptions)
    }

    #[test]
    fn schema_has_types_ranges_and_choices_of_the_readers() {
        let expected = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "example",
            "type": "object",
            "additionalProperties": false,
            "required": ["a"],
            "properties": {
                "a": {"type": "integer", "minimum": 1, "maximum": 9, "description": "a number", "default": 3},
                "b": {"anyOf": [{"enum": ["any"]}]},
                "c": {"type": "object", "additionalProperties": {"type": "boolean"}},
                "d": {"type": "array", "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "properties": {"e": {"anyOf": [
                        {"type": "string"},
                        {"type": "array", "items": {"enum": ["f", "g"]}}
                    ]}, "g": {"type": "boolean"}}
                }}
            }
        });
        let mut found = schema();
        // The text does not use the boolean form of `b`.
        found["properties"]["b"] = json!({"anyOf": [found["properties"]["b"]]});
        assert_eq!(found, expected);
    }
}
