use postern_common::decode::{Field, Object, Value};

use super::texts;
use crate::policy::{Policy, Protected, ServiceRule, UserRule};

/// `"public"`, or `{ users = …, services = …, audit = … }` with at least one of the first two.
pub(super) fn read(field: Field<'_>) -> Option<Policy> {
    match field.value() {
        Value::String(text) if text == "public" => Some(Policy::Public),
        Value::Object(_) => field.object(|policy| {
            let users = policy.optional("users", read_users);
            let services = policy.optional("services", read_services);
            let audit = policy.or("audit", false, |field| field.boolean());
            if !policy.has("users") && !policy.has("services") {
                policy.fail(
                    "missing_field",
                    "must let in users or services, or be \"public\"",
                );
            }
            Some(Policy::Protected(Protected {
                users,
                services,
                audit,
            }))
        }),
        Value::String(_)
        | Value::Null
        | Value::Bool(_)
        | Value::Integer(_)
        | Value::Float(_)
        | Value::Array(_) => field.fail(
            "invalid_choice",
            "must be \"public\" or a table with users or services",
        ),
    }
}

/// `"any"`, or a table of what is asked.
fn read_users(field: Field<'_>) -> Option<UserRule> {
    if is_any(field) {
        return Some(UserRule::default());
    }
    if !matches!(field.value(), Value::Object(_)) {
        return field.fail(
            "invalid_choice",
            "must be \"any\" or a table with scopes, groups or claims",
        );
    }
    field.object(|rule| {
        Some(UserRule {
            scopes: rule.or("scopes", Vec::new(), texts),
            groups: rule.or("groups", Vec::new(), texts),
            claims: rule.section("claims", read_claims).unwrap_or_default(),
        })
    })
}

pub(super) fn read_claims(section: &Object<'_>) -> Option<Vec<(String, serde_json::Value)>> {
    Some(section.entries(|name, field| Some((name.to_owned(), field.node().to_json()))))
}

/// `"any"`, a list of names, or a table with `allow` and `scopes`.
fn read_services(field: Field<'_>) -> Option<ServiceRule> {
    if is_any(field) {
        return Some(ServiceRule::default());
    }
    if matches!(field.value(), Value::Array(_)) {
        return Some(ServiceRule {
            allow: Some(texts(field)?),
            scopes: Vec::new(),
        });
    }
    if !matches!(field.value(), Value::Object(_)) {
        return field.fail(
            "invalid_choice",
            "must be \"any\", a list of names or a table with allow or scopes",
        );
    }
    field.object(|rule| {
        Some(ServiceRule {
            allow: rule.optional("allow", texts),
            scopes: rule.or("scopes", Vec::new(), texts),
        })
    })
}

fn is_any(field: Field<'_>) -> bool {
    matches!(field.value(), Value::String(text) if text == "any")
}
