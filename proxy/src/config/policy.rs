use postern_common::decode::{Field, Object, Value};

use crate::config::short_texts;

/// The policy of a route.
#[derive(Clone, Debug, PartialEq)]
pub enum RoutePolicy {
    /// No token is asked for, and none is looked at.
    Public,
    /// A valid token is required, of a kind that is let in.
    Protected(CallerRules),
}

/// Who is let in; at least one of the two is given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallerRules {
    /// What is asked of users; `None` lets none in.
    pub users: Option<UserRule>,
    /// What is asked of services; `None` lets none in.
    pub services: Option<ServiceRule>,
    /// Lets a caller with a valid token through and logs what would have been refused.
    pub audit: bool,
}

/// What is asked of a user.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UserRule {
    /// Scopes, all of which the token must grant.
    pub scopes: Vec<String>,
    /// Groups, in one of which the user must be; empty for any user.
    pub groups: Vec<String>,
    /// Claims, all of which must have this value.
    pub claims: Vec<(String, serde_json::Value)>,
}

/// What is asked of a service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceRule {
    /// The services that are let in; `None` for any.
    pub allow: Option<Vec<String>>,
    /// Scopes, all of which the token must grant.
    pub scopes: Vec<String>,
}

// === impl RoutePolicy ===

impl RoutePolicy {
    /// Whether a request without a token may take the route.
    #[must_use]
    pub fn is_public(&self) -> bool {
        matches!(self, Self::Public)
    }

    /// The claims that it looks at.
    pub(crate) fn claims(&self) -> impl Iterator<Item = &str> {
        let users = match self {
            Self::Public => None,
            Self::Protected(protected) => protected.users.as_ref(),
        };
        users
            .into_iter()
            .flat_map(|rule| &rule.claims)
            .map(|(name, _)| name.as_str())
    }

    /// Whether refusals of [`RoutePolicy::decide`] are logged only.
    #[must_use]
    pub fn is_audit_only(&self) -> bool {
        matches!(self, Self::Protected(CallerRules { audit: true, .. }))
    }
}

/// `"public"`, or `{ users = …, services = …, audit = … }` with at least one of the first two.
pub(super) fn read(field: Field<'_>) -> Option<RoutePolicy> {
    match field.value() {
        Value::String(text) if text == "public" => Some(RoutePolicy::Public),
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
            Some(RoutePolicy::Protected(CallerRules {
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
            scopes: rule.or("scopes", Vec::new(), short_texts),
            groups: rule.or("groups", Vec::new(), short_texts),
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
            allow: Some(short_texts(field)?),
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
            allow: rule.optional("allow", short_texts),
            scopes: rule.or("scopes", Vec::new(), short_texts),
        })
    })
}

fn is_any(field: Field<'_>) -> bool {
    matches!(field.value(), Value::String(text) if text == "any")
}
