//! The `profile` of a registration, which is passed on to the actor service.

use postern_core::decode::{Field, Value as Node};
use serde_json::{Map, Value};

const MAX_PROFILE_FIELDS: usize = 32;
const MAX_STRING_CHARACTERS: usize = 1024;
const MAX_NAME_CHARACTERS: usize = 64;

/// Reads a profile. `firstName`, `lastName` and `phone` are validated; other fields contain a
/// string, number or boolean.
pub(super) fn profile(field: Field<'_>) -> Option<Map<String, Value>> {
    let entries = field.object(|profile| {
        let mut fields = Map::new();
        let mut insert = |name: &str, text: Option<String>| {
            fields.extend(text.map(|text| (name.to_owned(), Value::String(text))));
        };
        for name in ["firstName", "lastName"] {
            insert(name, profile.optional(name, |field| field.text(1..=100)));
        }
        insert("phone", profile.optional("phone", phone));
        fields.extend(profile.entries(other_field));
        Some(fields)
    })?;
    if entries.len() > MAX_PROFILE_FIELDS {
        return field.fail(
            "too_many_fields",
            format!("must have at most {MAX_PROFILE_FIELDS} fields"),
        );
    }
    Some(entries)
}

/// Reads a telephone number in E.164 format: `+` and 7 to 15 digits.
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

fn other_field(name: &str, field: Field<'_>) -> Option<(String, Value)> {
    if name.chars().count() > MAX_NAME_CHARACTERS {
        let detail = "the name must be at most 64 characters long";
        return field.fail("invalid_length", detail);
    }
    // Set by this and the actor service; readers of the profile may compare names in any spelling.
    let letters = name.chars().filter(|letter| letter.is_alphanumeric());
    let folded: String = letters.flat_map(char::to_lowercase).collect();
    let fact = folded.strip_suffix("verified").unwrap_or_default();
    if matches!(fact, "email" | "phone" | "device")
        || matches!(&*folded, "email" | "actorid" | "createdat")
    {
        return field.reject("not_allowed", "cannot be set by a client");
    }
    match field.value() {
        Node::String(_) => Some((
            name.to_owned(),
            Value::String(field.text(0..=MAX_STRING_CHARACTERS)?),
        )),
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
    use postern_core::decode::{Mistakes, json};

    fn read(text: &str) -> Result<Map<String, Value>, Vec<&'static str>> {
        let mistakes = Mistakes::default();
        let root = json(text.as_bytes(), &mistakes).expect("JSON");
        let value = profile(mistakes.field(&root));
        mistakes
            .finish(value)
            .map_err(|all| all.into_iter().map(|mistake| mistake.code).collect())
    }

    #[test]
    fn known_fields_are_validated_and_others_kept() {
        let fields = read(r#"{"firstName":"Ada","phone":"+15551234567","city":"London","age":36}"#);
        let fields = fields.expect("a profile");
        assert_eq!(
            (&fields["firstName"], &fields["city"], &fields["age"]),
            (&"Ada".into(), &"London".into(), &36.into())
        );
        assert_eq!(read(r#"{"firstName":7}"#), Err(vec!["invalid_type"]));
        assert_eq!(read(r#"{"phone":"555"}"#), Err(vec!["invalid_format"]));
        assert_eq!(read(r#"{"x":{}}"#), Err(vec!["invalid_type"]));
        assert_eq!(read("[]"), Err(vec!["invalid_type"]));
        let long = |length| format!(r#"{{"city":"{}"}}"#, "ö".repeat(length));
        assert!(read(&long(1024)).is_ok());
        assert_eq!(read(&long(1025)), Err(vec!["invalid_length"]));
    }

    #[test]
    fn reserved_name_is_refused_in_every_spelling() {
        for name in [
            "emailVerified",
            "EmailVerified",
            "PHONEVERIFIED",
            "email_verified",
            "device-verified",
            "phone.Verified",
            "Email",
            "actor_id",
            "CREATED_AT",
            "email verified",
            "emailVerified ",
            "\u{200b}email",
        ] {
            let body = format!(r#"{{"{name}":true}}"#);
            assert_eq!(read(&body), Err(vec!["not_allowed"]), "{name}");
        }
        assert!(read(r#"{"emailVerifiedBy":"x","verified":true}"#).is_ok());
    }
}
