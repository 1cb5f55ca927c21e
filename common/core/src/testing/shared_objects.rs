//! Objects that occur several times in a JSON schema.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

/// By the text of an object: how often it occurs, and the path of its first place.
type Occurrences = BTreeMap<String, (usize, String)>;

/// Moves objects that occur several times to `$defs`, and refers to them, so that each key is
/// defined once. The descriptions of the places stay where they are.
pub(super) fn share(schema: &mut Json) {
    let mut found = Occurrences::new();
    count(schema, "", &mut found);
    let mut shared = Map::new();
    replace(schema, &found, &mut shared);
    if !shared.is_empty() {
        schema["$defs"] = Json::Object(shared);
    }
}

/// Returns the text of an object without its description; `None` if it has no properties.
fn text_of(schema: &Json) -> Option<String> {
    schema.get("properties")?;
    let mut schema = schema.clone();
    schema.as_object_mut()?.remove("description");
    Some(schema.to_string())
}

fn count(schema: &Json, path: &str, found: &mut Occurrences) {
    if let Some(text) = text_of(schema) {
        let entry = found.entry(text).or_insert_with(|| (0, path.to_owned()));
        entry.0 += 1;
    }
    match schema {
        Json::Object(members) => {
            for (name, member) in members {
                let is_word = ["properties", "items", "anyOf", "additionalProperties"];
                let path = match is_word.contains(&name.as_str()) {
                    true => path.to_owned(),
                    false => format!("{path}.{name}").trim_start_matches('.').to_owned(),
                };
                count(member, &path, found);
            }
        }
        Json::Array(items) => items.iter().for_each(|item| count(item, path, found)),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
    }
}

fn replace(schema: &mut Json, found: &Occurrences, shared: &mut Map<String, Json>) {
    let known = text_of(schema).and_then(|text| found.get(&text));
    let name = known.filter(|(times, _)| *times > 1).map(|(_, path)| path);
    match schema {
        Json::Object(members) => members
            .values_mut()
            .for_each(|member| replace(member, found, shared)),
        Json::Array(items) => items
            .iter_mut()
            .for_each(|item| replace(item, found, shared)),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
    }
    let Some(name) = name else { return };
    let mut reference = json!({ "$ref": format!("#/$defs/{name}") });
    let description = schema
        .as_object_mut()
        .and_then(|it| it.remove("description"));
    if let Some(description) = description {
        reference["description"] = description;
    }
    shared.insert(name.clone(), std::mem::replace(schema, reference));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_objects_are_defined_once() {
        let object = |meaning: &str| json!({ "type": "object", "description": meaning, "properties": { "x": { "type": "integer" } } });
        let mut schema = json!({ "properties": {
            "a": object("one"),
            "b": { "type": "array", "items": object("other") },
            "c": { "properties": { "y": {} } },
        } });
        share(&mut schema);
        let expected = json!({
            "$defs": { "a": { "type": "object", "properties": { "x": { "type": "integer" } } } },
            "properties": {
                "a": { "$ref": "#/$defs/a", "description": "one" },
                "b": { "type": "array", "items": { "$ref": "#/$defs/a", "description": "other" } },
                "c": { "properties": { "y": {} } },
            }
        });
        assert_eq!(schema, expected);
    }
}
