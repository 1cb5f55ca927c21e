//! What a person tells about themselves at registration, passed on to the actor service.

use postern_common::decode::{Field, Value as Node};
use serde_json::{Map, Value};

/// Names in a profile at most, and bytes of one text: a profile is a card, not a store.
const MOST_FIELDS: usize = 32;
const MOST_BYTES: usize = 1024;

/// Reads `profile`: `firstName`, `lastName` and `phone` are checked; other names hold a text,
/// number or flag.
pub(crate) fn read(field: Field<'_>) -> Option<Map<String, Value>> {
    let entries = field.object(|profile| {
        let mut known = Map::new();
        let mut keep = |name: &str, text: Option<String>| {
            known.extend(text.map(|text| (name.to_owned(), Value::String(text))));
        };
        keep(
            "firstName",
            profile.optional("firstName", |field| field.text(1..=100)),
        );
        keep(
            "lastName",
            profile.optional("lastName", |field| field.text(1..=100)),
        );
        keep("phone", profile.optional("phone", phone));
        known.extend(profile.entries(other));
        Some(known)
    })?;
    if entries.len() > MOST_FIELDS {
        return field.fail(
            "too_many_fields",
            format!("must have at most {MOST_FIELDS} fields"),
        );
    }
    Some(entries)
}

/// E.164: `+` and 7 to 15 digits, because a text message must reach it.
fn phone(field: Field<'_>) -> Option<String> {
    let text = field.string()?;
    let digits = text.strip_prefix('+').unwrap_or_default();
    if (7..=15).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(text.to_owned());
    }
    field.reject(
        "invalid_format",
        "must be an international number such as +15551234567",
    )
}

fn other(name: &str, field: Field<'_>) -> Option<(String, Value)> {
    if name.len() > 64 {
        return field.fail("invalid_length", "the name must be at most 64 bytes long");
    }
    // Whoever is asked for the address of a person believes these: they are for the actor service
    // to say.
    if matches!(name, "emailVerified" | "phoneVerified" | "deviceVerified") {
        return field.reject("not_allowed", "is not for the person to say");
    }
    match field.value() {
        Node::String(_) => Some((name.to_owned(), Value::String(field.text(0..=MOST_BYTES)?))),
        Node::Bool(_) | Node::Integer(_) | Node::Float(_) => {
            Some((name.to_owned(), field.node().to_json()))
        }
        Node::Null | Node::Array(_) | Node::Object(_) => field.fail(
            "invalid_type",
            format!("must be a string, not {}", field.value().kind()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_common::decode::{Mistakes, json};

    fn profile(text: &str) -> Result<Map<String, Value>, Vec<&'static str>> {
        let mistakes = Mistakes::default();
        let root = json(text.as_bytes(), &mistakes).expect("JSON");
        let value = read(mistakes.field(&root));
        mistakes
            .finish(value)
            .map_err(|all| all.into_iter().map(|mistake| mistake.code).collect())
    }

    #[test]
    fn known_names_are_checked_and_others_are_kept() {
        let read =
            profile(r#"{"firstName":"Ada","phone":"+15551234567","city":"London","age":36}"#);
        let read = read.expect("a profile");
        assert_eq!(
            (&read["firstName"], &read["city"], &read["age"]),
            (&"Ada".into(), &"London".into(), &36.into())
        );
        assert_eq!(profile(r#"{"firstName":7}"#), Err(vec!["invalid_type"]));
        assert_eq!(profile(r#"{"phone":"555"}"#), Err(vec!["invalid_format"]));
        assert_eq!(profile(r#"{"x":{}}"#), Err(vec!["invalid_type"]));
        assert_eq!(profile("[]"), Err(vec!["invalid_type"]));
        let proven =
            profile(r#"{"emailVerified":true,"phoneVerified":true,"deviceVerified":true}"#);
        assert_eq!(
            proven,
            Err(vec!["not_allowed", "not_allowed", "not_allowed"])
        );
    }
}
