//! The JSON schema of the configuration, for editors.

/// The schema that `postern-proxy schema` prints.
pub const SCHEMA: &str = include_str!("../../proxy.schema.json");

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::SCHEMA;

    /// Returns whether the schema contains every key of `value`. Alternatives are tried in order.
    fn knows(root: &Value, schema: &Value, value: &Value) -> bool {
        let schema = match schema["$ref"].as_str() {
            Some(name) => root
                .pointer(name.trim_start_matches('#'))
                .expect("a definition"),
            None => schema,
        };
        if let Some(alternatives) = schema["anyOf"].as_array() {
            return alternatives
                .iter()
                .any(|alternative| knows(root, alternative, value));
        }
        match value {
            Value::Object(entries) => entries.iter().all(|(name, value)| {
                let known = schema["properties"]
                    .get(name)
                    .or_else(|| schema.get("additionalProperties"));
                schema["type"] == "object"
                    && known.is_none_or(|known| {
                        *known != Value::Bool(false) && knows(root, known, value)
                    })
            }),
            Value::Array(items) => {
                schema["type"] == "array"
                    && items.iter().all(|item| knows(root, &schema["items"], item))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                schema["type"] != "object" && schema["type"] != "array"
            }
        }
    }

    fn check(text: &str) -> bool {
        let schema: Value = serde_json::from_str(SCHEMA).expect("JSON");
        let mistakes = postern_common::decode::Mistakes::default();
        let root = postern_common::decode::toml(text, &mistakes).expect("TOML");
        knows(&schema, &schema, &root.to_json())
    }

    #[test]
    fn schema_contains_all_configuration_keys() {
        assert!(check(include_str!("../../../conf/proxy.toml")));
        assert!(check(include_str!("../tests/everything.toml")));
        assert!(!check("[limits]\nhead_timeut = '1s'"));
        assert!(!check("[[route]]\npolicy = { user = 'any' }"));
    }
}
